"""TGI's metrics page: the batch that runs and the queue.

TGI docs, reference/metrics: tgi_batch_current_size, tgi_batch_current_max_tokens and tgi_queue_size
are its gauges. A request reserves its prompt and all of max_new_tokens when it is admitted
(backends/v3/src/queue.rs), so that the current maximum is what is reserved, not what is written.
"""

from __future__ import annotations

from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.measure.metrics.series import Series

__all__ = ["PREFIX", "read"]

PREFIX = "tgi_"


def read(series: Series) -> list[ServerMetrics]:
    """Return the one reading of a server."""
    return [
        ServerMetrics(
            engine="tgi",
            why="the page names neither blocks nor tokens",
            tokens_used=series.count("tgi_batch_current_max_tokens"),
            running=series.count("tgi_batch_current_size"),
            waiting=series.count("tgi_queue_size"),
            notes=(
                "the capacity is max_batch_total_tokens, which /info and the start-up log tell",
                "tokens in use are reserved: prompts of the running batch and all max_new_tokens",
            ),
        )
    ]
