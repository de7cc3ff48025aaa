"""What vLLM takes of the host's memory: processes, weights, prefix blocks, inputs, V0's swap.

vLLM 0.33 model_executor/models/utils.py (maybe_offload_to_cpu) and v1/kv_offload/cpu/spec.py; V0's
worker/cache_engine.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_bytes, format_count, round_up
from kvcalc.engines.vllm.arguments import gib_of, limits_of, takes_no_input
from kvcalc.engines.vllm.version import Release
from kvcalc.weights.widths import is_multimodal

__all__ = ["host_parts", "notes_on_arguments", "swap_part"]

_SWAP_SPACE = 4 * 2**30
"""GiB a GPU, unless told otherwise (V0's CacheConfig)."""
_INPUT_CACHE = 4 * 2**30
_CACHES_INPUTS = (0, 8, 0)
_CACHE_BY_FLAG = (0, 10, 1)
_ALIGNED = 2 * 2**20
"""Bytes that a chunk may be rounded up to: a large page of the host."""


def host_parts(
    model: ModelSpec, deployment: Deployment, ranks: tuple[Rank, ...], at: Release
) -> tuple[HostPart, ...]:
    """Return the host memory of one replica.

    Args:
        model: as published.
        deployment: as asked for.
        ranks: of the plan.
        at: the release.
    """
    parts = (
        processes(sum(rank.multiplicity for rank in ranks)),
        _weights(deployment, ranks),
        _blocks(deployment, ranks),
        _inputs(model, deployment, at),
    )
    return tuple(part for part in parts if part)


def _inputs(model: ModelSpec, deployment: Deployment, at: Release) -> HostPart | None:
    """Return the caches of processed images, video and audio; None where none are taken.

    vLLM 0.33 config/multimodal.py, mm_processor_cache_gb: one in each API server and one in each
    engine core (0.10.1 and later). Before, VLLM_MM_INPUT_CACHE_GIB: the input processor's, the
    client's and the engine core's (0.8 to 0.10.0, multimodal/registry.py and
    v1/engine/mm_input_cache.py).
    """
    if at.number < _CACHES_INPUTS or not is_multimodal(model):
        return None
    if takes_no_input(limits_of(deployment)):
        return None
    by_flag = at.number >= _CACHE_BY_FLAG
    given = deployment.engine_args.get("mm_processor_cache_gb") is not None
    size = (gib_of(deployment, "mm_processor_cache_gb") or 0) if given else _INPUT_CACHE
    copies = (2 if by_flag else 3) + deployment.data_parallel_size - 1
    return HostPart(
        name="processed inputs",
        low_bytes=0,
        high_bytes=size * copies,
        source=f"{format_bytes(size)}{'' if given else ', the default,'} for each of {copies}"
        " caches of images, video and audio",
        setting="--mm-processor-cache-gb" if by_flag else "VLLM_MM_INPUT_CACHE_GIB",
        unit_bytes=2**30 * copies,
        is_default=not given,
    )


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
        setting="--cpu-offload-gb",
        unit_bytes=2**30 * gpus,
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
        setting="--kv-offloading-size",
        unit_bytes=2**30,
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
        setting="--swap-space",
        unit_bytes=2**30 * sum(rank.multiplicity for rank in ranks),
        is_default=not given,
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
