"""Requests at once, and the table of where their tokens lie.

SGLang 0.5.23 mem_cache/kv_cache_configurator.py (resolve_max_num_reqs) and
mem_cache/memory_pool.py (ReqToTokenPool).
"""

from __future__ import annotations

__all__ = ["LEAST_REQUESTS", "MOST_REQUESTS", "requests_at_once", "table_bytes", "table_host_bytes"]

LEAST_REQUESTS, MOST_REQUESTS = 2048, 4096
"""Bounds of max_running_requests where nothing is said."""

_FACTOR = 512
_INDEX = 4
_GENERATION = 8


def requests_at_once(
    tokens: int, context: int, asked: int | None = None, states: int | None = None
) -> int:
    """Return max_running_requests of one rank.

    Args:
        tokens: tokens of the pool.
        context: the longest sequence.
        asked: what is asked for on this rank; None for the default.
        states: requests that the state pool serves; None without one.
    """
    estimate = max(min(int(tokens / context * _FACTOR), MOST_REQUESTS), LEAST_REQUESTS)
    found = min(estimate if asked is None else asked, tokens // 2)
    return found if states is None else min(found, states)


def table_bytes(requests: int, row: int) -> int:
    """Return the bytes of req_to_token on the GPU: a row of indices a request, and one more.

    Args:
        requests: requests at once.
        row: places of a row: the context and a few more.

    >>> table_bytes(2048, 131076)
    1074298896
    """
    return (requests + 1) * row * _INDEX


def table_host_bytes(requests: int) -> int:
    """Return the bytes of the rows' generations, which lie in host memory."""
    return (requests + 1) * _GENERATION
