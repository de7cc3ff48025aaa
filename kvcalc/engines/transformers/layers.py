"""From a layer's caches to rules and bytes, for the dynamic and the static cache.

transformers 5.24 cache_utils.py: DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer,
StaticLayer, StaticSlidingWindowLayer, StaticIndexedLayer, LinearAttentionLayer.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import All, Chunks, EveryNth, Once, StateTensor, Windowed, divide
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import LightningAttention, RgLru, Rwkv
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Whole, Window
from kvcalc.core.states import TRANSFORMERS_STATES
from kvcalc.core.units import format_count
from kvcalc.engines.transformers.settings import Settings

__all__ = ["COUNTER_BYTES", "Part", "as_held", "counters", "parts_of", "window_rule"]


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


# DeepSeek-V4's layers: a window of raw entries, compressed ones, and tokens not yet folded.
#
# transformers 5.24 models/deepseek_v4/modeling_deepseek_v4.py, DeepseekV4HCACache and
# DeepseekV4CSACache.

_GATE_BYTES = 4
"""The gate of the last folded window is kept in float32, whatever the model dtype."""
_Part = tuple[str, Rule, tuple[tuple[str, int], ...]]


def compressed_parts(caches: tuple[Cache, ...], dtype: str, settings: Settings) -> list[_Part]:
    """Return what one such layer keeps: name, rule, and bytes of a slot by role.

    The window's keys are its values (one tensor). What waits to be folded is the entry and the gate
    of every token since the last whole window, both in the model dtype: a view, whose storage is
    that of the whole prompt until the next step. Layers whose windows overlap keep half of the last
    folded window, entry and gate.
    """
    size = element_bytes(dtype)
    prompt, chunk = settings.prompt_tokens, settings.chunk_tokens
    found: list[_Part] = []
    for cache in caches:
        match cache:
            case SlidingMla(sliding_window=window):
                later = max(1, min(chunk, prompt - window + 1))
                rule: Rule = Window(block_tokens=1, window=window, in_flight=later, ring=True)
                found.append((f"window {window}", rule, (("nope", cache.head_dim * size),)))
            case CompressedAttention() | Indexer():
                ratio, overlap = cache.compress_ratio, cache.overlap
                indexer = isinstance(cache, Indexer)
                width = cache.index_head_dim if isinstance(cache, Indexer) else cache.head_dim
                role = "index" if indexer else "nope"
                rule = Compressed(block_entries=1, ratio=ratio, on_demand=True)
                found.append((f"1 in {ratio}", rule, ((role, width * size),)))
                spread = 2 if overlap else 1
                flight = max(0, min(prompt - ratio, chunk - 1))
                rule = Chunk(block_tokens=1, chunk=ratio, in_flight=flight, ring=True)
                waiting = 2 * spread * width * size
                found.append((f"unfolded, {ratio} at most", rule, (("compressor", waiting),)))
                if overlap:
                    kept = ratio * width * (size + _GATE_BYTES)
                    found.append(("last folded window", Slots(), (("compressor", kept),)))
    return found


# A model as transformers holds it: the layers whose rows its modelling code makes otherwise.

_WINDOW_OFF_BY = {
    "MiMoV2FlashForCausalLM": 1,
}
"""Architecture -> tokens that transformers' window has more than the config says: its config class
adds one to MiMo's."""


def as_held(model: ModelSpec, settings: Settings, notes: list[str]) -> ModelSpec:
    """Return the model with the caches that one rank's transformers makes of each layer.

    Args:
        model: as published, in the dtype that it is run in.
        settings: release, tensor-parallel size, and the head sizes that old releases expand.
        notes: a line is added for every kind of layer that is changed.

    Raises:
        UnsupportedError: a kind of layer that is not modelled, or cannot be split.
    """
    model = _expanded_heads(model, notes)
    runs = []
    for run in model.layers:
        caches = tuple(
            kept for cache in run.caches if (kept := _held(cache, run, model, settings)) is not None
        )
        runs.append(LayerRun(count=run.count, caches=caches, note=run.note))
    _explain(model, settings, notes)
    return _on_rank(msgspec.structs.replace(model, layers=tuple(runs)), settings.tp)


def _held(cache: Cache, run: LayerRun, model: ModelSpec, settings: Settings) -> Cache | None:
    match cache:
        case Mla() if not settings.release.keeps_latents:
            return _per_head(cache, model, settings)
        case Indexer(compress_ratio=1):
            # One vector in the model dtype: no fp8, no scale (cache_utils.py, DynamicIndexedLayer).
            return msgspec.structs.replace(cache, index_dtype=model.dtype)
        case SlidingMla() if not any(isinstance(c, CompressedAttention) for c in run.caches):
            # A plain window layer keeps the one vector twice, as keys and as values.
            return SlidingWindow(
                num_kv_heads=1, head_dim=cache.head_dim, sliding_window=cache.sliding_window
            )
        case SlidingWindow():
            more = _WINDOW_OFF_BY.get(model.architecture or "", 0)
            return msgspec.structs.replace(cache, sliding_window=cache.sliding_window + more)
        case RgLru():
            return None
        case Rwkv():
            raise UnsupportedError(
                "transformers keeps the states of RWKV outside its caches, and kvcalc does not"
                " model them",
                hint="use --engine none to see what the layers are",
            )
    if cache.states() and not settings.release.keeps_states:
        raise NotModelledError(
            f"transformers {settings.release} keeps {cache.kind} states in classes of the models'"
            " own, which kvcalc does not model",
            hint="5.12 and later keep them in the cache's layers",
        )
    return cache


def _per_head(cache: Mla, model: ModelSpec, settings: Settings) -> Cache:
    """Return the K and V of every head that releases before 5.15 make of a latent."""
    nope = settings.arguments.number("qk_nope_head_dim")
    v = settings.arguments.number("v_head_dim")
    if nope is None or v is None or model.num_attention_heads is None:
        raise NotModelledError(
            f"transformers {settings.release} keeps K and V of every head of an MLA model, and"
            " the latent does not tell their widths",
            hint="give qk_nope_head_dim and v_head_dim of config.json in engine_args, or ask for"
            " 5.15 or later, which keep the latent",
        )
    return FullAttention(
        num_kv_heads=model.num_attention_heads,
        head_dim=nope + cache.qk_rope_head_dim,
        v_head_dim=v,
    )


def _expanded_heads(model: ModelSpec, notes: list[str]) -> ModelSpec:
    """Falcon's newer architecture repeats K and V for every query head before they are cached.

    transformers 5.24 models/falcon/modeling_falcon.py, FalconAttention._split_heads: with
    new_decoder_architecture K and V are broadcast to the query's shape; multi-query is not.
    """
    heads = model.num_attention_heads
    if model.architecture != "FalconForCausalLM" or heads is None:
        return model

    def wide(cache: Cache) -> Cache:
        if isinstance(cache, FullAttention) and 1 < cache.num_kv_heads < heads:
            return msgspec.structs.replace(cache, num_kv_heads=heads)
        return cache

    runs = tuple(
        msgspec.structs.replace(run, caches=tuple(map(wide, run.caches))) for run in model.layers
    )
    if runs != model.layers:
        notes.append(
            f"K and V are repeated for all {heads} query heads before they are cached:"
            " FalconAttention of the newer architecture"
        )
    return msgspec.structs.replace(model, layers=runs)


def _explain(model: ModelSpec, settings: Settings, notes: list[str]) -> None:
    kinds = {type(cache) for _, cache in model.caches()}
    if Mla in kinds:
        what = "the latent" if settings.release.keeps_latents else "K and V of every head"
        notes.append(f"MLA layers keep {what}: the latent is cached since transformers 5.15")
    if Indexer in kinds:
        notes.append(f"an indexer's key is kept in {model.dtype}, not in fp8 with a scale")
    if model.architecture in _WINDOW_OFF_BY and SlidingWindow in kinds:
        more = _WINDOW_OFF_BY[model.architecture]
        notes.append(
            f"transformers' window has one token {'more' if more > 0 else 'less'} than vLLM's"
        )
    lost = sum(
        count * state.elements * (4 if state.role == "recurrent" else 2)
        for count, cache in model.caches()
        if isinstance(cache, RgLru)
        for state in cache.states()
    )
    if lost:
        notes.append(
            f"RG-LRU states lie on the modules, outside the cache: about {format_count(lost)} B"
            " a sequence are not counted"
        )


def _on_rank(model: ModelSpec, tp: int) -> ModelSpec:
    """Return one rank's heads; heads must divide, as PagedAttentionCache asks."""
    if tp == 1:
        return model
    for _, cache in model.caches():
        if cache.states():
            raise NotModelledError(
                f"how transformers splits {cache.kind} states over ranks is not modelled",
                hint="use a tensor parallel size of 1",
            )
    return model.on_rank(tp, lambda heads, ranks: divide(heads, ranks, "KV heads"))
