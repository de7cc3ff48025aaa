"""The engine's own commands for what is asked, and for what was solved for."""

from __future__ import annotations

import msgspec

from kvcalc.core.answers import Figures, Solution
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_number_of
from kvcalc.sizing.commands import command
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.solve.searches import Solved

__all__ = ["suggested"]

_PERHAPS = "it fits if everything beside the cache takes its least, and else it does not"
_UNKNOWN = "whether it fits is not known: no GPU is named"


def suggested(
    question: Question, ends: tuple[Figures, Figures], turned: tuple[Solved, ...]
) -> tuple[tuple[Solution, ...], str | None, tuple[str, ...]]:
    """Return the solutions with their commands, the command to take, and what to know of it.

    Each setting was solved for by itself, so that no two of them go into one command: the first
    that meets the goal is taken, else the question as it was asked. Where that is not met either
    there is no command, which is told.

    Args:
        question: what is asked.
        ends: its figures with the least and with the most that may be left for the cache.
        turned: what was solved for.
    """
    low, high = ends
    doubtful, unknown = high.fits and not low.fits, low.fits is None
    solutions, first = [], None
    notes: dict[str, None] = {}
    for one in turned:
        told = None
        if one.change is not None:
            asked = one.change.applied(question)
            if _fits(asked):
                told, lines = command(asked)
                notes.update(dict.fromkeys(lines))
                if doubtful and first is None and told is not None:
                    shown = f"{one.solution.setting} {one.solution.value}"
                    notes[f"with {shown} it surely fits; as it was asked for, {_PERHAPS}"] = None
                first = first or told
            else:
                goal = format_number_of(question.sequences, "sequence")
                shown = f"{one.solution.setting} {one.solution.value}"
                notes[f"no command with {shown}: it does not hold {goal} at once"] = None
        solutions.append(msgspec.structs.replace(one.solution, command=told))
    if first is None:
        if high.fits or unknown:
            first, lines = command(question)
            notes.update(dict.fromkeys(lines))
            if first is not None and (doubtful or unknown):
                notes[_UNKNOWN if unknown else _PERHAPS] = None
        else:
            notes[_none(turned)] = None
    return tuple(solutions), first, tuple(notes)


def _fits(question: Question) -> bool:
    """Whether the goal is surely met."""
    try:
        return work(question).meets("low")
    except KvcalcError:
        return False


def _none(turned: tuple[Solved, ...]) -> str:
    line = "no command: what is asked for does not fit"
    if not turned:
        return f"{line}; --solve SETTING looks for what would, --levers for what helps"
    return f"{line}, and nothing that was solved for changes that"
