"""Public starts of SGLang against what is predicted for them: facts of logs, and the table of both.

`starts.tsv` holds facts alone, as vLLM's does. Its rows of the fitted half decide what a rank has
taken before the weights (kvcalc/engines/sglang/budget.py); the rest is the engine's arithmetic. The
releases that logged them did that arithmetic the same way; where the fraction is the default's, it
is that of 0.5.23.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.engines import budgets, plan
from kvcalc.models.presets import load_gpu
from tests.engines.vllm.starts import model_of

__all__ = ["COLUMNS", "Start", "rows", "starts"]

_GIB = 2**30

COLUMNS = ("start", "half", "weights", "left: predicted", "logged", "hit", "cause of a miss")


class Start(NamedTuple):
    """One start: the row of starts.tsv, and what is predicted."""

    facts: dict[str, str]
    budget: MemoryBudget

    @property
    def logged(self) -> float:
        """What was left, GiB."""
        return float(self.facts["left_gib"])

    @property
    def left(self) -> tuple[float, float]:
        """What is predicted to be left, GiB."""
        low, high = self.budget.cache_bytes
        return low / _GIB, high / _GIB

    @property
    def hit(self) -> bool:
        """Whether the logged figure, within its rounding, lies in the span."""
        low, high = self.left
        return low - 0.015 <= self.logged <= high + 0.015

    def part_of_card(self, gib: float) -> float:
        """Return GiB as a part of the card."""
        return gib / (self.budget.total_bytes / _GIB)


@cache
def starts() -> tuple[Start, ...]:
    """Return all starts with what is predicted for them."""
    path = Path(__file__).parent / "starts.tsv"
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(_start(facts) for facts in csv.DictReader(lines, delimiter="\t"))


def _start(facts: dict[str, str]) -> Start:
    model = model_of(facts["model"])
    fraction = facts["mem_fraction_static"]
    deployment = Deployment(
        engine="sglang",
        gpu=load_gpu(facts["gpu"]),
        tensor_parallel_size=int(facts["tp"]),
        engine_args={"mem_fraction_static": float(fraction)} if fraction else {},
    )
    planned = plan(model, deployment)
    size = int(float(facts["weights_gib"]) * _GIB)
    weights = Term(name="weights", low_bytes=size, high_bytes=size, source=facts["where"])
    found = budgets(model, deployment, planned, (weights,) * len(planned.ranks))
    return Start(facts, found[0])


def rows() -> list[tuple[str, ...]]:
    """Return the table: a row a start, in GiB, under COLUMNS."""
    return [
        (
            start.facts["id"],
            start.facts["half"],
            start.facts["weights_gib"],
            f"{start.left[0]:.2f} to {start.left[1]:.2f}",
            start.facts["left_gib"],
            "yes" if start.hit else "no",
            "" if start.hit else start.facts["note"],
        )
        for start in starts()
    ]
