"""The layers of a model as MLC-LLM's paged cache and its RNN state keep them.

TVM src/runtime/vm/attn_utils.h, GetKVCacheShape, and rnn_state.cc, as MLC-LLM 79d603f builds them.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines.every_token import Span, spans_of
from kvcalc.engines.mlc_llm.models import Compiled

__all__ = ["Shape", "States", "shape_of", "states_of"]


class Shape(NamedTuple):
    """One rank's layers.

    Attributes:
        heads, query_heads: KV heads and query heads on a rank.
        head_dim: elements of a head of K; of the whole latent row in MLA.
        latent: K and V are one row.
        spans: layers by how many tokens they read.
        window: the one window of the whole cache; None where it has none.
    """

    heads: int
    query_heads: int
    head_dim: int
    latent: bool
    spans: tuple[Span, ...]
    window: int | None

    @property
    def layers(self) -> int:
        """Layers that keep pages."""
        return sum(span.layers for span in self.spans)

    def payload(self, size: int) -> dict[str, int]:
        """Return the bytes of one token of one layer, by role, at `size` bytes an element."""
        row = self.heads * self.head_dim * size
        return {"latent": row} if self.latent else {"k": row, "v": row}


class States(NamedTuple):
    """What the layers with states keep of one sequence, by role, in bytes."""

    layers: int
    payload: dict[str, int]


def shape_of(model: ModelSpec, found: Compiled, tp: int) -> Shape:
    """Return the one shape of all layers that keep pages.

    Raises:
        UnsupportedError: kinds of layers, or layers of different shapes, that the cache has not;
            heads that cannot be split.
    """
    (total, width, latent), spans = _one_shape(model)
    if model.num_attention_heads is None:
        raise _refused(model, "a known number of query heads")
    if tp > 1 and not found.splits:
        raise UnsupportedError(
            f"MLC-LLM does not split {model.architecture} models over ranks",
            hint="use tensor_parallel_size 1",
        )
    limits = {span.limit for span in spans}
    window = None
    if found.windows == "whole" and limits != {None}:
        if len(limits) > 1:
            raise _refused(model, "one window for all layers")
        (window,) = limits
    return Shape(
        heads=total if latent else divide(total, tp, "KV heads"),
        query_heads=divide(model.num_attention_heads, tp, "attention heads"),
        head_dim=width,
        latent=latent,
        spans=spans,
        window=window,
    )


def _one_shape(model: ModelSpec) -> tuple[tuple[int, int, bool], tuple[Span, ...]]:
    """Return (KV heads, elements of a row, it is a latent) and the spans of the layers."""
    shapes: set[tuple[int, int, bool]] = set()
    caches: list[tuple[int, Cache]] = []
    for count, cache in model.caches():
        match cache:
            case Mla():
                shapes.add((1, cache.kv_lora_rank + cache.qk_rope_head_dim, True))
            case FullAttention() | SlidingWindow() | ChunkedAttention():
                if cache.v_head_dim not in (None, cache.head_dim):
                    raise _refused(model, "V as wide as K")
                shapes.add((cache.num_kv_heads, cache.head_dim, False))
            case GatedDeltaNet():
                continue
            case _:
                raise UnsupportedError(
                    f"MLC-LLM's paged cache has no {cache.kind} layers",
                    hint="use --engine none to see what the layers are",
                )
        caches.append((count, cache))
    if len(shapes) != 1:
        raise _refused(model, "one shape for all layers")
    return next(iter(shapes)), spans_of(caches)


def states_of(model: ModelSpec) -> States | None:
    """Return what a sequence keeps in states; None where no layer has any.

    qwen35_model.py, create_rnn_state: the recurrent state in float32, the convolution's window in
    the dtype that the model is compiled to.
    """
    layers, payload = 0, dict[str, int]()
    for count, cache in model.caches():
        if isinstance(cache, GatedDeltaNet):
            layers += count
            for state in cache.states():
                size = element_bytes("float32" if state.role == "recurrent" else model.dtype)
                bytes_ = count * state.elements * size
                payload[state.role] = payload.get(state.role, 0) + bytes_
    return States(layers, payload) if layers else None


def _refused(model: ModelSpec, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"MLC-LLM's paged cache has {wanted}, and {model.name} has not",
        hint="use --engine none to see what its layers are",
    )
