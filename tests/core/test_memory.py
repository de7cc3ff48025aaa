"""Budgets are intervals: what is left follows from the ends of what is taken."""

from __future__ import annotations

import pytest

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks
from kvcalc.core.visible import visible
from kvcalc.weights.widths import Span

_GIB = 2**30


def _term(low: int, high: int) -> Term:
    return Term(name="activation", low_bytes=low, high_bytes=high, source="a test")


def _budget(**given: object) -> MemoryBudget:
    fields: dict[str, object] = {
        "total_bytes": 1000,
        "share_bytes": (800, 900),
        "share_source": "a test",
        "terms": (_term(100, 150), _term(50, 50)),
    }
    return MemoryBudget(**{**fields, **given})  # type: ignore[arg-type]  # fields by name


def test_what_is_left() -> None:
    """The least share less the most that is taken, and the other way round."""
    assert _budget().cache_bytes == (600, 750)


def test_a_part_of_what_is_left() -> None:
    """An engine that takes a part of the free memory gives the cache that part, rounded down."""
    assert _budget(cache_part=(9, 10)).cache_bytes == (540, 675)


def test_what_does_not_fit_is_below_nothing() -> None:
    """Weights that leave nothing are a result, not an error."""
    assert _budget(terms=(_term(2000, 2000),)).cache_bytes == (-1200, -1100)


def test_outside_leaves_as_much() -> None:
    """What is taken beside the share does not change what is left of it."""
    assert _budget(outside=(_term(500, 500),)).cache_bytes == _budget().cache_bytes


@pytest.mark.parametrize(
    "wrong", [{"share_bytes": (2, 1)}, {"share_bytes": (-1, 1)}, {"cache_part": (2, 1)}]
)
def test_impossible_shares(wrong: dict[str, object]) -> None:
    """A share that is no interval, or a part above the whole, is refused."""
    with pytest.raises(InvalidValueError):
        _budget(**wrong)


def test_terms() -> None:
    """A term is exact where its ends meet, and no interval is turned round."""
    assert _term(1, 1).exact and not _term(1, 2).exact
    assert gib_term("graphs", 0.5, 1, "a test").high_bytes == _GIB
    with pytest.raises(InvalidValueError, match="no interval"):
        _term(2, 1)
    with pytest.raises(InvalidValueError, match="1 terms of weights for 2 ranks"):
        require_ranks((_term(1, 1),), 2)


def test_spans() -> None:
    """Spans add and grow by their ends; a divided one is rounded outwards."""
    assert Span(1, 3) + Span(2, 5) == (3, 8)
    assert Span(1, 3).times(2, 4) == (2, 12)
    assert Span(3, 7).over(2) == (1, 4)
    assert Span(1, 9).or_more(Span(4, 5)) == (4, 9)


def _gpu(name: str, gib: float, **more: object) -> GpuSpec:
    fields = {"name": name, "title": name, "memory_bytes": int(gib * _GIB), **more}
    return GpuSpec(**fields)  # type: ignore[arg-type]  # fields by name


def test_a_runtime_sees_less_than_the_driver() -> None:
    """A card's figure is measured where logs print it, else a span below the driver's."""
    for gpu in (
        _gpu("h100-80gb", 79.65, compute_capability="9.0"),
        _gpu("some-card", 48, compute_capability="8.6"),
        _gpu("some-accelerator", 64),
    ):
        seen = visible(gpu)
        assert 0 < seen.low_bytes <= seen.high_bytes <= gpu.memory_bytes
        assert gpu.name in seen.what


def test_a_slice_sees_no_more_than_it_has() -> None:
    """A MIG slice that goes by the card's name counts its own memory."""
    seen = visible(_gpu("h100-80gb", 39.5, compute_capability="9.0"))
    assert seen.high_bytes <= int(39.5 * _GIB)


def test_shared_memory_counts_whole() -> None:
    """Memory that the host shares is told as such."""
    seen = visible(_gpu("m9-max", 96, memory_kind="unified"))
    assert seen.low_bytes == seen.high_bytes == 96 * _GIB
    assert "host shares" in seen.what
