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
GEMMA = load_model("gemma-3-27b")

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


def _notes(found: CachePlan) -> list[str]:
    return [note for note in found.notes if note.startswith("between b")]


@pytest.mark.parametrize(
    ("build", "model", "args", "taken", "other"),
    [
        # Rounded up to 256 or not at all; not at all or to 256 again.
        ("b6800", LLAMA, {"ctx_size": 5000}, 5120 * 32 * 4096, 5000 * 32 * 4096),
        ("b7000", LLAMA, {"ctx_size": 5000}, 5120 * 32 * 4096, 5000 * 32 * 4096),
        # To 256 with flash attention, to 32 without.
        ("b6400", LLAMA, {"ctx_size": 5000}, 5120 * 32 * 4096, 5024 * 32 * 4096),
        # A stream for each of three, rounded up to 32, or one pool.
        (
            *("b6100", LLAMA, {"ctx_size": 5000, "parallel": 3, "flash_attn": "off"}),
            *(3 * 1696 * 32 * 4096, 5024 * 32 * 4096),
        ),
        ("b8000", DEEPSEEK, {"ctx_size": 8192}, 8192 * 61 * 1088 * 2, 8192 * 61 * 576 * 2),
        # 52 of 62 layers have a window of 1,024.
        (
            *("b5000", GEMMA, {"ctx_size": 8192, "flash_attn": "on"}),
            *(8192 * 62 * 8192, (8192 * 10 + 1536 * 52) * 8192),
        ),
        # Four slots that share one cache, or one.
        (
            *("b7000", GEMMA, {"ctx_size": 8192}),
            *((8192 * 10 + 4608 * 52) * 8192, (8192 * 10 + 1536 * 52) * 8192),
        ),
    ],
)
def test_between_two_builds_that_are_known_the_larger_is_taken_and_both_are_said(
    build: str, model: Any, args: dict[str, Any], taken: int, other: int
) -> None:
    found = _plan(build, model, **{"parallel": 1, **args})
    assert sum(pool.total_bytes(pool.units or 0) for pool in found.rank.pools) == taken
    (note,) = _notes(found)
    assert f"{taken:,} B" in note
    assert f"{other:,} B" in note


def test_a_build_between_two_that_agree_says_nothing() -> None:
    for day in ("b6800", "b6950", "b7000", "b7050"):
        found = _plan(day, ctx_size=8192, parallel=2)
        assert not _notes(found)
        assert sum(p.units or 0 for p in found.rank.pools) == 8192
    assert not _notes(_plan("b8000", ctx_size=8192, parallel=2))
    assert not _notes(_plan("b5000", ctx_size=8192, parallel=1, flash_attn="off"))


def test_states_of_old_builds_are_not_known() -> None:
    with pytest.raises(UnsupportedError, match="does not model the states"):
        _plan("b5000", load_model("qwen3.5-27b"), ctx_size=5000, parallel=1)


@pytest.mark.parametrize(
    ("build", "slots"), [("b6907", 1), ("b7079", 4), ("b7342", 4), ("b7430", 1), (None, 1)]
)
def test_one_slot_was_four_for_some_weeks(build: str | None, slots: int) -> None:
    """tools/server/server.cpp: "setting n_parallel = 4 and kv_unified = true"."""
    found = _plan(build, ctx_size=8192, parallel=1)
    assert found.max_sequences == slots
    assert _plan(build, ctx_size=8192, parallel=1, kv_unified=True).max_sequences == 1
    assert _plan(build, ctx_size=8192, parallel=2).max_sequences == 2


def test_before_there_were_windows_every_token_was_kept() -> None:
    gemma = load_model("gemma-3-27b")
    found = _plan("2025-03-14", gemma, ctx_size=8192, parallel=1)
    assert {pool.units for pool in found.rank.pools} == {8192}


def test_spellings() -> None:
    assert build(None) == NEWEST
    assert build("b11434").number == build(" 11434 ").number == 11434
    assert build("2025-11-19").text == "2025-11-19"
    assert build("2025-11-19").number < build("2026-01-27").number
