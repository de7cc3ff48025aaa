"""The tensors that a context has: for every layer and cache, the bytes of one cell.

llama.cpp b11434 src/llama-kv-cache.cpp (llama_kv_cache), src/llama-memory-recurrent.cpp,
src/llama-kv-cache-dsa.cpp, src/llama-kv-cache-msa.cpp, src/llama-kv-cache-dsv4.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    FullAttention,
    Indexer,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.dtypes import CacheDtype, Row
from kvcalc.core.kind import EveryNth
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.states import LLAMA_CPP_STATES
from kvcalc.engines.llamacpp.served import Served
from kvcalc.engines.llamacpp.types import CacheTypes, elements_bytes

__all__ = ["INDEX_V", "Kept", "Tensor", "tensors_of"]

INDEX_V = frozenset(("minimax-m3",))
"""Architectures whose indexer cache has a V of value_length beside it, which nothing reads."""


class Tensor(NamedTuple):
    """A tensor of rows: elements of one row, and the type."""

    elements: int
    type: CacheDtype


class Kept(NamedTuple):
    """What one layer keeps in one cache.

    Attributes:
        layer: its number.
        cache: which cache: kv, swa, indexer, csa, hca, lid or state.
        payload: bytes of a cell (of a state) by role.
        widened: bytes of a cell that no row needs.
        tensors: the tensors of rows.
        chunk: the cache's window is a chunk.
        ratio: tokens a cell.
    """

    layer: int
    cache: str
    payload: dict[str, int]
    widened: int = 0
    tensors: tuple[Tensor, ...] = ()
    chunk: bool = False
    ratio: int = 1


class Context(NamedTuple):
    """What decides on the rows of a context.

    Attributes:
        types: of K and V.
        flash: flash attention is on.
        latent_v: a V of kv_lora_rank stands beside a latent.
        widest_v: elements of the widest V row of all layers, those without a cache included.
    """

    types: CacheTypes
    flash: bool
    latent_v: bool
    widest_v: int


def tensors_of(
    served: Served,
    layers: Iterable[tuple[int, LayerRun]],
    types: CacheTypes,
    *,
    flash: bool,
    latent_v: bool,
    indexers: bool = True,
) -> list[Kept]:
    """Return what a context keeps of some layers.

    Args:
        served: the model.
        layers: the context's layers, with their numbers.
        types: cache types of K and V.
        flash: flash attention is on.
        latent_v: a V stands beside latents.
        indexers: indexer keys are kept (not in an MTP context).

    Raises:
        UnsupportedError: a row is no whole number of the type's blocks.
    """
    widths = [row.width * row.count for run in served.layers for row in _v_rows(run)]
    context = Context(types, flash, latent_v, max(widths, default=0))
    kept: list[Kept] = []
    for layer, run in layers:
        for cache in run.caches:
            if isinstance(cache, Indexer) and not indexers:
                continue
            kept.extend(_kept(layer, cache, run, served, context))
        if not run.caches and not served.hybrid and not flash and context.widest_v:
            kept.append(_empty(layer, context))
    return kept


def _v_rows(run: LayerRun) -> Iterator[Row]:
    return (row for cache in run.caches for row in cache.rows() if row.role == "v")


def _kept(
    layer: int, cache: Cache, run: LayerRun, served: Served, context: Context
) -> Iterator[Kept]:
    rows = cache.rows()
    if rows:
        keys = [row for row in rows if row.role != "v"]
        tensors = [_tensor(keys, context.types.k)]
        payload = _by_role(keys, context.types.k)
        values = [row for row in rows if row.role == "v"]
        widened = 0
        if values:
            tensor = _tensor(values, context.types.v)
            payload["v"] = elements_bytes(tensor.type, tensor.elements)
            if not context.flash:
                # [TAG_V_CACHE_VARIABLE]: a transposed V is as wide as the widest of all layers.
                tensor = Tensor(context.widest_v, context.types.v)
                widened = elements_bytes(tensor.type, tensor.elements) - payload["v"]
            tensors.append(tensor)
        elif cache.kind == "mla" and context.latent_v:
            tensor = _tensor(keys[:1], context.types.v)
            widened = elements_bytes(tensor.type, tensor.elements)
            tensors.append(tensor)
        elif isinstance(cache, Indexer) and served.arch in INDEX_V:
            tensor = Tensor(_value_length(run), context.types.v)
            widened = elements_bytes(tensor.type, tensor.elements)
            tensors.append(tensor)
        yield Kept(
            layer=layer,
            cache=_cache_name(cache),
            payload=payload,
            widened=widened,
            tensors=tuple(tensors),
            chunk=isinstance(cache, ChunkedAttention),
            ratio=cache.span.ratio if isinstance(cache.span, EveryNth) else 1,
        )
    states: dict[str, int] = {}
    for state in cache.states():
        size = LLAMA_CPP_STATES.bytes_of(state, served.model.dtype)
        states[state.role] = states.get(state.role, 0) + size
    if states:
        yield Kept(layer, "state", states)


def _tensor(rows: list[Row], type_: CacheDtype) -> Tensor:
    return Tensor(sum(row.width * row.count for row in rows), type_)


def _by_role(rows: list[Row], type_: CacheDtype) -> dict[str, int]:
    """Return the bytes of rows that lie side by side in one row of a tensor."""
    found: dict[str, int] = {}
    elements = told = 0
    for row in rows:
        elements += row.width * row.count
        whole = elements_bytes(type_, elements)
        found[row.role] = found.get(row.role, 0) + whole - told
        told = whole
    return found


def _value_length(run: LayerRun) -> int:
    return max((row.width for row in _v_rows(run)), default=0)


def _empty(layer: int, context: Context) -> Kept:
    """A layer without KV heads: K of no width, and without flash attention the widest V."""
    tensor = Tensor(context.widest_v, context.types.v)
    return Kept(layer, "kv", {}, elements_bytes(tensor.type, tensor.elements), (tensor,))


def _cache_name(cache: Cache) -> str:
    match cache:
        case Indexer(compress_ratio=1):
            return "indexer"
        case Indexer():
            return "lid"
        case CompressedAttention(compress_ratio=4):
            return "csa"
        case CompressedAttention():
            return "hca"
        case SlidingMla() | SlidingWindow() | ChunkedAttention():
            return "swa"
        case FullAttention():
            return "kv"
    return "kv"
