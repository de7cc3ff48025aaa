"""A model as transformers holds it: the layers whose rows its modelling code makes otherwise."""

from __future__ import annotations

import msgspec

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import RgLru, Rwkv
from kvcalc.core.units import format_count
from kvcalc.engines.transformers.settings import Settings

__all__ = ["as_held"]

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
