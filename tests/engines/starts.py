"""A public start of an engine against what is predicted for it, and the table of all: any engine's.

An engine's own `starts.tsv` holds facts alone: card, release, flags, weights and what was left, as
logs and reports state them, and where.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import budgets

__all__ = ["COLUMNS", "Start", "first_budget", "rows_of", "tsv"]

_GIB = 2**30

COLUMNS = ("start", "half", "weights", "left: predicted", "logged", "hit", "cause of a miss")


@dataclass(frozen=True)
class Start:
    """One start.

    Attributes:
        facts: the row of starts.tsv.
        budget: what is predicted.
        LOGGED: the column of what was left, GiB.
        ROUNDING: how far the logged figure may be from the true one, GiB.
    """

    facts: dict[str, str]
    budget: MemoryBudget

    LOGGED: ClassVar[str]
    ROUNDING: ClassVar[float]

    @property
    def logged(self) -> float:
        """What the engine left, GiB."""
        return float(self.facts[self.LOGGED])

    @property
    def left(self) -> tuple[float, float]:
        """What is predicted to be left, GiB."""
        low, high = self.budget.cache_bytes
        return low / _GIB, high / _GIB

    @property
    def card(self) -> float:
        """The card, GiB."""
        return self.budget.total_bytes / _GIB

    @property
    def hit(self) -> bool:
        """Whether the logged figure, within its rounding, lies in the span."""
        low, high = self.left
        return low - self.ROUNDING <= self.logged <= high + self.ROUNDING

    @property
    def width(self) -> float:
        """The span as a part of the card."""
        low, high = self.left
        return (high - low) / self.card

    @property
    def off(self) -> float:
        """How far the middle is from what was logged, as a part of the card."""
        return abs(sum(self.left) / 2 - self.logged) / self.card


def tsv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table of facts."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def first_budget(
    facts: dict[str, str], model: ModelSpec, deployment: Deployment, planned: CachePlan
) -> MemoryBudget:
    """Return the first rank's budget, with the weights that the log states."""
    size = int(float(facts["weights_gib"]) * _GIB)
    weights = Term(name="weights", low_bytes=size, high_bytes=size, source=facts["where"])
    return budgets(model, deployment, planned, (weights,) * len(planned.ranks))[0]


def rows_of(found: Iterable[Start]) -> list[tuple[str, ...]]:
    """Return the table: a row a start, in GiB, under COLUMNS."""
    return [
        (
            start.facts["id"],
            start.facts["half"],
            start.facts["weights_gib"],
            f"{start.left[0]:.2f} to {start.left[1]:.2f}",
            start.facts[start.LOGGED],
            "yes" if start.hit else "no",
            "" if start.hit else start.facts["note"],
        )
        for start in found
    ]
