"""How many GPUs a deployment has, as the engine reads its settings."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError

__all__ = ["OWN_SIZES", "Sizes", "sizes_asked", "sizes_of"]

OWN_SIZES = (
    *("tp", "tp_size", "tensor_parallel_size", "pp", "pp_size", "pipeline_parallel_size"),
    *("dp", "dp_size", "data_parallel_size", "enable_dp_attention", "attn_dp_size"),
    *("attention_data_parallel_size", "dcp_size", "decode_context_parallel_size"),
)
"""Settings of engines, in their own words, that say how many GPUs share what."""


class Sizes(NamedTuple):
    """Ranks and replicas.

    Attributes:
        tp, pp: tensor and pipeline parallel size.
        replicas: servers beside each other.
        groups: groups of ranks within a server that hold requests of their own (DP attention).
    """

    tp: int
    pp: int
    replicas: int
    groups: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.tp * self.pp * self.replicas

    @property
    def holders(self) -> int:
        """Replicas and groups: how many times the figures of a plan are there."""
        return self.replicas * self.groups


def sizes_of(deployment: Deployment) -> Sizes:
    """Return the sizes of a deployment; SGLang's may be said in its own words.

    Raises:
        InvalidValueError, UnsupportedError, UnknownNameError: settings that SGLang has not.
    """
    if deployment.engine != "sglang":
        return _by_fields(deployment)
    from kvcalc.engines.sglang.arguments import Arguments, full_name
    from kvcalc.engines.sglang.flags import REFUSED
    from kvcalc.engines.sglang.parallel import parallel_of

    # What is not modelled says nothing about sizes: the plan tells of it.
    args = {k: v for k, v in deployment.engine_args.items() if full_name(k) not in REFUSED}
    known = msgspec.structs.replace(deployment, engine_args=args)
    found = parallel_of(known, Arguments(known), [])
    return Sizes(found.tp, found.pp, found.replicas, found.attn_dp)


def sizes_asked(deployment: Deployment) -> Sizes:
    """Return the sizes, also of settings that the engine refuses: their plan says so."""
    try:
        return sizes_of(deployment)
    except KvcalcError:
        return _by_fields(deployment)


def _by_fields(deployment: Deployment) -> Sizes:
    return Sizes(
        deployment.tensor_parallel_size,
        deployment.pipeline_parallel_size,
        deployment.data_parallel_size,
    )
