"""From a layer's caches to rules and bytes, for the dynamic and the static cache.

transformers 5.24 cache_utils.py: DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer,
StaticLayer, StaticSlidingWindowLayer, StaticIndexedLayer, LinearAttentionLayer.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import CompressedAttention
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import All, Chunks, EveryNth, Once, StateTensor, Windowed
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.recurrent import LightningAttention
from kvcalc.core.rules import Fixed, Grow, Rule, Slots, Whole, Window
from kvcalc.core.states import TRANSFORMERS_STATES
from kvcalc.engines.transformers.compressed import compressed_parts
from kvcalc.engines.transformers.settings import Settings

__all__ = ["COUNTER_BYTES", "Part", "counters", "parts_of", "window_rule"]

COUNTER_BYTES = 8
"""One int64 that a layer keeps beside its rows: its length, or the length of its window."""


class Part(NamedTuple):
    """What one layer keeps by one rule: bytes of a slot by role."""

    name: str
    rule: Rule
    payload: tuple[tuple[str, int], ...]


def parts_of(run: LayerRun, dtype: str, settings: Settings) -> list[Part]:
    """Return what one layer of a run keeps.

    Raises:
        UnsupportedError: the static cache has no such layer.
    """
    if any(isinstance(cache, CompressedAttention) for cache in run.caches):
        if settings.cache == "static":
            raise UnsupportedError(
                "transformers has no static cache for layers that keep compressed entries"
                " (KeyError: 'compressed_sparse_attention')",
                hint="use the dynamic cache",
            )
        return [Part(*part) for part in compressed_parts(run.caches, dtype, settings)]
    return [part for cache in run.caches for part in _parts(cache, dtype, settings)]


def _parts(cache: Cache, dtype: str, settings: Settings) -> list[Part]:
    packed = kv_dtype(dtype, dtype)
    found = []
    if cache.rows():
        name, rule = _rule(cache, settings)
        payload: dict[str, int] = {}
        for row in cache.rows():
            payload[row.role] = payload.get(row.role, 0) + packed.bytes_of(row)
        found.append(Part(name, rule, tuple(payload.items())))
    if cache.states():
        sizes = tuple((s.role, _state_bytes(cache, s, dtype)) for s in cache.states())
        found.append(Part("state", Slots(), sizes))
    return found


def _state_bytes(cache: Cache, state: StateTensor, dtype: str) -> int:
    """Return the bytes of one state: K convolution columns, and recurrent states in float32.

    MiniMax-01 keeps its lightning states in the model dtype (MiniMaxCache.linear_cache).
    """
    if isinstance(cache, LightningAttention):
        return state.elements * element_bytes(dtype)
    return TRANSFORMERS_STATES.bytes_of(state, dtype)


def window_rule(window: int, settings: Settings, *, restarts: bool = False) -> Window:
    """Return how a dynamic layer keeps a window (or a chunk, which it keeps as one).

    It lets go of what has left the window by taking a view: the storage of W tokens stays for the
    W - 1 that are visible, and that of a whole prompt (or of a step of it and W - 1 tokens before)
    stays until the next step (DynamicSlidingWindowLayer.update).
    """
    later = settings.prompt_tokens - window + 1
    return Window(
        block_tokens=1,
        window=window,
        in_flight=max(1, min(settings.chunk_tokens, later)),
        ring=True,
        restarts=restarts,
    )


def _rule(cache: Cache, settings: Settings) -> tuple[str, Rule]:
    static, slots = settings.cache == "static", settings.static_slots
    match cache.span:
        case All():
            return "every token", Whole(slots=slots, spares_last=True) if static else Grow(
                block_tokens=1
            )
        case Windowed(tokens=window):
            name = f"window {window}"
            if static:
                return name, Whole(slots=min(window, slots), limit=window, spares_last=True)
            return name, window_rule(window, settings)
        case Chunks(tokens=chunk):
            name = f"chunk {chunk}"
            if static:
                room = min(chunk, slots)
                return name, Whole(slots=room, limit=chunk, restarts=True, spares_last=True)
            return name, window_rule(chunk, settings, restarts=True)
        case Once(tokens=tokens):
            return "encoder", Fixed(block_tokens=tokens, tokens=tokens)
        case EveryNth():
            raise NotModelledError(
                f"{cache.kind} without the layer that it belongs to is not modelled",
                hint="use --engine none to see what the layers are",
            )


def counters(run: LayerRun, settings: Settings, architecture: str | None) -> int:
    """Return the int64 counters of one layer beside its rows.

    A dynamic layer has one where it keeps a window; a static one where it keeps attention rows,
    and one more for an indexer's. Llama-3.2-Vision's cross-attention layers are static ones even
    where no image is there to fill them.
    """
    rows = [cache for cache in run.caches if cache.rows()]
    own = [c for c in rows if not isinstance(c.span, (Once, EveryNth))]
    if settings.cache == "static":
        unfilled = not run.caches and (architecture or "").startswith("Mllama")
        return 1 if unfilled else len(own)
    return sum(isinstance(c.span, (Windowed, Chunks)) for c in own)
