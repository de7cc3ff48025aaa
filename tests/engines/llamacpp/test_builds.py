"""Rules by build: what wheels of known days allocated (library defaults, f16)."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.llamacpp.version import NEWEST, build

LLAMA = load_model("llama-3.1-8b")
DEEPSEEK = load_model("deepseek-v3")

DAYS = [
    # day of the wheel, n_ctx 5000 with one sequence, n_ctx 10000 with three
    ("2025-03-14", 5024, 10016),
    ("2025-06-15", 5024, 10016),
    ("2025-07-20", 5024, 10016),
    ("2025-08-28", 5024, 10080),
    ("2025-09-13", 5120, 10752),
    ("2025-10-14", 5120, 10752),
    ("2025-11-01", 5000, 10002),
    ("2025-11-19", 5120, 10752),
    ("2026-02-27", 5120, 10752),
]


def _plan(day: str | None, model: Any = LLAMA, **args: Any) -> CachePlan:
    return plan(model, Deployment(engine="llama.cpp", engine_version=day, engine_args=args))


@pytest.mark.parametrize(("day", "one", "three"), DAYS)
def test_cells(day: str, one: int, three: int) -> None:
    for size, seqs, cells in ((5000, 1, one), (10000, 3, three)):
        found = _plan(day, ctx_size=size, parallel=seqs)
        assert found.rank.pools[0].units == cells


def test_the_v_beside_a_latent() -> None:
    """K of 576 elements and V of 512 until January 2026, K alone from February on."""
    old = _plan("2026-01-27", DEEPSEEK, ctx_size=8192, parallel=1)
    new = _plan("2026-02-27", DEEPSEEK, ctx_size=8192, parallel=1)
    assert old.rank.pools[0].unit_bytes == 61 * (576 + 512) * 2
    assert new.rank.pools[0].unit_bytes == 61 * 576 * 2
    assert old.wastes(100).page_padding_bytes > 0
    with pytest.raises(UnsupportedError, match="MLA"):
        _plan("2026-02-10", DEEPSEEK, ctx_size=8192, parallel=1)


def test_a_build_between_two_measurements_is_refused_where_the_rule_decides() -> None:
    with pytest.raises(UnsupportedError, match="rounding of cells"):
        _plan("2025-11-10", ctx_size=5000, parallel=1)
    with pytest.raises(UnsupportedError, match="streams of their own"):
        _plan("b6100", ctx_size=5000, parallel=2, flash_attn="on")
    with pytest.raises(UnsupportedError, match="flash attention became the default"):
        _plan("b6400", ctx_size=5000, parallel=1)
    with pytest.raises(UnsupportedError, match="sliding layers"):
        _plan("b5000", load_model("gemma-3-27b"), ctx_size=5000, parallel=1)
    with pytest.raises(UnsupportedError, match="does not model the states"):
        _plan("b5000", load_model("qwen3.5-27b"), ctx_size=5000, parallel=1)


def test_before_there_were_windows_every_token_was_kept() -> None:
    gemma = load_model("gemma-3-27b")
    found = _plan("2025-03-14", gemma, ctx_size=8192, parallel=1)
    assert {pool.units for pool in found.rank.pools} == {8192}


def test_spellings() -> None:
    assert build(None) == NEWEST
    assert build("b11434").number == build(" 11434 ").number == 11434
    assert build("2025-11-19").text == "2025-11-19"
    assert build("2025-11-19").number < build("2026-01-27").number
