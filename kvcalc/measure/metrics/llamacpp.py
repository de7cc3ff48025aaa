"""llama-server's metrics page (--metrics): requests, and in older builds the cells in use.

llama.cpp tools/server/server-task.cpp (server_task_result_metrics) of b11434, and server.cpp of
older builds: kv_cache_usage_ratio and kv_cache_tokens were told until the middle of 2025. Nothing
on the page tells the size of the cache: it is what -c, -np and the model come to.
"""

from __future__ import annotations

from kvcalc.core.server_metrics import PrefixCache, ServerMetrics
from kvcalc.core.units import format_count
from kvcalc.measure.metrics.series import Series
from kvcalc.models.text import printable

__all__ = ["PREFIX", "read"]

PREFIX = "llamacpp_"


def read(series: Series) -> list[ServerMetrics]:
    """Return the one reading of a server."""
    names = series.values_of("model")
    longest = series.count("llamacpp:n_tokens_max")
    notes = ["the page tells no size of the cache: give the model and -c, -np as the server has"]
    if longest:
        notes.append(
            f"the longest sequence since the start had {format_count(longest)} tokens: -c and -np"
            " need give a slot no more than the longest that will come"
        )
    return [
        ServerMetrics(
            engine="llama.cpp",
            model=printable(names[0]) if names else None,
            why="llama.cpp has cells, one a token, and no blocks",
            usage_ratio=series.ratio("llamacpp:kv_cache_usage_ratio"),
            tokens_used=series.count("llamacpp:kv_cache_tokens"),
            running=series.count("llamacpp:requests_processing"),
            waiting=series.count("llamacpp:requests_deferred"),
            prefix_cache=_prefix_cache(series),
            notes=tuple(notes),
        )
    ]


def _prefix_cache(series: Series) -> PrefixCache | None:
    """Prompt tokens that were found in a slot; those that were computed are told apart."""
    computed = series.count("llamacpp:prompt_tokens")
    cached = series.count("llamacpp:prompt_tokens_cached")
    if computed is None or cached is None:
        return None
    queries = computed + cached
    ratio = cached / queries if queries else None
    return PrefixCache(queries=queries, hits=cached, hit_ratio=ratio)
