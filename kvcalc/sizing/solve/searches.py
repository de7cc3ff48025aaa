"""How a setting is tried, where its search ends, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from kvcalc.core.answers import Solution
from kvcalc.core.errors import KvcalcError
from kvcalc.core.search import first_that, last_that
from kvcalc.core.units import format_count
from kvcalc.sizing.changes import Change
from kvcalc.sizing.question import Question, Worked, work

__all__ = ["End", "Fits", "Solved", "largest", "meets", "smallest", "solved", "tried", "worked"]

End = Literal["low", "middle", "high"]
"""With which of what may be left for the cache: the least is sure, the most is possible."""

Fits = Callable[[int], bool]


def worked(question: Question, change: Change) -> Worked | None:
    """Return a question with a change, worked out; None where the engine refuses it."""
    try:
        return work(change.applied(question))
    except KvcalcError:
        return None


def meets(found: Worked | None, end: End) -> bool:
    """Whether the goal is met at an end of what may be left."""
    if found is None:
        return False
    budgets = {"low": found.low, "middle": found.middle, "high": found.high}[end]
    return found.holds(budgets)


def tried(question: Question, change: Change, end: End) -> bool:
    """Whether the goal is met with a change; False where the engine refuses it."""
    return meets(worked(question, change), end)


def largest(fits: Fits, high: int, low: int = 1) -> int | None:
    """Return an n up to `high` that fits while n + 1 does not; None where none is found.

    Args:
        fits: what is asked of n.
        high: the most that is tried.
        low: where the search begins; each n below it is tried where it does not fit.
    """
    low = min(low, high)
    if not fits(low):
        return next((n for n in range(low - 1, 0, -1) if fits(n)), None)
    above = low + 1
    while above <= high and fits(above):
        low, above = above, above * 2
    return last_that(fits, low, min(above, high + 1))


def smallest(fits: Fits, low: int, high: int) -> int | None:
    """Return an n of low..high that fits while n - 1 does not; None where `high` does not fit."""
    if fits(low):
        return low
    return first_that(fits, low, high) if high > low and fits(high) else None


class Solved(NamedTuple):
    """A solution, and the change that makes its value a setting; None where there is none."""

    solution: Solution
    change: Change | None


def solved(
    question: Question,
    setting: str,
    value: Any,
    possible: Any,
    reason: str,
    change: Callable[[Any], Change],
) -> Solved:
    """Return what a search came to; `change` makes its value a setting."""
    goal = ""
    if question.sequences > 1 and setting != "max-num-seqs":
        goal = f" for {format_count(question.sequences)} sequences at once"
    made = None if value is None else change(value)
    found = Solution(
        setting=setting,
        value=value,
        possible=possible,
        flags=() if made is None else made.flags,
        reason=reason + goal,
    )
    return Solved(found, made)
