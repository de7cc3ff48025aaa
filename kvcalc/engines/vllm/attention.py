"""How vLLM reads each attention cache: what it asks its backends, which one serves, in which dtype.

vLLM 0.33 v1/attention/selector.py (AttentionSelectorConfig),
model_executor/layers/attention/attention.py and mla_attention.py (the dtype that a layer ends up
with), models/falcon.py and mimo_v2.py (layers that are handed no cache settings).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.dtypes import KvDtype, kv_dtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.backends import choose, indexer_backend, kernels_of
from kvcalc.engines.vllm.kernels import Backend, Query
from kvcalc.engines.vllm.settings import Settings

__all__ = [
    "Attention",
    "Used",
    "attention_of",
    "distinct_backends",
    "entry_bytes",
    "heeded_word",
    "packed_dtype",
]

_PACKED_AS = {"nvfp4_4over6": "nvfp4", "fp8_inc": "fp8_e4m3"}
"""vLLM's words for formats that are packed as another is."""


class Attention(NamedTuple):
    """An attention cache of the model, with the backend that reads it."""

    cache: Cache
    backend: Backend
    dtype: KvDtype
    query: Query | None


Used = dict[Cache, Attention]
"""A model's attention caches, each once, and how they are read."""


def packed_dtype(word: str, model_dtype: str) -> KvDtype:
    """Return the KV cache dtype that vLLM's word stands for."""
    return kv_dtype(_PACKED_AS.get(word, word), model_dtype)


def heeded_word(model: ModelSpec, settings: Settings, notes: list[str]) -> str:
    """Return the KV cache dtype that the model's layers heed.

    vLLM 0.33 models/falcon.py (and mimo_v2.py before 0.32) hands its attention layers no cache
    settings.
    """
    name = model.architecture or ""
    deaf = name == "FalconForCausalLM" or (
        name.startswith("MiMoV2") and not settings.rules.heeds_mimo_dtype
    )
    if deaf and settings.kv_dtype != "auto":
        notes.append(f"vLLM's {name} keeps its cache in {settings.dtype}, whatever is asked for")
        return "auto"
    return settings.kv_dtype


def attention_of(
    caches: Iterable[Cache], model: ModelSpec, share: ModelSpec, settings: Settings, word: str
) -> tuple[Used, str]:
    """Return how each attention cache is read, and the KV cache dtype that backends make of `word`.

    Args:
        caches: those of `share` that have rows, each once.
        model: the whole model.
        share: its layers as one tensor-parallel rank keeps them.
        settings: as resolved.
        word: the KV cache dtype that the layers heed, in vLLM's words.

    Raises:
        UnsupportedError: no backend serves one of them.
    """
    caches = list(caches)
    used: Used = {}
    for cache in caches:
        chosen = _attention(cache, model, share, settings, word)
        used[cache] = chosen
        if chosen.query is not None and chosen.query.mla:
            word = _canonical(chosen.backend.name, word)
    if word != settings.kv_dtype:
        used = {cache: _attention(cache, model, share, settings, word) for cache in caches}
    return used, word


def _canonical(backend: str, word: str) -> str:
    """Return the layout of their own that sparse MLA backends keep fp8 in.

    mla_attention.py, _canonicalize_sparse_mla_kv_cache_dtype.
    """
    if backend == "FLASHMLA_SPARSE" and word.startswith("fp8"):
        return "fp8_ds_mla"
    if backend == "FLASHINFER_MLA_SPARSE_SM120" and word in ("auto", "fp8", "fp8_e4m3"):
        return "fp8_ds_mla"
    return word


def _attention(
    cache: Cache, model: ModelSpec, share: ModelSpec, settings: Settings, word: str
) -> Attention:
    dtype = packed_dtype(word, share.dtype)
    if getattr(cache, "v_head_dim", None) and word not in ("auto", "bfloat16", "float16"):
        # Kernels for K and V of different sizes pack nothing: a byte an element, no scales.
        dtype = kv_dtype("fp8_e4m3", share.dtype)
    if isinstance(cache, Indexer):
        backend = indexer_backend(cache.compress_ratio, cache.index_dtype)
        return Attention(cache, backend, dtype, None)
    query = _query(cache, model, settings, word)
    if word.startswith("fp8_ds_mla") and not query.sparse:
        raise UnsupportedError(
            "fp8_ds_mla is a layout of sparse MLA caches", hint="choose --kv-cache-dtype fp8"
        )
    return Attention(cache, choose(query, settings.card, settings.attention_backend), dtype, query)


def _query(cache: Cache, model: ModelSpec, settings: Settings, word: str) -> Query:
    heads = model.num_attention_heads
    base = Query(
        head_size=1,
        head_size_v=1,
        dtype=settings.dtype,
        kv_dtype=word,
        block_size=settings.block_size,
        sinks="attention_sinks" in model.traits,
        image_prefix="image_prefix" in model.traits,
        alibi="alibi" in model.traits,
        context_parallel=settings.dcp > 1,
        query_heads=None if heads is None else heads // settings.tp,
        rules=settings.rules,
    )
    if isinstance(cache, Mla):
        size = cache.kv_lora_rank + cache.qk_rope_head_dim
        sparse = any(isinstance(c, Indexer) for _, c in model.caches())
        return base._replace(
            head_size=size,
            head_size_v=size,
            mla=True,
            sparse=sparse,
            sinks=False,
            image_prefix=False,
        )
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention, CrossAttention)):
        raise NotModelledError(
            f"vLLM's rules for {cache.kind} caches are not known",
            hint="use --engine none for the model's own arithmetic",
        )
    v = cache.head_dim if cache.v_head_dim is None else cache.v_head_dim
    return base._replace(
        head_size=cache.head_dim,
        head_size_v=v,
        window=isinstance(cache, SlidingWindow),
        cross=isinstance(cache, CrossAttention),
        kv_heads=cache.num_kv_heads,
    )


def distinct_backends(used: Used, settings: Settings) -> list[Backend]:
    """Return each backend once, with the blocks that it reads for the model's largest head.

    Block sizes are asked for by the model's head size, whatever a layer's own is.
    """
    largest = max(
        (a.query.head_size for a in used.values() if a.query is not None and not a.query.mla),
        default=0,
    )
    found: dict[str, Backend] = {}
    for a in used.values():
        name = a.backend.name
        if name in found:
            continue
        backend = a.backend
        if a.query is not None and not a.query.mla:
            query = a.query._replace(head_size=largest, head_size_v=largest)
            backend = backend._replace(kernels=kernels_of(name, query, settings.card))
        found[name] = backend
    return list(found.values())


def entry_bytes(a: Attention, settings: Settings) -> int:
    """Return bytes of one token of one layer."""
    rows = a.cache.rows()
    if settings.rules.pads_v and getattr(a.cache, "v_head_dim", None) is not None:
        return 2 * max(a.dtype.bytes_of(row) for row in rows)  # V is widened to K
    return sum(a.dtype.bytes_of(row) for row in rows)
