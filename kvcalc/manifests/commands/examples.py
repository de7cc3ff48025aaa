"""What a setting's value looks like: examples and limits, as messages say them."""

from __future__ import annotations

import re

__all__ = ["example_of", "limits_of", "meant_share"]

_LEAST = 1e-6  # a limit below it stands for "above 0"
_SHARE_TOO_LARGE = 2
_PERCENT = 100
_EXAMPLES = (
    # what a setting's name ends in, a value of that kind
    (r".*_bytes", "8589934592"),
    (r".*parallel_size(_local)?|nnodes|num_shard", "2"),
    (r".*(model_len|_tokens|ctx|ctx_size|context_length|seq_len)", "8192"),
    (r".*(block_size|tokens_per_block)", "16"),
    (r"max_num_seqs|.*_requests|.*batch_size", "64"),
    (r".*parallel", "4"),
    (r".*(utilization|fraction|fraction_static)", "0.9"),
)


def example_of(name: str, low: float | None, high: float | None) -> str:
    """Return a value that a setting may have.

    >>> example_of("tensor_parallel_size", 1, None)
    '2'
    """
    for pattern, value in _EXAMPLES:
        if re.fullmatch(pattern, name):
            return value
    if high == 1 and low is not None and low < _LEAST:
        return "0.9"
    return f"{max(low or 0, 1):g}"


def limits_of(low: float | None, high: float | None) -> str:
    """Return what lies between limits, in words.

    >>> limits_of(1e-9, 1), limits_of(1, None), limits_of(1, 8)
    ('above 0 and up to 1', 'from 1', 'from 1 to 8')
    """
    tiny = low is not None and 0 < low < _LEAST
    begin = "" if low is None else "above 0" if tiny else f"from {low:g}"
    end = "" if high is None else f"up to {high:g}" if tiny or low is None else f"to {high:g}"
    return (" and " if tiny else " ").join(filter(None, (begin, end)))


def meant_share(value: float, high: float | None) -> str:
    """Return the share that a percentage means, where a share is wanted; "" where it is none.

    A little more than one is a share too large, and no percentage.

    >>> meant_share(90, 1), meant_share(1.2, 1)
    ('0.9', '')
    """
    if high != 1 or not _SHARE_TOO_LARGE < value <= _PERCENT:
        return ""
    return f"{value / _PERCENT:g}"
