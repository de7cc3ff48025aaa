"""What an engine refuses to start with, by the codes of its table, and what lifts a floor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvcalc.answers.capacity import StartRefusal
from kvcalc.core.capacity import Budgets, capacity, least_of, short_of
from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import End
from kvcalc.core.units import format_bytes, format_count
from kvcalc.engines import refusal_codes
from kvcalc.engines.changes import Change
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.lengths import LEAST_LENGTH, of_length
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.worked import Worked

__all__ = ["start_refusals", "within_floor"]

_ENDS: tuple[End, ...] = ("high", "low")


def start_refusals(worked: Worked) -> tuple[StartRefusal, ...]:
    """Return what the engine refuses, each once: surely, or where the rest takes its most."""
    known = refusal_codes(worked.plan.engine)
    found: dict[str, StartRefusal] = {}
    for end in _ENDS:
        for code, message in _refused(worked, end):
            if code in known:
                sure = end == "high"
                found.setdefault(code, StartRefusal(code=code, message=message, sure=sure))
    return tuple(found.values())


def _refused(worked: Worked, end: End) -> Iterator[tuple[str, str]]:
    """Yield the codes of what is refused at an end, with what is wrong."""
    if worked.too_long is not None:
        yield "length-over-model", worked.too_long.why
        return
    refusal = worked.refusal(end)
    if refusal is not None:
        if any(one.checks_share and one.free_bytes is not None for one in worked.cards):
            yield "share-not-free", refusal.why
        return
    plan, budgets = worked.plan, worked.budgets(end)
    least = least_of(budgets)
    if least is not None and least < 1:
        short = f": {format_bytes(-least)} are missing" if least < 0 else ""
        yield "no-memory-for-blocks", f"nothing is left for the cache{short}"
        return
    stopped = worked.stopped(end)
    if stopped is not None:
        floor, units = stopped
        yield floor.code, floor.told(units)
        return
    bare = msgspec.structs.replace(plan, floors=())
    if plan.start == "refuses" and not capacity(bare, budgets).starts:
        yield (
            "length-over-cache",
            f"the cache does not hold one sequence of {format_count(plan.max_model_len)} tokens",
        )


def within_floor(question: Question, worked: Worked) -> Change | None:
    """Return the setting of a floor with which it is met; None for no such setting.

    It is lowered to the units that there surely are, or set to what makes enough of them. Where the
    maximum is longer than the cache then surely holds, it is lowered too.

    A new plan has said that the goal is met with it.
    """
    stopped = worked.stopped("low")
    if stopped is None and worked.stopped("high") is not None and _some(worked.low):
        stopped = short_of(worked.plan, worked.low)
    if stopped is None:
        return None
    floor, units = stopped
    if units < 1 or (not floor.lowers and floor.instead is None):
        return None
    setting, value = floor.instead or (floor.setting, units)
    given: dict[str, Any] = {setting: value}
    own = setting in Deployment.__struct_fields__
    name = f"{setting} {format_count(value) if isinstance(value, int) else value}"
    change = Change(name, given) if own else Change(name, {}, given)
    tries = Tries(question)
    if tries.meet(change, "low"):
        return change
    found = tries.worked(change)
    if found is None or not floor.lowers or not found.runs("low") or not _some(found.low):
        return None
    longest = capacity(found.plan, found.low).max_model_len_that_fits
    if longest < LEAST_LENGTH:
        return None
    shorter = of_length(question, longest)
    both = Change(
        f"{name}, {shorter.name}",
        {**change.settings, **shorter.settings},
        change.args | shorter.args,
    )
    return both if tries.meet(both, "low") else None


def _some(budgets: Budgets) -> bool:
    """Whether every rank has a byte for its cache."""
    return (least_of(budgets) or 0) > 0
