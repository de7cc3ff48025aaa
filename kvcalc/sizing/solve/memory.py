"""The share of a card, from the least that holds the goal to the most, and the cache itself."""

from __future__ import annotations

import msgspec

from kvcalc.core.capacity import smallest_budget
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.memory import End
from kvcalc.core.search import last_that
from kvcalc.core.units import format_bytes
from kvcalc.engines import engine_of, plan
from kvcalc.engines.changes import Change, changed, share_change
from kvcalc.sizing.question import Question
from kvcalc.sizing.sharing import with_free
from kvcalc.sizing.solve.searches import Solved, Tries, smallest, solved, why_not
from kvcalc.sizing.worked import Worked, too_many

__all__ = ["kv_memory", "share_of_card"]

_FIXED = "what the settings fix has no room for it, whatever the memory"
_STEPS = 1000
"""Shares of a card are tried in thousandths."""


def share_of_card(question: Question) -> Solved:
    """Return the shares from the least that holds the goal to the most that leaves room.

    A larger share holds more. What an engine takes beside it (graphs, the driver's context, and
    what others hold) bounds it from above.

    Raises:
        UnsupportedError: the engine has no such share, or no card is named to have one of.
    """
    engine = question.deployment.engine
    setting = engine_of(engine).share
    if setting is None:
        raise UnsupportedError(
            f"{engine} has no share of the card's memory", hint="solve for another setting"
        )
    if question.deployment.gpu is None:
        raise UnsupportedError("a share of which card?", hint="name the card (--gpu)")
    deployment = changed(question.deployment, {"kv_cache_memory_bytes": None}, {})
    question = question._replace(deployment=deployment)  # its share is asked for, not its bytes

    def of(share: float) -> Change:
        change = share_change(setting, share)
        return change._replace(settings={**change.settings, "kv_cache_memory_bytes": None})

    at = _Shares(question, setting)
    sure, possible = at.interval("low"), at.interval("high")
    reason = "with a thousandth less it does not fit"
    if sure is None:
        reason = at.why_not(possible)
    elif sure[1] < at.top:
        reason += f"; more than {sure[1] / _STEPS:g} {at.bound(sure[1] + 1)}"
    found = solved(
        question,
        "gpu-memory-utilization",
        sure and sure[0] / _STEPS,
        possible and possible[0] / _STEPS,
        reason,
        of,
    )
    told = msgspec.structs.replace(
        found.solution,
        up_to=sure and sure[1] / _STEPS,
        possible_up_to=possible and possible[1] / _STEPS,
    )
    return found._replace(solution=told)


class _Shares:
    """Shares of a card in thousandths, each worked out once."""

    def __init__(self, question: Question, setting: str) -> None:
        self.question, self.setting = question, setting
        self.tries = Tries(question)
        top = _STEPS // question.instances
        # Some engines have no share of one.
        self.top = top if self.at(top) is not None else top - 1

    def at(self, step: int) -> Worked | None:
        """Return the question with that share; None where the engine refuses it."""
        return self.tries.worked(share_change(self.setting, step / _STEPS))

    def holds(self, step: int, end: End) -> bool:
        """Whether the cache is large enough, whatever lies beside it."""
        found = self.at(step)
        return found is not None and found.cache_holds(end)

    def has_room(self, step: int, end: End) -> bool:
        """Whether what lies beside the share has room, and all of it is free."""
        found = self.at(step)
        return found is not None and found.runs(end)

    def interval(self, end: End) -> tuple[int, int] | None:
        """Return the least and the largest share with which the goal is met; None: none is."""
        least = smallest(lambda step: self.holds(step, end), 1, self.top)
        if least is None or not self.has_room(least, end):
            return None
        if self.has_room(self.top, end):
            return least, self.top
        return least, last_that(lambda step: self.has_room(step, end), least, self.top)

    def bound(self, step: int) -> str:
        """Return what stands in the way of a share that is too large."""
        found = self.at(step)
        cards = () if found is None else found.cards
        if any(one.free_bytes is not None for one in cards):
            return "may not be free, for others hold the rest"
        return "may leave no room for what lies beside it"

    def why_not(self, possible: tuple[int, int] | None) -> str:
        """Return why no share surely holds the goal."""
        least = smallest(lambda step: self.holds(step, "low"), 1, self.top)
        if least is None and possible is not None:
            return "it fits only where everything beside the cache takes its least"
        if least is None:
            top = share_change(self.setting, self.top / _STEPS)
            found = self.at(self.top)
            if found is not None and found.too_long is None and found.crowded is None:
                # What lies beside a share of all is not what stands in the way.
                fixed = smallest_budget(found.plan, found.each) is None
                return _FIXED if fixed else "it does not fit in the whole card"
            return why_not(self.question, top) or "it does not fit in the whole card"
        return (
            f"the cache holds it from {least / _STEPS:g} on, which"
            f" {'may leave' if possible else 'leaves'} no room for what lies beside it"
        )


def kv_memory(question: Question) -> Solved:
    """Return the fewest bytes of cache on every GPU that hold the goal."""
    deployment = changed(question.deployment, {"kv_cache_memory_bytes": None}, {})
    planned = plan(question.model, with_free(deployment, question.free_bytes))
    each = question.each
    least = smallest_budget(planned, each) if planned.num_gpus else None

    def of(size: int) -> Change:
        return Change(f"a cache of {size} B", {"kv_cache_memory_bytes": size})

    tries = Tries(question)
    # A larger cache holds more and leaves less beside it: either the fewest bytes do, or none do.
    value, possible = (
        least if least is not None and tries.meet(of(least), end) else None
        for end in ("low", "high")
    )
    reason = "a byte less does not hold it"
    if not planned.num_gpus:
        reason = "the whole cache lies on the host"
    elif least is None:
        reason = too_many(planned, each) or _FIXED
    elif value is None:
        why = why_not(question, of(least))
        reason = f"{format_bytes(least)} would do" + (f", and {why}" if why else "")
    else:
        reason += f" ({format_bytes(least)})"
    return solved(question, "kv-memory", value, possible, reason, of)
