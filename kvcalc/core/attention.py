"""Caches of attention layers: rows that are kept for tokens. One class a kind."""

from __future__ import annotations

from typing import Self

import msgspec

from kvcalc.core.dtypes import Row, cache_dtype
from kvcalc.core.kind import (
    All,
    CacheBase,
    Chunks,
    EveryNth,
    HeadSplit,
    Once,
    Span,
    StateTensor,
    Windowed,
    split_heads,
)
from kvcalc.core.units import format_number_of
from kvcalc.core.values import NonNegative, Positive, require_range

__all__ = [
    "ChunkedAttention",
    "CompressedAttention",
    "CrossAttention",
    "FullAttention",
    "Indexer",
    "Mla",
    "SharedKv",
    "SlidingMla",
    "SlidingWindow",
]


class _Replicated(CacheBase, frozen=True, kw_only=True):
    """A cache that every tensor-parallel rank keeps whole."""

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return self


class _PerHead(CacheBase, frozen=True, kw_only=True):
    """K and V for each KV head."""

    num_kv_heads: Positive
    head_dim: Positive
    v_head_dim: NonNegative | None = None

    def __post_init__(self) -> None:
        require_range(self, 1, "num_kv_heads", "head_dim")
        require_range(self, 0, "v_head_dim", optional=True)

    def rows(self) -> tuple[Row, ...]:
        v = self.head_dim if self.v_head_dim is None else self.v_head_dim
        k_row = Row(role="k", width=self.head_dim, count=self.num_kv_heads)
        return (k_row, Row(role="v", width=v, count=self.num_kv_heads)) if v else (k_row,)

    def on_rank(self, tp: int, split: HeadSplit = split_heads) -> Self:
        return msgspec.structs.replace(self, num_kv_heads=split(self.num_kv_heads, tp))

    def replicas(self, tp: int) -> int:
        return max(1, tp // self.num_kv_heads)

    def describe(self) -> str:
        width = f"{self.head_dim}"
        if self.v_head_dim not in (None, self.head_dim):
            width += f" (V {self.v_head_dim})" if self.v_head_dim else " (K only)"
        return f"{format_number_of(self.num_kv_heads, 'KV head')} x {width}"


class FullAttention(_PerHead, frozen=True, kw_only=True, tag="full_attention"):
    """K and V of every token: multi-head, grouped-query and multi-query attention.

    `v_head_dim` is given where V is narrower or wider than K; 0 where one vector is both.

    >>> [r.role for r in FullAttention(num_kv_heads=8, head_dim=128).rows()]
    ['k', 'v']
    """


class SlidingWindow(_PerHead, frozen=True, kw_only=True, tag="sliding_window"):
    """K and V of the last `sliding_window` tokens."""

    sliding_window: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, "sliding_window")

    @property
    def span(self) -> Span:
        return Windowed(tokens=self.sliding_window)


class ChunkedAttention(_PerHead, frozen=True, kw_only=True, tag="chunked_attention"):
    """K and V of the tokens since the last multiple of `attention_chunk_size` (Llama 4)."""

    attention_chunk_size: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, "attention_chunk_size")

    @property
    def span(self) -> Span:
        return Chunks(tokens=self.attention_chunk_size)


class CrossAttention(_PerHead, frozen=True, kw_only=True, tag="cross_attention"):
    """K and V of an encoder's output, written once a sequence."""

    encoder_tokens: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, "encoder_tokens")

    @property
    def span(self) -> Span:
        return Once(tokens=self.encoder_tokens)


class Mla(_Replicated, frozen=True, kw_only=True, tag="mla"):
    """Multi-head latent attention: one latent and one rotary key for all heads, on every rank."""

    kv_lora_rank: Positive
    qk_rope_head_dim: NonNegative

    def __post_init__(self) -> None:
        require_range(self, 1, "kv_lora_rank")
        require_range(self, 0, "qk_rope_head_dim")

    def rows(self) -> tuple[Row, ...]:
        latent = Row(role="latent", width=self.kv_lora_rank)
        if not self.qk_rope_head_dim:
            return (latent,)
        return (latent, Row(role="rope", width=self.qk_rope_head_dim))

    def describe(self) -> str:
        return f"latent {self.kv_lora_rank} + rope {self.qk_rope_head_dim}"


class _SingleVector(_Replicated, frozen=True, kw_only=True):
    """One vector that is K and V at once, its last `qk_rope_head_dim` elements rotary."""

    head_dim: Positive
    qk_rope_head_dim: NonNegative

    def __post_init__(self) -> None:
        require_range(self, 1, "head_dim")
        require_range(self, 0, "qk_rope_head_dim", high=self.head_dim - 1)

    def rows(self) -> tuple[Row, ...]:
        nope = Row(role="nope", width=self.head_dim - self.qk_rope_head_dim)
        if not self.qk_rope_head_dim:
            return (nope,)
        return (nope, Row(role="rope", width=self.qk_rope_head_dim))

    def describe(self) -> str:
        return f"entry {self.head_dim}, rope {self.qk_rope_head_dim} of it"


class SlidingMla(_SingleVector, frozen=True, kw_only=True, tag="sliding_mla"):
    """The raw entries of the last `sliding_window` tokens (DeepSeek-V4)."""

    sliding_window: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, "sliding_window")

    @property
    def span(self) -> Span:
        return Windowed(tokens=self.sliding_window)


def _compressor_states(ratio: int, width: int, *, overlap: bool) -> tuple[StateTensor, ...]:
    """Return the entries and scores that wait to be folded; llama.cpp b11434, llama_kv_cache_dsv4.

    An overlapping compressor looks at two windows with two projections, hence both factors.
    """
    spread = 2 if overlap else 1
    shape = (2, spread * ratio, spread * width)
    return (StateTensor(role="compressor", shape=shape, dtype="float32"),)


class CompressedAttention(_SingleVector, frozen=True, kw_only=True, tag="compressed_attention"):
    """One entry for every `compress_ratio` tokens, and the window being folded (DeepSeek-V4).

    `overlap`: neighbouring windows overlap, which doubles the waiting window and its width.
    """

    compress_ratio: Positive
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range(self, 1, "compress_ratio")

    @property
    def span(self) -> Span:
        return EveryNth(ratio=self.compress_ratio)

    def states(self) -> tuple[StateTensor, ...]:
        return _compressor_states(self.compress_ratio, self.head_dim, overlap=self.overlap)


class Indexer(_Replicated, frozen=True, kw_only=True, tag="indexer"):
    """A sparse-attention indexer's key: one vector a token (or one for every `compress_ratio`).

    `index_dtype` is how the model's published reference stores it, whatever the KV dtype:
    `fp8_block128` (128 fp8 and one fp32 scale: 132 B) for DeepSeek-V3.2 and GLM-5.
    """

    index_head_dim: Positive
    index_dtype: str = "fp8_block128"
    compress_ratio: Positive = 1
    overlap: bool = False

    def __post_init__(self) -> None:
        require_range(self, 1, "index_head_dim", "compress_ratio")
        cache_dtype(self.index_dtype)

    def rows(self) -> tuple[Row, ...]:
        return (Row(role="index", width=self.index_head_dim, dtype=self.index_dtype),)

    @property
    def span(self) -> Span:
        return All() if self.compress_ratio == 1 else EveryNth(ratio=self.compress_ratio)

    def states(self) -> tuple[StateTensor, ...]:
        if self.compress_ratio == 1:
            return ()
        return _compressor_states(self.compress_ratio, self.index_head_dim, overlap=self.overlap)

    def describe(self) -> str:
        return f"index key {self.index_head_dim} ({self.index_dtype})"


class SharedKv(_Replicated, frozen=True, kw_only=True, tag="shared_kv"):
    """Nothing of its own: the layer reads the K and V that another layer keeps.

    `source_layer` is that layer's index where the model says it (Gemma-3n, YOCO, cross-layer
    attention).
    """

    source_layer: NonNegative | None = None

    def __post_init__(self) -> None:
        require_range(self, 0, "source_layer", optional=True)

    def replicas(self, tp: int) -> int:
        return 1

    def describe(self) -> str:
        source = "another layer" if self.source_layer is None else f"layer {self.source_layer}"
        return f"reads {source}"
