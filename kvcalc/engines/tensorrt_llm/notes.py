"""Why each number is what it is, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.attention import ChunkedAttention, FullAttention, SlidingWindow
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import cdiv, format_count, format_number_of
from kvcalc.engines.tensorrt_llm.blocks import (
    estimated_bytes_per_token,
    host_blocks,
    offset_table_bytes,
)
from kvcalc.engines.tensorrt_llm.layers import Kept, States
from kvcalc.engines.tensorrt_llm.settings import Settings

__all__ = ["CONVENTION", "explain", "not_modelled"]

CONVENTION = (
    (
        "The budget is the pool itself: free_gpu_memory_fraction (0.9 by default) of what is free"
        " once the weights are loaded and a profiling run has taken its peak."
    ),
)

_BITS = {"fp8_e4m3": 8, "nvfp4": 4}


def explain(
    model: ModelSpec, stages: list[list[Kept]], states: States | None, settings: Settings
) -> list[str]:
    """Return the notes of a plan."""
    return [
        *_states(states, settings),
        *_proposing(settings),
        *_heads(model, settings),
        *_estimator(model, stages[0], settings),
        *_windows(model, stages[0], settings),
        *_table(stages[0], settings),
        *_host(stages[0], settings),
    ]


def _per_head(model: ModelSpec) -> list[FullAttention | SlidingWindow]:
    return [c for _, c in model.caches() if isinstance(c, (FullAttention, SlidingWindow))]


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
            f"the engine's estimate before it has a cache is {format_count(estimated)} B a token,"
            f" its cache {format_count(manager)} B"
        )


def _states(states: States | None, settings: Settings) -> Iterator[str]:
    if states is None:
        return
    size = format_count(settings.batch * states.slot)
    yield (
        f"states of {format_count(settings.batch)} requests (max_batch_size) take {size} B beside"
        " the budget"
    )


def _proposing(settings: Settings) -> Iterator[str]:
    if settings.proposed:
        yield (
            f"{format_number_of(settings.proposed, 'layer')} more on the last stage: one for every"
            " token proposed, in the model's own shape"
        )


def _windows(model: ModelSpec, kept: list[Kept], settings: Settings) -> Iterator[str]:
    for kind, word in ((SlidingWindow, "window"), (ChunkedAttention, "chunk")):
        unread = sum(count for count, cache in model.caches() if isinstance(cache, kind))
        if unread and settings.windows is None:
            yield (
                f"{format_number_of(unread, 'layer')} with a {word} keep every token: without"
                " max_attention_window each layer keeps the whole sequence"
            )
    if len(kept) > 1:
        yield f"{len(kept)} windows: each gets the same memory, whatever its layers need"
    if len(kept) > 1 and settings.max_tokens is not None and not settings.v2:
        yield "max_tokens is ignored where windows differ"
    if any(part.priced != part.cell for part in kept) and len(kept) > 1:
        yield "scales of nvfp4 are not counted where windows differ: pools outgrow their memory"


def _table(kept: list[Kept], settings: Settings) -> Iterator[str]:
    pools = sum(len(part.widths) for part in kept)
    size = offset_table_bytes(pools, settings.batch, cdiv(settings.length, settings.block))
    yield f"the table of block offsets takes {format_count(size)} B of pinned host memory"


def _host(kept: list[Kept], settings: Settings) -> Iterator[str]:
    """Say how many blocks host memory has room for: calculate_max_num_blocks."""
    if settings.host_bytes and len(kept) == 1 and not settings.v2:
        (part,) = kept
        blocks = host_blocks(settings.host_bytes, part.cell, settings.block)
        yield f"host memory has room for {format_number_of(blocks, 'block')} beside the GPU's"


def not_modelled(settings: Settings, *, several: bool) -> tuple[str, ...]:
    """Return what the plan leaves out, with its size where that is known."""
    told = []
    if several and settings.v2:
        told.append("how KVCacheManagerV2 shares its quota at first among the windows' pools")
    if several and not settings.v2:
        told.append("windows cut down where the memory does not hold one sequence")
    if settings.host_bytes and (several or settings.v2):
        told.append("how host memory is shared among the windows, and KVCacheManagerV2's")
    if settings.proposed:
        told.append("releases after 1.2 that keep one layer for all proposed tokens")
    if settings.stateful:
        told.append(
            "releases after 1.2 whose states lie in the blocks' pool, or have a slot more for CUDA"
            " graphs"
        )
    if settings.windows is not None:
        told.append("blocks held for a chunk of the prompt beyond the window")
    return tuple(told)
