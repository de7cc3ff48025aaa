"""How a setting is tried, where its search ends, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvcalc.answers.capacity import Solution
from kvcalc.core.capacity import smallest_budget
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import End
from kvcalc.core.search import first_that, last_that
from kvcalc.core.units import format_count
from kvcalc.engines.changes import Change
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.worked import Worked

__all__ = ["Fits", "Solved", "Tries", "largest", "smallest", "solved", "why_not"]

Fits = Callable[[int], bool]


class Tries:
    """Tries changes to a question, each worked out once whatever is then asked of it.

    Args:
        question: what they are made to.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self._known: dict[str, Worked | None] = {}

    def worked(self, change: Change, sequences: int | None = None) -> Worked | None:
        """Return the question with a change, worked out; None where the engine refuses it.

        Args:
            change: of its settings.
            sequences: the goal, where that is another.
        """
        key = f"{change.settings} {change.args} {sequences}"
        if key not in self._known:
            of = self.question
            asked = of if sequences is None else of._replace(sequences=sequences)
            try:
                self._known[key] = work(change.applied(asked))
            except KvcalcError:
                self._known[key] = None
        return self._known[key]

    def meet(self, change: Change, end: End, sequences: int | None = None) -> bool:
        """Whether the goal is met with a change at an end; False where the engine refuses it."""
        found = self.worked(change, sequences)
        return found is not None and found.meets(end)


def why_not(question: Question, change: Change) -> str | None:
    """Return why the goal is surely not met with a change; None where the cache is too small."""
    try:
        found = work(change.applied(question))
    except KvcalcError as error:
        return error.message
    if found.crowded is not None:
        return found.crowded
    refusal = found.refusal("high") or found.refusal("low")
    if refusal is not None:
        return refusal.why
    stopped = found.stopped("high") or found.stopped("low")
    if stopped is not None:
        floor, units = stopped
        return floor.told(units)
    if found.meets("high"):
        return "it fits only where everything beside the cache takes its least"
    if smallest_budget(found.plan, found.each) is None:
        return "what the settings fix has no room for it, whatever the memory"
    return None


def largest(fits: Fits, high: int, low: int = 1) -> int | None:
    """Return an n up to `high` that fits while n + 1 does not; None where none is found.

    Args:
        fits: what is asked of n.
        high: the most that is tried.
        low: where the search begins; halves of it are tried where it does not fit.
    """
    low, most = min(low, high), high
    while not fits(low):
        low, high = low // 2, low - 1
        if not low:
            return None
    if high < most:  # all that was tried above does not fit
        return last_that(fits, low, high + 1)
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
