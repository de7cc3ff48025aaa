"""What the tensors of a cache add up to, beside what the allocator holds for them."""

from __future__ import annotations

from kvcalc.core.plan import CachePlan, Rows
from kvcalc.core.rules import Chunk, Whole, Window

__all__ = ["tensor_bytes"]


def tensor_bytes(plan: CachePlan, n: int) -> int:
    """Return the sum of `numel() x element_size()` over a cache that n tokens are in, in bytes.

    It is what a program sees that walks `cache.layers`. The memory held is `plan.bytes_held(n)`
    after a step of one token, and `plan.bytes_needed(n)` right after a prefill of n: tensors that
    are views keep larger storages alive.
    """
    return sum(_visible(rows, n) * rows.slot_bytes for rows in plan.rank.rows())


def _visible(rows: Rows, n: int) -> int:
    match rows.rule:
        case Window(window=window):
            return min(n, window - 1)
        case Chunk():
            return rows.rule.readable(n)
        case Whole():
            return rows.rule.held(n)
    return rows.rule.used(n)
