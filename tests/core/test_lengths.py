from __future__ import annotations

import copy
import pickle

import pytest

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import EXAMPLE_LENGTHS, OVER_POLICIES, Lengths

LENGTHS = Lengths.of(EXAMPLE_LENGTHS)


def test_counts() -> None:
    """Lengths are counted and sorted; a count of nothing is dropped."""
    lengths = Lengths({700: 1, 200: 2, 5: 0})

    assert lengths.pairs == ((200, 2), (700, 1))
    assert list(lengths) == [(200, 2), (700, 1)]
    assert (lengths.requests, lengths.tokens, lengths.longest) == (3, 1100, 700)
    assert repr(lengths) == "Lengths(3 requests, 1100 tokens)"


def test_of_nothing() -> None:
    empty = Lengths({})

    assert (empty.requests, empty.tokens, empty.longest) == (0, 0, 0)
    assert empty.percentile(50) == 0
    assert empty == Lengths.of([]) == Lengths({7: 0})


def test_a_histogram_is_a_value() -> None:
    """Equal histograms are equal, hash alike, and cannot be changed."""
    same = Lengths.of([2600, 200, 700, 1200])

    assert same == LENGTHS
    assert hash(same) == hash(LENGTHS)
    assert len({same, LENGTHS, Lengths.of([1])}) == 2
    assert same != Lengths.of([200])
    assert same != EXAMPLE_LENGTHS
    with pytest.raises(AttributeError, match="immutable"):
        same.pairs = ()


def test_a_value_can_be_copied() -> None:
    """A histogram survives pickling and copying, as other processes need it."""
    assert copy.deepcopy(LENGTHS) == LENGTHS
    assert copy.copy(LENGTHS) == LENGTHS
    assert pickle.loads(pickle.dumps(LENGTHS)) == LENGTHS  # noqa: S301  # our own bytes


def test_add() -> None:
    assert Lengths({200: 1, 5: 3}) + Lengths({200: 2, 7: 1}) == Lengths({5: 3, 7: 1, 200: 3})
    assert LENGTHS + Lengths({}) == LENGTHS


@pytest.mark.parametrize("counts", [{-1: 1}, {1: -1}, {5: 1, -7: 0}])
def test_less_than_nothing(counts: dict[int, int]) -> None:
    with pytest.raises(InvalidValueError, match="negative"):
        Lengths(counts)


def test_map() -> None:
    """Lengths that become equal are counted together."""
    assert LENGTHS.map(lambda n: n // 1000) == Lengths({0: 2, 1: 1, 2: 1})


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("clip", {200: 1, 700: 1, 1000: 2}),
        ("exclude", {200: 1, 700: 1}),
        ("keep", {200: 1, 700: 1, 1200: 1, 2600: 1}),
    ],
)
def test_limited(over: str, expected: dict[int, int]) -> None:
    """Requests over 1,000 are cut, dropped or left."""
    policy = next(p for p in OVER_POLICIES if p == over)

    assert LENGTHS.limited(1000, policy) == Lengths(expected)
    assert LENGTHS.limited(2600, policy) is LENGTHS
    assert LENGTHS.requests_over(1000) == 2
    assert LENGTHS.requests_over(2600) == 0


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 200), (25, 200), (26, 700), (50, 700), (51, 1200), (75, 1200), (95, 2600), (100, 2600)],
)
def test_percentile(percent: int, expected: int) -> None:
    """The smallest length that at least so many of a hundred do not exceed."""
    assert LENGTHS.percentile(percent) == expected
