"""What SGLang leaves for its cache, predicted, against what public starts logged."""

from __future__ import annotations

from statistics import median

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import Term
from kvcalc.engines import budgets, plan
from kvcalc.engines.sglang.memory import cache_bytes
from kvcalc.models.presets import load_gpu
from tests.engines.sglang.starts import Start, rows, starts
from tests.engines.starts import COLUMNS
from tests.engines.vllm.starts import model_of

_GIB = 2**30


def test_predicted() -> None:
    """Four of five lie in the span, in either half; the middle is within 3 % at the median."""
    for half in ("fit", "held"):
        found = [start for start in starts() if start.facts["half"] == half]
        assert len(found) == len(starts()) / 2
        assert sum(start.hit for start in found) / len(found) >= 0.80
        assert median(start.off for start in found) <= 0.03


@pytest.mark.parametrize("start", starts(), ids=lambda start: str(start.facts["id"]))
def test_width(start: Start) -> None:
    """A span is at most 8 % of the card."""
    assert start.width <= 0.08


def test_rows() -> None:
    """The table has a row a start, and a cause for every miss."""
    assert len(rows()) == len(starts()) >= 6
    assert all(len(row) == len(COLUMNS) and (row[-2] == "yes" or row[-1]) for row in rows())


def test_arithmetic_is_the_engine_s() -> None:
    """Both ends are what the engine's own formula makes of the memory before and after weights."""
    gpu = load_gpu("h100-80gb")
    deployment = Deployment(engine="sglang", gpu=gpu, engine_args={"mem_fraction_static": 0.85})
    model = model_of("llama-3.1-8b")
    weights = Term(name="weights", low_bytes=15 * _GIB, high_bytes=15 * _GIB, source="given")
    budget = budgets(model, deployment, plan(model, deployment), (weights,))[0]
    taken = {term.name: term for term in budget.outside}["context"]
    loading = {term.name: term for term in budget.terms}["context"]
    for end, before, after in (
        (0, 79.09 - taken.high_bytes / _GIB, loading.high_bytes),
        (1, 79.26 - taken.low_bytes / _GIB, loading.low_bytes),
    ):
        total = int(before * _GIB)
        free = total - 15 * _GIB - after
        expected = cache_bytes(free, total, 0.85)
        assert abs(budget.cache_bytes[end] - expected) < 2**20
