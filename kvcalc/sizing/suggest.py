"""The engine's own commands for what is asked, and for what was solved for."""

from __future__ import annotations

import msgspec

from kvcalc.core.answers import Solution
from kvcalc.sizing.commands import command
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.searches import Solved

__all__ = ["suggested"]


def suggested(
    question: Question, turned: tuple[Solved, ...]
) -> tuple[tuple[Solution, ...], str | None, tuple[str, ...]]:
    """Return the solutions with their commands, the command to take, and what to know of it.

    Each setting was solved for by itself, so that no two of them go into one command: the first
    that has a value is taken, else the question as it was asked.

    Args:
        question: what is asked.
        turned: what was solved for.
    """
    solutions, first = [], None
    notes: dict[str, None] = {}
    for one in turned:
        told = None
        if one.change is not None:
            asked = one.change.applied(question)
            told, lines = command(asked)
            notes.update(dict.fromkeys(lines))
            first = first or told
        solutions.append(msgspec.structs.replace(one.solution, command=told))
    if first is None:
        first, lines = command(question)
        notes.update(dict.fromkeys(lines))
    return tuple(solutions), first, tuple(notes)
