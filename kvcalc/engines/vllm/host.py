"""What vLLM keeps in the host's memory: weights, blocks of prefixes, and V0's swapped blocks.

vLLM 0.33 model_executor/models/utils.py (maybe_offload_to_cpu) and v1/kv_offload/cpu/spec.py; V0's
worker/cache_engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import HostPart
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_bytes, format_count, round_up
from kvcalc.core.widths import is_multimodal
from kvcalc.engines.vllm.arguments import gib_of, limits_of, takes_no_input

__all__ = ["host_parts", "notes_on_arguments", "swap_part"]

_SWAP_SPACE = 4 * 2**30
"""GiB a GPU, unless told otherwise (V0's CacheConfig)."""
_ALIGNED = 2 * 2**20
"""Bytes that a chunk may be rounded up to: a large page of the host."""


def host_parts(deployment: Deployment, ranks: tuple[Rank, ...]) -> tuple[HostPart, ...]:
    """Return what one replica takes of the host beside what every server does.

    Args:
        deployment: as asked for.
        ranks: of the plan.
    """
    return tuple(part for part in (_weights(deployment, ranks), _blocks(deployment, ranks)) if part)


def _weights(deployment: Deployment, ranks: tuple[Rank, ...]) -> HostPart | None:
    limit = gib_of(deployment, "cpu_offload_gb")
    if limit is None:
        return None
    gpus = sum(rank.multiplicity for rank in ranks)
    return HostPart(
        name="weights",
        low_bytes=0,
        high_bytes=limit * gpus,
        source=f"cpu_offload_gb: {format_bytes(limit)} of every GPU's layers, or all of them where"
        " they are less; the last parameter is moved whole",
    )


def _blocks(deployment: Deployment, ranks: tuple[Rank, ...]) -> HostPart | None:
    """Return the blocks of prefixes that stay on the host: as many as all ranks' bytes allow."""
    size = gib_of(deployment, "kv_offloading_size")
    if size is None:
        return None
    each = sum(rank.multiplicity * pool.unit_bytes for rank in ranks for pool in rank.pools)
    return HostPart(
        name="offloaded blocks",
        low_bytes=max(0, size - round_up(each, _ALIGNED)),
        high_bytes=size,
        source=f"kv_offloading_size, of all ranks together: {format_count(size // each)} blocks of"
        f" {format_count(each)} B",
    )


def swap_part(deployment: Deployment, ranks: tuple[Rank, ...]) -> HostPart | None:
    """Return V0's blocks on the host, for sequences that are put aside; None without any.

    Every GPU has as many as fit into its space (CacheEngine; logged as `# CPU blocks`).
    """
    given = "swap_space" in deployment.engine_args
    space = gib_of(deployment, "swap_space") if given else _SWAP_SPACE
    if space is None:
        return None
    counts = [
        (space // pool.unit_bytes, pool.unit_bytes * rank.multiplicity)
        for rank in ranks
        for pool in rank.pools[:1]
    ]
    size = sum(count * each for count, each in counts)
    default = "" if given else ", the default"
    blocks = format_count(min((count for count, _ in counts), default=0))
    return HostPart(
        name="swap space",
        low_bytes=size,
        high_bytes=size,
        source=f"swap_space: {format_bytes(space)} a GPU{default}, {blocks} CPU blocks",
    )


def notes_on_arguments(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    """Yield a line for what V1 passes over, and for a tower that gets no input."""
    if takes_no_input(limits_of(deployment)) and is_multimodal(model):
        yield (
            "no images, video or audio are taken: the encoder is not profiled, and vLLM 0.16 and"
            " later do not load it"
        )
    if deployment.engine_args.get("swap_space") is not None:
        yield "swap_space plays no part: V1 computes a sequence anew that it has put aside"
