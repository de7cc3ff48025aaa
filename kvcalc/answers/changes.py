"""What changed between two runs: a figure or a status, and whether the change costs capacity."""

from __future__ import annotations

from kvcalc.answers.metrics import metric_of
from kvcalc.core.values import Value

__all__ = ["Changed", "costs"]

_Plain = bool | int | float | str | None

_CAPACITY = (
    *("fits", "may_fit", "max_concurrency", "max_sequences", "kv_cache_tokens", "kv_cache_bytes"),
    *("total_kv_cache_tokens", "total_concurrency"),
    *("bytes_per_token", "state_bytes", "missing_bytes", "duplication_factor"),
)
"""Figures whose change is one of capacity; others are sizes, prices, or what was asked for."""


class Changed(Value, frozen=True, kw_only=True):
    """One figure of a deployment, before and after.

    Attributes:
        name: of the deployment.
        metric: the figure; an assertion's or a finding's name for a status; `deployment` where all
            of it was added or removed.
        before, after: null where it was not there.
        delta: after - before, of numbers.
        ratio: after / before, of numbers; null where before is 0.
        costs: the change costs capacity, or something fails that did not.
        gains: the change gains capacity, or something passes that did not.
    """

    name: str
    metric: str
    before: bool | int | float | str | None
    after: bool | int | float | str | None
    delta: int | float | None = None
    ratio: float | None = None
    costs: bool = False
    gains: bool = False


def costs(metric: str, before: _Plain, after: _Plain) -> tuple[bool, bool]:
    """Return whether a change of a figure costs capacity, and whether it gains some.

    >>> costs("max_concurrency", 40.0, 35.5), costs("bytes_per_token", 131072, 65536)
    ((True, False), (False, True))
    """
    known = metric_of(metric)
    numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
    if known is None or metric not in _CAPACITY or not numbers or before == after:
        return False, False
    rises = float(after or 0) > float(before or 0)
    better = rises if known.better == "more" else not rises
    return not better, better
