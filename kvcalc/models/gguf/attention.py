"""What an attention layer keeps: KV heads and head dims by layer, latents, indexers.

llama.cpp b11434: `src/llama-model.cpp` (llama_model_base::load_hparams) for heads and dims,
`src/llama-kv-cache.cpp` (llama_kv_cache) for the rows, `src/llama-hparams.cpp` for both.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.layers import Cache
from kvcalc.models.gguf.fields import Fields

__all__ = ["INDEX_DTYPE", "Block", "Heads", "Latent", "indexer", "shared_kv"]

INDEX_DTYPE = "float16"
"""llama.cpp keeps an indexer's keys in the cache type of K, which is f16 unless it is set."""


class Block(NamedTuple):
    """What one layer keeps, and why where the caches alone do not tell."""

    caches: tuple[Cache, ...]
    note: str = ""


class Heads:
    """KV heads and head dims of every layer.

    `key_length` and `value_length` hold for all layers, else embedding / heads of the first
    layer; sliding layers may have dims of their own (`key_length_swa`).

    Attributes:
        query: query heads by layer.
        kv: KV heads by layer; as many as query heads where the file does not say.
    """

    def __init__(self, fields: Fields, *, without_heads: bool = False) -> None:
        """Read the keys.

        Args:
            fields: the file's keys.
            without_heads: whether the rule reads key_length and value_length even where the first
                layer has no heads (plamo2). For others llama.cpp then takes both as 0.

        Raises:
            InputError: a key is missing or senseless.
        """
        self._fields = fields
        self.query = fields.numbers("attention.head_count", fields.blocks)
        self.kv = fields.numbers("attention.head_count_kv", fields.blocks, default=self.query)
        if not (self.query[0] or without_heads):
            raise fields.senseless("the first layer has no heads, so llama.cpp gives none any dims")
        self.k = self._dim("key_length", self.query[0])
        self.v = self._dim("value_length", self.query[0])
        self.k_swa = fields.number("attention.key_length_swa", default=self.k)
        self.v_swa = fields.number("attention.value_length_swa", default=self.v)

    def full(self, layer: int) -> tuple[Cache, ...]:
        """Return the cache of a layer that keeps every token; none without KV heads."""
        if not self.kv[layer]:
            return ()
        return (FullAttention(num_kv_heads=self.kv[layer], head_dim=self.k, v_head_dim=self._v),)

    def sliding(self, layer: int, window: int) -> tuple[Cache, ...]:
        """Return the cache of a layer that keeps the last `window` tokens; of all where it is 0."""
        if not (window and self.kv[layer]):
            return self.full(layer)
        return (
            SlidingWindow(
                num_kv_heads=self.kv[layer],
                head_dim=self.k_swa,
                v_head_dim=None if self.v_swa == self.k_swa else self.v_swa,
                sliding_window=window,
            ),
        )

    def chunked(self, layer: int, chunk: int) -> tuple[Cache, ...]:
        """Return the cache of a layer that keeps chunks of `chunk` tokens; of all where it is 0."""
        if not (chunk and self.kv[layer]):
            return self.full(layer)
        return (
            ChunkedAttention(
                num_kv_heads=self.kv[layer],
                head_dim=self.k_swa,
                v_head_dim=None if self.v_swa == self.k_swa else self.v_swa,
                attention_chunk_size=chunk,
            ),
        )

    @property
    def _v(self) -> int | None:
        return None if self.v == self.k else self.v

    def _dim(self, name: str, heads: int) -> int:
        if self._fields.has(f"attention.{name}"):
            return self._fields.number(f"attention.{name}")
        if not heads:
            raise self._fields.missing(f"attention.{name}")
        embedding = self._fields.number("embedding_length")
        if embedding % heads:
            raise self._fields.senseless(
                f"an embedding of {embedding} does not divide by {heads} heads, and the file has"
                f" no attention.{name}"
            )
        return embedding // heads


class Latent:
    """Multi-head latent attention: K alone is kept, a latent and the rotary part behind it.

    The row is `key_length` wide, of which `kv_lora_rank` is the latent; `key_length_mla` and
    `value_length_mla` say that the file is meant so (llama_hparams::is_mla).
    """

    def __init__(self, fields: Fields) -> None:
        """Read the keys.

        Raises:
            InputError: a key is missing or senseless.
        """
        self._fields = fields
        for name in ("attention.key_length_mla", "attention.value_length_mla"):
            fields.number(name)
        self._kv = fields.numbers("attention.head_count_kv", fields.blocks)
        self._row = fields.number("attention.key_length")
        self._rank = fields.number("attention.kv_lora_rank", high=self._row)

    @staticmethod
    def described(fields: Fields) -> bool:
        """Whether the file keeps latents; files of before 2025 keep K and V of every head.

        Raises:
            InputError: only one of the two keys is there.
        """
        names = ("attention.key_length_mla", "attention.value_length_mla")
        present = [name for name in names if fields.has(name)]
        if len(present) == 1:
            raise fields.missing(next(name for name in names if name not in present))
        return bool(present)

    def cache(self, layer: int) -> Mla:
        """Return the latent of a layer.

        Raises:
            InputError: the layer has not exactly one KV head.
        """
        self._check_heads(layer)
        return Mla(kv_lora_rank=self._rank, qk_rope_head_dim=self._row - self._rank)

    def sliding(self, layer: int, window: int) -> SlidingMla:
        """Return the latent of a layer that keeps the last `window` tokens, in its own dims."""
        self._check_heads(layer)
        row = self._fields.number("attention.key_length_swa", default=self._row)
        rank = self._fields.number("attention.kv_lora_rank_swa", high=row)
        return SlidingMla(head_dim=row, qk_rope_head_dim=row - rank, sliding_window=window)

    def _check_heads(self, layer: int) -> None:
        if self._kv[layer] != 1:
            raise self._fields.senseless(
                f"layer {layer} keeps a latent for {self._kv[layer]} KV heads, not one"
            )


def indexer(fields: Fields, *, times: int = 1) -> Indexer:
    """Return the key of a sparse-attention indexer: one head, K only (llama_kv_cache_dsa).

    `times`: rows that llama_memory_hybrid_idx keeps side by side for an indexer that pools keys.
    """
    width = fields.number("attention.indexer.key_length")
    return Indexer(index_head_dim=times * width, index_dtype=INDEX_DTYPE)


def shared_kv(source: int) -> tuple[Cache, ...]:
    """Return the cache of a layer that reads what layer `source` keeps."""
    return (SharedKv(source_layer=source),)
