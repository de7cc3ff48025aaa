"""Why each number is what it is, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.attention import ChunkedAttention, FullAttention, SlidingWindow
from kvcalc.core.memory import HostPart, processes
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.core.units import cdiv, format_count, format_number_of
from kvcalc.engines.tensorrt_llm.blocks import estimated_bytes_per_token, offset_table_bytes
from kvcalc.engines.tensorrt_llm.layers import PER_HEAD, Kept
from kvcalc.engines.tensorrt_llm.settings import Settings

__all__ = ["CONVENTION", "explain", "host_parts", "not_modelled"]

CONVENTION = (
    (
        "The budget is the pool itself: free_gpu_memory_fraction (0.9 by default) of what is free"
        " once the weights are loaded and a profiling run has taken its peak."
    ),
)

_BITS = {"fp8_e4m3": 8, "nvfp4": 4}


def explain(model: ModelSpec, stages: list[list[Kept]], settings: Settings) -> list[str]:
    """Return the notes of a plan."""
    return [
        *_heads(model, settings),
        *_ranks_apart(settings),
        *_estimator(model, stages[0], settings),
        *_windows(model, stages[0], settings),
        *_limits(stages, settings),
        *_host(stages, settings),
        *_table(stages[0], settings),
    ]


def _per_head(model: ModelSpec) -> list[FullAttention | SlidingWindow | ChunkedAttention]:
    return [c for _, c in model.caches() if isinstance(c, PER_HEAD)]


def _heads(model: ModelSpec, settings: Settings) -> Iterator[str]:
    for heads in sorted({cache.num_kv_heads for cache in _per_head(model)}):
        if heads % settings.tp:
            each = cdiv(heads, settings.tp)
            yield (
                f"{format_number_of(heads, 'KV head')} over {settings.tp} ranks: rounded up to"
                f" {each} a rank"
            )


def _estimator(model: ModelSpec, kept: list[Kept], settings: Settings) -> Iterator[str]:
    """Say by how much the static estimator is off, where it is."""
    caches = _per_head(model)
    shapes = {(cache.num_kv_heads, cache.head_dim) for cache in caches}
    if len(shapes) != 1:
        return
    ((heads, width),) = shapes
    estimated = estimated_bytes_per_token(
        heads=heads,
        head_dim=width,
        layers=sum(part.layers for part in kept),
        tp=settings.tp,
        bits=_BITS.get(settings.dtype.name, 16),
    )
    manager = sum(part.cell for part in kept)
    if estimated != manager:
        yield (
            f"a token takes {format_count(manager)} B of the cache; the engine's own estimate, made"
            f" before it allocates, says {format_count(estimated)} B (get_cache_size_per_token)"
        )


def _windows(model: ModelSpec, kept: list[Kept], settings: Settings) -> Iterator[str]:
    unread = sum(count for count, cache in model.caches() if isinstance(cache, SlidingWindow))
    if unread and settings.windows is None:
        yield (
            f"{format_number_of(unread, 'layer')} with a window keep every token: without"
            " max_attention_window each layer keeps the whole sequence"
        )
    chunked = sum(count for count, cache in model.caches() if isinstance(cache, ChunkedAttention))
    if chunked:
        yield (
            f"{format_number_of(chunked, 'layer')} with a chunk keep every token: chunks bound what"
            " is read, and divide no pool"
        )
    if len(kept) > 1:
        yield f"{len(kept)} windows: each gets the same memory, whatever its layers need"
    if len(kept) > 1 and settings.max_tokens is not None and not settings.v2:
        yield (
            "max_tokens bounds no pool's tokens where windows differ: the engine turns it into"
            " bytes of all windows before it starts (configure_kv_cache_capacity)"
        )
    if any(part.priced != part.cell for part in kept) and len(kept) > 1:
        yield "scales of nvfp4 are not counted where windows differ: pools outgrow their memory"


def _ranks_apart(settings: Settings) -> Iterator[str]:
    if settings.shared_ranks > 1:
        yield (
            f"attention data parallelism: each of {settings.shared_ranks} ranks holds all KV heads,"
            " for requests of its own; the figures, max_batch_size too, are those of one rank"
        )


def _limits(stages: list[list[Kept]], settings: Settings) -> Iterator[str]:
    """Say what bounds the pool, and where that shortens the longest sequence."""
    if settings.fraction_asked:
        yield (
            f"free_gpu_memory_fraction {settings.fraction} decides what a card leaves for the"
            " cache, and plays no part where the cache's bytes are given"
        )
    limit = settings.max_tokens
    if limit is None or settings.v2 or any(len(kept) > 1 for kept in stages):
        return
    held = limit if settings.rounds_up else limit // settings.block * settings.block
    yield (
        f"max_tokens {format_count(limit)} bounds the pool: {format_count(held)} tokens in blocks"
        f" of {settings.block}, however much the memory holds"
    )
    if held < settings.length:
        yield (
            f"a sequence of max_seq_len {format_count(settings.length)} does not fit max_tokens:"
            " the engine lowers max_seq_len to what the pool holds"
        )


def host_parts(settings: Settings, ranks: tuple[Rank, ...]) -> tuple[HostPart, ...]:
    """Return the host memory of one server: its processes, and blocks that are out of use."""
    gpus = sum(rank.multiplicity for rank in ranks)
    parts = [processes(gpus)]
    if settings.host_bytes:
        parts.append(
            HostPart(
                name="offloaded blocks",
                low_bytes=settings.host_bytes * gpus,
                high_bytes=settings.host_bytes * gpus,
                source=f"host_cache_size {format_count(settings.host_bytes)} B for each of {gpus}"
                " ranks",
                setting="kv_cache_config.host_cache_size",
                unit_bytes=gpus,
            )
        )
    return tuple(parts)


def _host(stages: list[list[Kept]], settings: Settings) -> Iterator[str]:
    """Say what host_cache_size holds (calculate_max_num_blocks)."""
    if not settings.host_bytes:
        return
    given = f"host_cache_size {format_count(settings.host_bytes)} B"
    if settings.v2 or any(len(kept) > 1 for kept in stages):
        yield f"{given} on the host of each rank holds blocks that are out of use"
        return
    cell = max(part.cell for kept in stages for part in kept)
    blocks = settings.host_bytes // cell // settings.block
    yield (
        f"{given} on the host of each rank holds {format_number_of(blocks, 'block')} that are out"
        " of use: no sequence that runs can have them"
    )


def _table(kept: list[Kept], settings: Settings) -> Iterator[str]:
    """Say what the offsets take: for a token more than the maximum, which overlapping needs."""
    pools = sum(len(part.widths) for part in kept)
    blocks, places = cdiv(settings.length + 1, settings.block), settings.batch
    if settings.v2:
        blocks, places = cdiv(blocks, 4) * 4, places + 1
        pools = len(kept)
    size = offset_table_bytes(pools, places, blocks)
    yield f"the table of block offsets takes {format_count(size)} B of pinned host memory"


def not_modelled(settings: Settings, *, several: bool) -> tuple[str, ...]:
    """Return what the plan leaves out, with its size where that is known."""
    told = []
    if several and settings.v2:
        told.append("how KVCacheManagerV2 shares its quota at first among the windows' pools")
    if settings.v2:
        told.append(
            "max_util_for_resume: a V2 cache too small for max_seq_len serves 0.95 of what it holds"
            " in some releases"
        )
    if settings.v2 and settings.max_tokens is not None:
        told.append("max_tokens as a bound of KVCacheManagerV2's quota")
    if several and not settings.v2 and settings.max_tokens is not None:
        told.append("max_tokens as a bound of the bytes of all windows")
    if several and not settings.v2:
        told.append("windows cut down where the memory does not hold one sequence")
    if settings.windows is not None:
        told.append("blocks held for a chunk of the prompt beyond the window")
    return tuple(told)
