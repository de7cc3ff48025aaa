"""FlashAttention: which of its versions serves a head, and what that version can read.

vLLM 0.33 v1/attention/backends/flash_attn.py (FlashAttentionBackend) and fa_utils.py
(get_flash_attn_version): version 3 on Hopper, 4 on Blackwell, 2 elsewhere, with exceptions by head.
"""

from __future__ import annotations

from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.kernels import BLACKWELL, FP8, HOPPER, Kernel, Query

__all__ = ["flash_kernels", "flash_reads_fp8", "flash_refuses", "flash_version"]

_FA4_PAGE = 128  # tokens of a page that version 4's kernel for heads of 256 reads
_HOPPER_FP8_PAGE = 64
_V2, _V3, _V4 = 2, 3, 4
_WIDE_HEAD = 128  # above it Blackwell's tensor memory is short, but for the sizes below
_HEAD_256 = 256
_HEAD_512 = 512
_MLA_PREFILL = (192, 128)  # sizes of K and V


def flash_version(query: Query, card: Card, *, diff_kv: bool = False) -> int | None:
    """Return the FlashAttention version that a head gets; None where there is none.

    v1/attention/backends/fa_utils.py, get_flash_attn_version.
    """
    head = query.head_size
    if card.capability < (8, 0):
        return None
    if card.family == HOPPER:
        if query.alibi:
            return _V2
        return _V4 if head > _HEAD_256 or (diff_kv and query.sinks) else _V3
    if card.family == BLACKWELL:
        if query.alibi:
            return _V2
        if head == _HEAD_256 and not diff_kv:
            plain = not (query.sinks or query.quantized or query.image_prefix)
            whole = query.block_size is None or query.block_size % _FA4_PAGE == 0
            return _V4 if plain and whole and not query.context_parallel else _V2
        if head > _WIDE_HEAD and (head, query.head_size_v) != _MLA_PREFILL:
            return _V2
        return _V4
    return _V2


def flash_reads_fp8(query: Query, card: Card) -> bool:
    """Whether the version that a head gets reads fp8 rows (flash_attn_supports_kv_cache_dtype)."""
    version = flash_version(query._replace(head_size_v=query.head_size), card)
    if card.family == HOPPER:
        return version == _V3 or (version == _V4 and query.head_size == _HEAD_512)
    return card.family == BLACKWELL and version == _V4


def flash_refuses(query: Query, card: Card) -> str | None:
    """Say why FlashAttention cannot serve a query (validate_configuration)."""
    has_fa4 = card.family in (HOPPER, BLACKWELL)
    if card.capability < (8, 0):
        return "compute capability not supported"
    if query.head_size % 8 or query.head_size > (_HEAD_512 if has_fa4 else _HEAD_256):
        return "head_size not supported"
    if query.dtype == "float32":
        return "dtype not supported"
    if query.sinks and not has_fa4:
        return "attention sinks not supported"
    if query.image_prefix:
        reason = _refuses_image_prefix(query, card)
        if reason is not None:
            return reason
    if not query.quantized:
        return None
    # The choice is made before the biases are known; see `backends.choose`.
    if query.kv_dtype not in FP8 or not flash_reads_fp8(query._replace(alibi=False), card):
        return "kv_cache_dtype not supported"
    return None


def _refuses_image_prefix(query: Query, card: Card) -> str | None:
    if query.quantized and card.family == HOPPER:
        return "SM90 FP8 KV with mm_prefix requires Triton"
    if flash_version(query, card) != _V4:
        return "mm_prefix requires FlashAttention v4"
    return None


def flash_kernels(query: Query, card: Card) -> tuple[Kernel, ...]:
    """Return the blocks that the version's kernels read (get_supported_kernel_block_sizes)."""
    hopper_512 = card.family == HOPPER and query.head_size == _HEAD_512
    if hopper_512 and query.kv_dtype in FP8 and query.rules.hopper_fp8_page:
        return (Kernel(_HOPPER_FP8_PAGE),)
    blackwell_256 = card.family == BLACKWELL and query.head_size == _HEAD_256
    if blackwell_256 and query.rules.wide_pages and flash_version(query, card) == _V4:
        return (Kernel(_FA4_PAGE),)
    return (Kernel(16, multiple=True),)
