"""The one shape that all layers of a model have in TGI's cache.

models/flash_causal_lm.py (FlashCausalLM.__init__, warmup) and layers/attention/kv_cache.py
(KVCache) at db931fc: K and V of as many heads, each as wide as a K head.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.engines.every_token import Span, spans_of
from kvcalc.engines.tgi.settings import Settings

__all__ = ["Shape", "shape_of"]

_NOPE, _LATENT_V = 128, 128
"""Elements of a DeepSeek-V2 or V3 head without rotary position, and of its V, as published."""
_PADDED = 192
"""max(128 + 64, 128): get_model asks for `qk_nope_dim` and `qk_rope_dim`, which no config has, so
that the defaults hold."""


class Shape(NamedTuple):
    """One rank's layers.

    Attributes:
        heads: KV heads on a rank.
        width: elements of a head of K, and of V.
        payload: bytes of one token of one layer by role, padding left out.
        page_token_bytes: bytes of one token of one layer, padding included.
        spans: layers by how many tokens they read.
    """

    heads: int
    width: int
    payload: dict[str, int]
    page_token_bytes: int
    spans: tuple[Span, ...]


def shape_of(model: ModelSpec, settings: Settings, notes: list[str]) -> Shape:
    """Return the shape of a rank's layers.

    Raises:
        UnsupportedError: kinds of layers, or layers of different shapes, that TGI has no cache for;
            heads that it cannot split.
    """
    found: set[tuple[int, int, int]] = set()
    caches: list[tuple[int, Cache]] = []
    latent = False
    for count, cache in model.caches():
        match cache:
            case Mla():
                found.add(_latent_heads(model, cache))
                latent = True
            case FullAttention() | SlidingWindow():
                if cache.v_head_dim not in (None, cache.head_dim):
                    raise _refused(model, "V as wide as K")
                found.add((cache.num_kv_heads, cache.head_dim, cache.head_dim))
            case _:
                raise UnsupportedError(
                    f"TGI has no block cache for {cache.kind} layers",
                    hint="use --engine none to see what the layers are",
                )
        caches.append((count, cache))
    if len(found) != 1:
        raise _refused(model, "one shape for all layers")
    ((total, k, v),) = found
    width = max(_PADDED, v) if latent else k
    heads = _heads(model, total, settings)
    size = settings.element_bytes
    part = settings.block // size
    if settings.attention == "paged" and width % part:
        raise UnsupportedError(
            f"paged attention keeps K in parts of {part} elements and a head has {width}",
            hint="attention_backend: flashdecoding",
        )
    if latent:
        notes.append(
            f"MLA is kept decompressed: K of {k} and V of {v} elements a head, both in {width}"
        )
    return Shape(
        heads=heads,
        width=width,
        payload={"k": heads * k * size, "v": heads * v * size},
        page_token_bytes=2 * heads * width * size,
        spans=spans_of(caches),
    )


def _latent_heads(model: ModelSpec, cache: Mla) -> tuple[int, int, int]:
    if model.num_attention_heads is None or cache.qk_rope_head_dim != _PADDED - _NOPE:
        raise NotModelledError(
            f"TGI keeps MLA decompressed, and {model.name}'s heads are not known",
            hint="use --engine none to see what the layers are",
        )
    return model.num_attention_heads, _NOPE + cache.qk_rope_head_dim, _LATENT_V


def _heads(model: ModelSpec, total: int, settings: Settings) -> int:
    """Return a rank's KV heads: the total divided and rounded down, a single one replicated.

    FlashCausalLM rounds down. What does not divide fails all the same: in the model's own code
    (flash_llama_modeling.py and others) or when the weights are split (weights.py, get_sharded).
    """
    tp = settings.tp
    if model.num_attention_heads is not None:
        divide(model.num_attention_heads, tp, "attention heads")
    if tp == 1 or (total == 1 and settings.served.replicates):
        return total
    if total // tp == 0:
        raise UnsupportedError(
            f"TGI rounds {total} KV heads over {tp} ranks down to none and refuses that",
            hint=f"choose at most {total} ranks; TGI does not repeat heads",
        )
    return divide(total, tp, "KV heads")


def _refused(model: ModelSpec, wanted: str) -> UnsupportedError:
    return UnsupportedError(
        f"TGI's blocks have {wanted}, and {model.name} has not",
        hint="use --engine none to see what its layers are",
    )
