"""Tokens a block on a TPU: by the longest sequence, raised until page numbers fit its memory.

tpu-inference at b8692ff: platforms/tpu_platform.py, check_and_update_config;
layers/vllm/backends/flash_attn.py (get_page_size, get_min_page_size) and flash_attn_mla.py.
"""

from __future__ import annotations

from kvcalc.core.units import cdiv, format_count

__all__ = ["MLA_BLOCK", "unasked_block"]

MLA_BLOCK = 1024
_LONG = 8192
_LEAST, _MOST, _PARTS = 16, 256, 16
_SCALAR_MEMORY = 1024 * 1024
_NUMBER = 4
"""Bytes of a page number; half of the scalar memory is theirs."""


def unasked_block(length: int, sequences: int, notes: list[str]) -> int:
    """Return tokens a block where the user does not say, for caches that are kept by head.

    Args:
        length: max_model_len.
        sequences: max_num_seqs.
        notes: a line is added where the block was raised.

    >>> unasked_block(2048, 256, []), unasked_block(131_072, 256, [])
    (128, 256)
    """
    block = _LEAST
    if length <= _LONG:
        block = min(max(_power_of_two(length) // _PARTS, _LEAST), _MOST)
    pages = _SCALAR_MEMORY // 2 // sequences // _NUMBER
    least = _power_of_two(cdiv(length, pages)) if pages else length
    if least > block:
        notes.append(
            f"blocks of {block} tokens become {format_count(least)}: page numbers of"
            f" {format_count(sequences)} sequences of {format_count(length)} tokens must fit into"
            " half of the scalar memory"
        )
        return least
    notes.append(f"blocks of {block} tokens: a sixteenth of the longest sequence, 16 to 256")
    return block


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
