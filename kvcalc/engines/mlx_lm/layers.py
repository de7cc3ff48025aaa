"""From a layer's caches to mlx-lm's cache objects: which class, rows, bytes of a row.

mlx-lm 0.32.2 models/cache.py (KVCache, RotatingKVCache, ChunkedKVCache, QuantizedKVCache,
ArraysCache), the models' make_cache and what their modules hand to it.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.rules import Form, Grow, Ring, Rule, Slots
from kvcalc.engines.mlx_lm.architectures import Class, class_of
from kvcalc.engines.mlx_lm.settings import STEP, Settings
from kvcalc.engines.mlx_lm.states import state_bytes

__all__ = ["Part", "parts_of"]

_Rows = tuple[tuple[str, int], ...]


class Part(NamedTuple):
    """What one layer keeps by one rule: bytes of a slot by role."""

    name: str
    rule: Rule
    payload: _Rows


def parts_of(run: LayerRun, model: ModelSpec, settings: Settings) -> list[Part]:
    """Return what one layer of a run keeps.

    Raises:
        UnsupportedError: a kind of layer that mlx-lm has not or kvcalc does not model, or what
            mlx-lm refuses to quantise.
    """
    kind = class_of(model)
    found: list[Part] = []
    caches = run.caches
    if kind.index_copies > 1 and not any(isinstance(cache, Indexer) for cache in caches):
        # Layers that borrow another's selection have an indexer of their own here.
        caches += tuple(c for _, c in model.caches() if isinstance(c, Indexer))[:1]
    for cache in caches:
        if cache.states():
            sizes = state_bytes(cache, model)
            found.append(Part("state", Slots(), sizes))
        if cache.rows():
            found += _rows(cache, model, kind, settings)
    return found


def _rows(cache: Cache, model: ModelSpec, kind: Class, settings: Settings) -> list[Part]:
    heads = _elements(cache, model, kind, settings)
    size = element_bytes(model.dtype)
    plain: _Rows = tuple((role, count * width * size) for role, count, width in heads)
    match cache:
        case SlidingWindow(sliding_window=window) if kind.rings:
            return [_ring(f"window {window}", window, plain, settings)]
        case ChunkedAttention(attention_chunk_size=chunk):
            if chunk % STEP:
                raise NotModelledError(
                    f"chunks of {chunk} tokens: only multiples of {STEP} are modelled",
                    hint="use --engine none to see what the layers are",
                )
            rule = Ring(
                window=chunk,
                step=STEP,
                first=settings.first,
                in_flight=settings.prefill_step,
                spare=STEP,
                restarts=True,
            )
            return [Part(f"chunk {chunk}", rule, plain)]
    if settings.max_kv_size is not None and not kind.own:
        return [_ring(f"window {settings.max_kv_size}", settings.max_kv_size, plain, settings)]
    limit = cache.sliding_window if isinstance(cache, SlidingWindow) else None
    name = "every token" if limit is None else f"every token, {limit} read"
    if not settings.quantizes or kind.lists:
        return [Part(name, Grow(block_tokens=STEP, limit=limit), plain)]
    return _two_forms(heads, plain, model, settings)


def _ring(name: str, window: int, rows: _Rows, settings: Settings) -> Part:
    if settings.quantizes:
        raise UnsupportedError(
            "mlx-lm quantises no rotating cache (RotatingKVCache Quantization NYI): it stops at"
            f" {settings.start} tokens",
            hint="leave kv_bits out, or raise quantized_kv_start above the maximum",
        )
    rule = Ring(window=window, step=STEP, first=settings.first, in_flight=settings.prefill_step)
    return Part(name, rule, rows)


def _two_forms(
    heads: list[tuple[str, int, int]], plain: _Rows, model: ModelSpec, settings: Settings
) -> list[Part]:
    """Return a cache that is plain below `start` tokens and quantised from there on."""
    bits, group, start = settings.bits or 0, settings.group, settings.start
    packed: list[tuple[str, int]] = []
    for role, count, width in heads:
        if width % group:
            raise UnsupportedError(
                f"MLX quantises whole groups of {group} elements, and a {role} row has {width}",
                hint="choose a kv_group_size that divides it: 32, 64 or 128",
            )
        packed.append((role, count * width * bits // 8))
        scales = 2 * count * (width // group) * element_bytes(model.dtype)
        packed.append((f"{role}_scale", scales))
    # The cache is looked at after each step, and the first step always finds it plain.
    reach = max(1, -(-start // settings.prefill_step)) * settings.prefill_step
    return [
        Part("quantised", Form(block_tokens=STEP, since=start), tuple(packed)),
        Part("not yet quantised", Form(block_tokens=STEP, until=start, reach=reach), plain),
    ]


def _elements(
    cache: Cache, model: ModelSpec, kind: Class, settings: Settings
) -> list[tuple[str, int, int]]:
    """Return (role, heads, width) of the two arrays that a module hands to its cache."""
    match cache:
        case Mla() if kind.expands:
            return _per_head(cache, model, settings)
        case Mla():
            if settings.quantizes and not kind.lists:
                raise UnsupportedError(
                    "mlx-lm's latent attention cannot read a quantised cache (it fails at the next"
                    " token)",
                    hint="leave kv_bits out",
                )
            return [("latent", 1, cache.kv_lora_rank), ("rope", 1, cache.qk_rope_head_dim)]
        case Indexer(compress_ratio=1) if kind.lists:
            return [("index", 1, kind.index_copies * cache.index_head_dim)]
        case FullAttention() | SlidingWindow() | ChunkedAttention():
            return [(row.role, row.count, row.width) for row in cache.rows()]
    raise NotModelledError(
        f"how mlx-lm keeps {cache.kind} caches is not modelled",
        hint="use --engine none to see what the layers are",
    )


def _per_head(cache: Mla, model: ModelSpec, settings: Settings) -> list[tuple[str, int, int]]:
    nope, v, heads = settings.qk_nope_head_dim, settings.v_head_dim, model.num_attention_heads
    if nope is None or v is None or heads is None:
        raise NotModelledError(
            f"mlx-lm's class for {model.architecture} keeps K and V of every head, and the latent"
            " does not tell their widths",
            hint="give qk_nope_head_dim and v_head_dim of config.json in engine_args",
        )
    return [("k", heads, nope + cache.qk_rope_head_dim), ("v", heads, v)]
