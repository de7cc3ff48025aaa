"""What became of the questions that an engine's oracle was asked: one count for every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Compared", "Tally", "tallied", "total"]


class Compared(NamedTuple):
    """What became of one question.

    Attributes:
        name: what a line about it begins with.
        differences: what differs; empty where every answer is equal.
        answers: answers that were sized.
        refusals: answers that were refusals.
        left_out: why it is not compared; None where it is.
    """

    name: str
    differences: list[str]
    answers: int = 0
    refusals: int = 0
    left_out: str | None = None


class Tally(NamedTuple):
    """What became of some questions.

    Attributes:
        questions: how many were asked.
        answers: sized answers of questions of which all figures are equal.
        refusals: what both refuse.
        left_out: reason -> questions that are not compared.
        wrong: questions of which something differs, a line each.
    """

    questions: int
    answers: int
    refusals: int
    left_out: Counter[str]
    wrong: tuple[str, ...]

    @property
    def equal(self) -> int:
        """What was compared and is equal, sized or refused."""
        return self.answers + self.refusals


def tallied(questions: Iterable[Compared]) -> Tally:
    """Return the tally of questions; a question with a difference counts as wrong alone."""
    asked = answers = refusals = 0
    left_out: Counter[str] = Counter()
    wrong = []
    for one in questions:
        asked += 1
        if one.left_out is not None:
            left_out[one.left_out] += 1
        elif one.differences:
            wrong.append(f"{one.name}: {'; '.join(one.differences)}")
        else:
            answers += one.answers
            refusals += one.refusals
    return Tally(asked, answers, refusals, left_out, tuple(wrong))


def total(tallies: Iterable[Tally]) -> Tally:
    """Return one tally for several."""
    each = list(tallies)
    left_out: Counter[str] = Counter()
    for one in each:
        left_out.update(one.left_out)
    return Tally(
        questions=sum(one.questions for one in each),
        answers=sum(one.answers for one in each),
        refusals=sum(one.refusals for one in each),
        left_out=left_out,
        wrong=tuple(line for one in each for line in one.wrong),
    )
