"""The engine's own commands for what is asked, and for what was solved for."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvcalc.core.answers import Solution
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_number_of
from kvcalc.sizing.commands import command
from kvcalc.sizing.question import Question, Worked, work
from kvcalc.sizing.solve.searches import Solved

__all__ = ["suggested"]

_Met = Literal["surely", "perhaps", "no"]
_PERHAPS = "it fits if everything beside the cache takes its least, and else it does not"


def suggested(
    question: Question, worked: Worked, turned: tuple[Solved, ...]
) -> tuple[tuple[Solution, ...], str | None, tuple[str, ...]]:
    """Return the solutions with their commands, the command to take, and what to know of it.

    Each setting was solved for by itself, so that no two of them go into one command: the first
    that meets the goal is taken, else the question as it was asked. Where that is not met either
    there is no command, which is told.

    Args:
        question: what is asked.
        worked: the same, worked out.
        turned: what was solved for.
    """
    solutions, first = [], None
    notes: dict[str, None] = {}
    for one in turned:
        told = None
        if one.change is not None:
            asked = one.change.applied(question)
            if _is_met(asked) == "surely":
                told, lines = command(asked)
                notes.update(dict.fromkeys(lines))
                first = first or told
            else:
                goal = format_number_of(question.sequences, "sequence")
                shown = f"{one.solution.setting} {one.solution.value}"
                notes[f"no command with {shown}: it does not hold {goal} at once"] = None
        solutions.append(msgspec.structs.replace(one.solution, command=told))
    if first is None:
        met = _met(worked)
        if met != "no":
            first, lines = command(question)
            notes.update(dict.fromkeys(lines))
            if met == "perhaps" and first is not None:
                notes[_PERHAPS] = None
        else:
            notes[_none(turned)] = None
    return tuple(solutions), first, tuple(notes)


def _is_met(question: Question) -> _Met:
    try:
        return _met(work(question))
    except KvcalcError:
        return "no"


def _met(worked: Worked) -> _Met:
    if worked.holds(worked.low):
        return "surely"
    return "perhaps" if worked.holds(worked.high) else "no"


def _none(turned: tuple[Solved, ...]) -> str:
    line = "no command: what is asked for does not fit"
    if not turned:
        return f"{line}; --solve SETTING looks for what would, --levers for what helps"
    return f"{line}, and nothing that was solved for changes that"
