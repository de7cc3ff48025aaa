"""Attention backends for MLA, dense and sparse: what each refuses, which blocks its kernels read.

vLLM 0.33 v1/attention/backends/mla/*.py.
"""

from __future__ import annotations

from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.kernels import (
    BLACKWELL,
    BLACKWELL_CONSUMER,
    FP8,
    HOPPER,
    PLAIN,
    Known,
    Query,
    Refusal,
    multiples_of,
    sizes,
)

__all__ = ["LATENT_BACKENDS"]

_WITH_FP8 = (*PLAIN, *FP8)
_LATENTS = (512, 576)  # without and with a rotary part of 64
_FA4_HEADS = (8, 16, 32, 64, 128)


def _dense_mla(families: tuple[int, ...], dtypes: tuple[str, ...]) -> Refusal:
    def refuses(query: Query, card: Card) -> str | None:
        if query.sparse:
            return "sparse not supported"
        if families and card.family not in families:
            return "compute capability not supported"
        if query.dtype == "float32":
            return "dtype not supported"
        return None if query.kv_dtype in dtypes else "kv_cache_dtype not supported"

    return refuses


def _sparse_mla(
    families: tuple[int, ...],
    dtypes: tuple[str, ...],
    more: Refusal | None = None,
) -> Refusal:
    def refuses(query: Query, card: Card) -> str | None:
        if not query.sparse:
            return "non-sparse not supported"
        if card.family not in families:
            return "compute capability not supported"
        if query.dtype != "bfloat16" and "float16" not in dtypes:
            return "dtype not supported"
        if query.kv_dtype not in dtypes:
            return "kv_cache_dtype not supported"
        return more(query, card) if more else None

    return refuses


def _no_context_parallel(query: Query, card: Card) -> str | None:
    del card
    return "DCP not supported" if query.context_parallel else None


def _flashmla_sparse(query: Query, card: Card) -> str | None:
    if query.head_size not in _LATENTS:
        return "head_size not supported"
    if query.kv_dtype == "nvfp4_ds_mla" and card.family != BLACKWELL:
        return "nvfp4_ds_mla needs Blackwell"
    return None


def _few_heads(query: Query, card: Card) -> str | None:
    del card
    if query.query_heads not in _FA4_HEADS or query.head_size != _LATENTS[1]:
        return "head count not supported"
    return None


def _latent_576(query: Query, card: Card) -> str | None:
    del card
    return None if query.head_size in _LATENTS else "head_size not supported"


LATENT_BACKENDS: dict[str, Known] = {
    "FLASH_ATTN_MLA": Known(_dense_mla((HOPPER,), PLAIN), multiples_of(16)),
    "FLASHMLA": Known(_dense_mla((HOPPER,), _WITH_FP8), sizes(64)),
    "FLASHINFER_MLA": Known(_dense_mla((BLACKWELL,), _WITH_FP8), sizes(32, 64)),
    "CUTLASS_MLA": Known(_dense_mla((BLACKWELL,), _WITH_FP8), sizes(128)),
    "TRITON_MLA": Known(_dense_mla((), _WITH_FP8), multiples_of(16)),
    "FLASH_ATTN_MLA_SPARSE": Known(
        _sparse_mla((HOPPER,), PLAIN, _no_context_parallel), multiples_of(64)
    ),
    "FLASHMLA_SPARSE": Known(
        _sparse_mla(
            (HOPPER, BLACKWELL),
            ("auto", "bfloat16", "fp8_ds_mla", "fp8", "nvfp4_ds_mla"),
            _flashmla_sparse,
        ),
        multiples_of(64),
    ),
    "FLASHINFER_MLA_SPARSE_SM90": Known(
        _sparse_mla((HOPPER,), ("auto", "bfloat16", *FP8), _latent_576), multiples_of(64)
    ),
    "FLASHINFER_MLA_SPARSE": Known(
        _sparse_mla((BLACKWELL,), _WITH_FP8, _latent_576), multiples_of(32)
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": Known(
        _sparse_mla((BLACKWELL,), ("auto", "bfloat16"), _few_heads), multiples_of(64)
    ),
    "FLASHINFER_MLA_SPARSE_SM120": Known(
        _sparse_mla((BLACKWELL_CONSUMER,), ("auto", *FP8, "fp8_ds_mla"), _latent_576),
        multiples_of(64),
    ),
}
"""By vLLM's name."""
