"""How many of mlx-lm's answers kvcalc gives, and what is left out and why."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from tests.engines.mlx_lm.rows import differences, reason, rows

__all__ = ["Tally", "tally"]


class Tally(NamedTuple):
    """What became of the questions.

    Attributes:
        answers: rows with both figures equal.
        refusals: refused by both.
        left_out: reason -> rows that are not compared.
        wrong: what differs otherwise, a line each.
    """

    answers: int
    refusals: int
    left_out: Counter[str]
    wrong: tuple[str, ...]


@cache
def tally() -> Tally:
    """Compare every row."""
    answers = refusals = 0
    left_out: Counter[str] = Counter()
    wrong = []
    for row in rows():
        why = reason(row)
        if why is not None:
            left_out[why] += 1
            continue
        said = differences(row)
        answers += "error" not in row
        refusals += "error" in row
        if said:
            asked = {k: v for k, v in row.items() if k not in ("model", "answer")}
            wrong.append(f"{row['model']}, {asked}: {'; '.join(said)}")
    return Tally(answers, refusals, left_out, tuple(wrong))
