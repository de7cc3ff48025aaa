"""Attention backends for K and V by head: what each refuses and which blocks its kernels read.

vLLM 0.33 v1/attention/backends/{flashinfer,triton_attn,flex_attention,turboquant_attn}.py and the
composites triton_flash_attn.py and triton_flashinfer.py.
"""

from __future__ import annotations

from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.flash_attention import flash_kernels, flash_refuses
from kvcalc.engines.vllm.kernels import (
    BLACKWELL,
    BLACKWELL_CONSUMER,
    FP8,
    HOPPER,
    PLAIN,
    Kernel,
    Known,
    Query,
    multiples_of,
    sizes,
)

__all__ = ["HEAD_BACKENDS"]

_PER_TOKEN_HEAD = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
_AMPERE = 8
_FLASHINFER_HEADS = (64, 128, 256, 512)
_SMALL_HEAD = 64  # whose NVFP4 rows FlashInfer's older kernels misread
_COMPOSITE_HEADS = (256, 512)
_TRITON_LEAST_HEAD = 32


def _flashinfer_refuses(query: Query, card: Card) -> str | None:
    if not (8, 0) <= card.capability <= (12, 1):
        return "compute capability not supported"
    if query.head_size not in _FLASHINFER_HEADS:
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.quantized and not _flashinfer_reads(query, card):
        return "kv_cache_dtype not supported"
    if query.image_prefix:
        return "partial multimodal token full attention not supported"
    if query.cross:
        return "attention type not supported"
    if query.sinks and card.family not in (HOPPER, BLACKWELL, BLACKWELL_CONSUMER):
        return "attention sinks not supported"
    return None


def _flashinfer_reads(query: Query, card: Card) -> bool:
    if not query.kv_dtype.startswith("nvfp4"):
        return query.kv_dtype in (*FP8, "fp8_e5m2")
    if card.family == BLACKWELL:
        return True
    older = card.family in (_AMPERE, HOPPER, BLACKWELL_CONSUMER)
    plain = query.kv_dtype == "nvfp4" and query.head_size != _SMALL_HEAD and not query.sinks
    return older and plain


def _flashinfer_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    read: tuple[int, ...] = (16, 32, 64)
    heads, kv_heads = query.query_heads, query.kv_heads
    grouped = heads is not None and heads // kv_heads > 1 and heads % kv_heads == 0
    if card.family == BLACKWELL and grouped:
        read = (16, 32, 64, 128, 256, 512, 1024)
    return tuple(Kernel(size) for size in read)


def _triton_refuses(query: Query, card: Card) -> str | None:
    del card  # every card; fp8 on old ones fails later, see `choose`
    known = (*PLAIN, *FP8, "fp8_e5m2", *_PER_TOKEN_HEAD)
    if query.kv_dtype not in known:
        return "kv_cache_dtype not supported"
    return "head_size not supported" if query.head_size < _TRITON_LEAST_HEAD else None


def _flex_refuses(query: Query, card: Card) -> str | None:
    del card
    if query.quantized:
        return "kv_cache_dtype not supported"
    if query.sinks:
        return "attention sinks not supported"
    return "attention type not supported" if query.cross else None


def _turboquant_refuses(query: Query, card: Card) -> str | None:
    del card
    if not query.kv_dtype.startswith("turboquant_"):
        return "kv_cache_dtype not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.window or query.sinks or query.image_prefix or query.cross:
        return "sliding window, sinks and image prefixes not supported"
    return None


def _triton_flash_refuses(query: Query, card: Card) -> str | None:
    composed = query.head_size in _COMPOSITE_HEADS and not query.context_parallel
    if card.family != HOPPER or not composed:
        return "not supported"
    causal = flash_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


def _triton_flashinfer_refuses(query: Query, card: Card) -> str | None:
    if (
        card.family != BLACKWELL
        or query.head_size not in _COMPOSITE_HEADS
        or query.context_parallel
    ):
        return "not supported"
    causal = _flashinfer_refuses(query._replace(image_prefix=False), card)
    return causal or _triton_refuses(query, card)


HEAD_BACKENDS: dict[str, Known] = {
    "FLASH_ATTN": Known(flash_refuses, flash_kernels),
    "FLASHINFER": Known(_flashinfer_refuses, _flashinfer_kernels),
    "TRITON_ATTN": Known(_triton_refuses, multiples_of(16)),
    "FLEX_ATTENTION": Known(_flex_refuses, multiples_of(16)),
    "TURBOQUANT": Known(_turboquant_refuses, sizes(16, 32, 64, 128)),
    "TRITON_FLASH_ATTN": Known(_triton_flash_refuses, flash_kernels),
    "TRITON_FLASHINFER": Known(_triton_flashinfer_refuses, sizes(64)),
    "FLASH_ATTN_DIFFKV": Known(flash_refuses, multiples_of(16)),
    "TRITON_ATTN_DIFFKV": Known(_triton_refuses, multiples_of(16)),
}
"""By vLLM's name."""
