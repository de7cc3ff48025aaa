"""How many of llama.cpp's answers kvcalc gives: a line of the table in the README."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from tests.engines.llamacpp.rows import differences, rows

__all__ = ["FILES", "LEFT_OUT", "Tally", "tally"]

FILES = ("rows.jsonl", "more_rows.jsonl")
"""The shared questions, and random settings of the same shapes."""

_ABORTS = "llama.cpp aborts on a step whose tokens do not divide by the sequences, not on a size"
LEFT_OUT = {
    "random 213: kimi-linear": _ABORTS,
    "random 246: minimax-01": _ABORTS,
}
"""Name of a row -> why it is not compared."""


class Tally(NamedTuple):
    """What became of the questions.

    Attributes:
        questions: contexts that llama.cpp was asked for.
        answers: contexts whose every cache is equal, to the byte.
        refusals: contexts that both refuse.
        left_out: reason -> questions that are not compared.
        wrong: what differs otherwise, a line each.
    """

    questions: int
    answers: int
    refusals: int
    left_out: Counter[str]
    wrong: tuple[str, ...]


@cache
def tally(name: str) -> Tally:
    """Return the tally of a file of questions."""
    answers = refusals = 0
    left_out: Counter[str] = Counter()
    wrong = []
    for row in rows(name):
        if reason := LEFT_OUT.get(row["name"]):
            left_out[reason] += 1
        elif found := differences(row):
            wrong.append(f"{row['name']}: {'; '.join(found)}")
        elif row.get("refused"):
            refusals += 1
        else:
            answers += 1
    return Tally(len(rows(name)), answers, refusals, left_out, tuple(wrong))
