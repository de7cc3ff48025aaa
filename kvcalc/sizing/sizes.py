"""How many GPUs a deployment has, as its engine reads its settings."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.engines import engine_of
from kvcalc.engines.engine import Engine, Sizes

__all__ = ["OWN_SIZES", "sizes_asked", "sizes_of"]

OWN_SIZES = (
    *("tp", "tp_size", "tensor_parallel_size", "pp", "pp_size", "pipeline_parallel_size"),
    *("dp", "dp_size", "data_parallel_size", "enable_dp_attention", "attn_dp_size"),
    *("attention_data_parallel_size", "dcp_size", "decode_context_parallel_size"),
)
"""Settings of engines, in their own words, that say how many GPUs share what."""


def sizes_of(deployment: Deployment) -> Sizes:
    """Return the sizes of a deployment; see Engine.sizes."""
    return engine_of(deployment.engine).sizes(deployment)


def sizes_asked(deployment: Deployment) -> Sizes:
    """Return the sizes, also of settings that the engine refuses: their plan says so."""
    try:
        return sizes_of(deployment)
    except KvcalcError:
        return Engine(deployment.engine).sizes(deployment)
