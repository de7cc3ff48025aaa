"""How many of the oracle's answers kvcalc gives, by quant_policy, and what is left out and why."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

from tests.engines.lmdeploy.rows import differences, reason, rows

__all__ = ["Tally", "tallies"]


class Tally(NamedTuple):
    """What became of the questions with one quant_policy.

    Attributes:
        answers: rows with all figures equal.
        refusals: refused by both.
        left_out: reason -> rows that are not compared.
        wrong: what differs otherwise, a line each.
    """

    answers: int
    refusals: int
    left_out: Counter[str]
    wrong: tuple[str, ...]


@cache
def tallies() -> dict[str, Tally]:
    """Return a tally for every quant_policy."""
    found: dict[str, Tally] = {}
    for policy in dict.fromkeys(row["policy"] for row in rows()):
        answers = refusals = 0
        left_out: Counter[str] = Counter()
        wrong = []
        for row in rows():
            if row["policy"] != policy:
                continue
            why = reason(row)
            if why is not None:
                left_out[why] += 1
                continue
            said = differences(row)
            answers += "error" not in row
            refusals += "error" in row
            if said:
                wrong.append(f"{row['model']}, tp {row['tp']}, {policy}: {'; '.join(said)}")
        found[policy] = Tally(answers, refusals, left_out, tuple(wrong))
    return found
