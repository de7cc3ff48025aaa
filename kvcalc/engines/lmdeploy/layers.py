"""The layers of a model as LMDeploy's block caches see them: one shape for all, and their spans."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import (
    ChunkedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide, split_heads
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.engines.every_token import Span, spans_of

__all__ = ["Shape", "shape_of", "split"]


class Shape(NamedTuple):
    """One rank's block layers.

    Attributes:
        heads, k, v: KV heads and elements of a head's K and V; V is 0 where it is part of K.
        latent: MLA layers.
        index_width: elements of a sparse indexer's key; 0 where there is none.
        index_layers: layers that keep such a key.
        spans: the block layers by how many tokens they read.
    """

    heads: int
    k: int
    v: int
    latent: bool
    index_width: int
    index_layers: int
    spans: tuple[Span, ...]

    @property
    def layers(self) -> int:
        """Layers that keep blocks."""
        return sum(count for count, _, _ in self.spans)


def split(model: ModelSpec, tp: int) -> ModelSpec:
    """Return what one of tp ranks keeps.

    Query heads must divide; KV heads divide, or are repeated evenly where ranks are more (LMDeploy
    0.18 pytorch/configurations/builder.py, update_num_kv_heads; config.py, ModelConfig).

    Raises:
        UnsupportedError: heads that do not.
    """
    if tp == 1:
        return model
    if model.num_attention_heads is not None:
        divide(model.num_attention_heads, tp, "attention heads")
    return model.on_rank(tp, split_heads)


def shape_of(model: ModelSpec) -> Shape:
    """Return the one shape of all layers that keep rows.

    Raises:
        UnsupportedError: kinds of layers that are not modelled, or layers of different shapes.
    """
    shapes: set[tuple[int, int, int, bool]] = set()
    kept: list[tuple[int, Cache]] = []
    width = indexed = 0
    for count, cache in model.caches():
        match cache:
            case Mla():
                shapes.add((1, cache.kv_lora_rank + cache.qk_rope_head_dim, 0, True))
            case FullAttention() | SlidingWindow() | ChunkedAttention():
                if cache.v_head_dim not in (None, cache.head_dim):
                    raise _unlike(model, "V as wide as K")
                shapes.add((cache.num_kv_heads, cache.head_dim, cache.head_dim, False))
            case Indexer(compress_ratio=1):
                width, indexed = cache.index_head_dim, indexed + count
                continue
            case _ if cache.states() and not cache.rows():
                continue
            case _:
                raise NotModelledError(
                    f"how LMDeploy keeps {cache.kind} caches is not modelled",
                    hint="use --engine none to see what the layers are",
                )
        kept.append((count, cache))
    if len(shapes) != 1:
        raise _unlike(model, "one shape for all layers")
    ((heads, k, v, latent),) = shapes
    return Shape(
        heads=heads,
        k=k,
        v=v,
        latent=latent,
        index_width=width,
        index_layers=indexed,
        spans=spans_of(kept),
    )


def _unlike(model: ModelSpec, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"LMDeploy's block caches have {wanted}, and {model.name} has not",
        hint="use --engine none to see what its layers are",
    )
