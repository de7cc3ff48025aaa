"""What LMCache stores of a token: the rows of every attention layer, as vLLM's cache holds them."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.dtypes import KvDtype
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec

__all__ = ["Stored", "shard", "stored_of"]

_PLAIN = ("float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8")


class Stored(NamedTuple):
    """One worker's layers.

    Attributes:
        payload: bytes of a token by role, all layers.
        sizes: (layers, bytes of a token of one of them).
        windows: some layers have a window or a chunk.
        latent: the model is one of latent attention.
    """

    payload: dict[str, int]
    sizes: tuple[tuple[int, int], ...]
    windows: bool
    latent: bool

    @property
    def layers(self) -> int:
        """Layers whose rows are stored; a layer with an indexer counts once for each cache."""
        return sum(count for count, _ in self.sizes)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token of all layers."""
        return sum(self.payload.values())


def shard(model: ModelSpec, tp: int, pp: int) -> tuple[ModelSpec, ...]:
    """Return what a worker of each pipeline stage keeps, as vLLM splits the model.

    Raises:
        UnsupportedError: heads or layers that cannot be split so.
    """
    return model.on_rank(tp).stages(pp)


def stored_of(model: ModelSpec, dtype: KvDtype) -> Stored:
    """Return what is stored of one worker's layers.

    metadata.py, get_shapes: [1 or 2, layers, tokens, heads x width] for every group of layers of
    one shape.

    Raises:
        UnsupportedError: layers or dtypes whose chunks are not modelled.
    """
    if dtype.k != dtype.v or dtype.k.name not in _PLAIN:
        raise NotModelledError(
            f"how LMCache stores a cache in {dtype.name} is not modelled",
            hint=f"use {', '.join(_PLAIN)}",
        )
    payload: dict[str, int] = {}
    sizes: list[tuple[int, int]] = []
    windows = latent = False
    for count, cache in model.caches():
        match cache:
            case FullAttention() | SlidingWindow() | ChunkedAttention() | Mla():
                windows = windows or isinstance(cache, (SlidingWindow, ChunkedAttention))
                latent = latent or isinstance(cache, Mla)
            case Indexer(compress_ratio=1):
                pass
            case _ if not cache.rows() and not cache.states():
                continue
            case _:
                raise NotModelledError(
                    f"how LMCache stores {cache.kind} caches is not modelled",
                    hint="models of attention layers alone are",
                )
        size = 0
        for row in cache.rows():
            bytes_ = dtype.bytes_of(row)
            payload[row.role] = payload.get(row.role, 0) + count * bytes_
            size += bytes_
        sizes.append((count, size))
    if not sizes:
        raise UnsupportedError(
            f"LMCache stores nothing of {model.name}: its layers keep no rows",
            hint="use --engine none to see what its layers are",
        )
    return Stored(payload, tuple(sizes), windows, latent)
