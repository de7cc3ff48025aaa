"""Figures of a question at an end of what may be left for its cache."""

from __future__ import annotations

import msgspec

from kvcalc.answers.capacity import Figures
from kvcalc.core.capacity import Budgets
from kvcalc.core.memory import End
from kvcalc.sizing.figures import figures
from kvcalc.sizing.question import Question
from kvcalc.sizing.solve.searches import Tries
from kvcalc.sizing.worked import Worked

__all__ = ["figured"]


def figured(question: Question, worked: Worked, end: End, tries: Tries | None = None) -> Figures:
    """Return the figures of a question.

    A cache that the settings size is there whole or not at all: what would fit instead of it is
    found by shorter ones, each planned anew.

    Args:
        question: what is asked.
        worked: the same, worked out.
        end: which of its budgets.
        tries: what was tried for the figures of its other ends.
    """
    found = figures(worked, end)
    by_settings = worked.plan.split == "fixed" and bool(worked.memory)
    if found.fits or not by_settings or not worked.runs(end):
        return found
    if worked.crowded is not None:
        run = (worked.plan.places or 1) * question.holders
        question = question._replace(sequences=run)
        if worked._replace(each=worked.plan.places or 1).meets(end):
            return found
    if not _may_shorten(worked, worked.budgets(end)):
        return found
    from kvcalc.sizing.solve.lengths import longest  # few questions come here

    if tries is None or tries.question is not question:
        tries = Tries(question)
    shorter = longest(tries, end, below=worked.plan.max_model_len) or 0
    return msgspec.structs.replace(found, max_model_len_that_fits=shorter)


def _may_shorten(worked: Worked, budgets: Budgets) -> bool:
    """Whether a shorter maximum can help: it frees no more than what a step takes."""
    if not isinstance(budgets, tuple):
        return True
    freed = (
        sum(term.high_bytes for term in one.terms if term.name == "activation")
        for one in worked.memory
    )
    return all(budget + more > 0 for budget, more in zip(budgets, freed, strict=True))
