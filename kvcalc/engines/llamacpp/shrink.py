"""How llama.cpp shrinks a context that was not asked for into the memory that there is.

llama.cpp b11434 common/fit.cpp (common_params_fit_impl, step 2): the length is found by a straight
line between the shortest and the longest. Where kv_cache_memory_bytes is given, that is what the
context of the one device may take; else fit counts weights and compute buffers too (`fit`).
"""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.engines.llamacpp.cells import Cells

__all__ = ["between", "fitted"]

_STEP = 256


def fitted(cells: Cells, shortest: int, budget: int, bytes_at: Callable[[int], int]) -> int:
    """Return the tokens of the whole context (n_ctx) that fit chooses.

    Args:
        cells: of the context in full.
        shortest: tokens of a stream that fit does not go below (fit_ctx).
        budget: bytes that the context may take.
        bytes_at: bytes of a context of so many tokens in all.
    """
    longest, least = cells.total, shortest * cells.streams
    if longest <= least or (most_bytes := bytes_at(longest)) <= budget:
        return longest
    return between(least, longest, cells.streams, budget, (bytes_at(least), most_bytes))


def between(least: int, longest: int, streams: int, budget: int, sizes: tuple[int, int]) -> int:
    """Return the tokens of a context between two whose bytes are known, not below the shorter."""
    least_bytes, most_bytes = sizes
    if budget <= least_bytes or most_bytes == least_bytes:
        return least
    found = least + (longest - least) * (budget - least_bytes) // (most_bytes - least_bytes)
    return max(found - found % (_STEP * streams), least)
