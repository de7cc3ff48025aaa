"""How llama.cpp shrinks a context that was not asked for into the memory that there is.

llama.cpp b11434 common/fit.cpp (common_params_fit_impl), for one device. There the free memory less
a margin, the weights and the compute buffers is what the context may take; here that is given, as
kv_cache_memory_bytes. The length is found by a straight line between the shortest and the longest.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.engines.llamacpp.cells import Cells

__all__ = ["fitted"]

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
    most_bytes = bytes_at(longest)
    if most_bytes <= budget or longest <= least:
        return longest
    least_bytes = bytes_at(least)
    if budget <= least_bytes or most_bytes == least_bytes:
        return least
    found = least + (longest - least) * (budget - least_bytes) // (most_bytes - least_bytes)
    return max(found - found % (_STEP * cells.streams), least)
