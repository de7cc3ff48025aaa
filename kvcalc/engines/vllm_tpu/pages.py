"""Bytes that a TPU keeps for one token of one layer: heads packed, elements filled up to lanes.

tpu-inference at b8692ff: kernels/ragged_paged_attention/v3/kernel.py, kernel_hd64.py and
kernels/mla/v2/kernel.py, get_kv_cache_shape; utils.py, get_padded_head_dim.
"""

from __future__ import annotations

from kvcalc.core.units import round_up

__all__ = ["LANES", "MLA_ROWS", "head_token_bytes", "latent_width"]

LANES = 128
"""Elements of the last dimension come in multiples of so many."""
MLA_ROWS = 32
"""Tokens that an MLA page packs together (envs.py, MLA_KV_PACKING_SIZE)."""
_WORD = 4
"""Bytes of a word: 2 elements of 16 bits, or 4 of 8, are packed into one."""
_PAIRED = 64
"""Heads of so many elements have a kernel of their own, with K and V side by side in 128 lanes."""


def head_token_bytes(heads: int, head_dim: int, size: int) -> int:
    """Return the bytes of a token of one layer whose K and V are kept by head.

    Args:
        heads: KV heads on the rank.
        head_dim: elements of a head.
        size: bytes of an element.

    >>> head_token_bytes(8, 128, 2), head_token_bytes(1, 128, 1), head_token_bytes(8, 80, 2)
    (4096, 512, 4096)
    """
    packing = _WORD // size
    if head_dim == _PAIRED:
        return round_up(heads, packing) * LANES * size
    return round_up(2 * heads, packing) * round_up(head_dim, LANES) * size


def latent_width(kv_lora_rank: int, qk_rope_head_dim: int) -> int:
    """Return the elements of an MLA row: the latent and its rotary part filled up apart.

    runner/kv_cache_manager.py, get_kv_cache_spec.

    >>> latent_width(512, 64)
    640
    """
    return round_up(kv_lora_rank, LANES) + round_up(qk_rope_head_dim, LANES)
