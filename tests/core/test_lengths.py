from __future__ import annotations

import copy
import pickle
from collections import Counter
from typing import Any

import numpy as np
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


@pytest.mark.parametrize(
    "lengths",
    [
        [200, 1200, 200],
        (n for n in (200, 1200, 200)),
        np.array([200, 1200, 200]),
        np.array([200, 1200, 200], np.uint16),
        np.array([200, 1200, 200], object),
        np.array([0, 200, 1, 1200, 2, 200])[1::2],
        [np.int32(200), 1200, np.uint64(200)],
    ],
    ids=lambda value: type(value).__name__,
)
def test_of_integers(lengths: Any) -> None:
    """Integers of any kind are counted alike, as plain ints."""
    found = Lengths.of(lengths)

    assert found == Lengths({200: 2, 1200: 1})
    assert {type(n) for pair in found for n in pair} == {int}


def test_of_an_array_of_nothing() -> None:
    """An empty list becomes an array of floats."""
    assert Lengths.of(np.array([])) == Lengths({})


def test_of_more_than_a_chunk() -> None:
    """What is looked at in chunks is counted in full, and a fault is told by its place in all."""
    many = [7, 9] * 100_000

    assert Lengths.of(many) == Lengths.of(np.array(many)) == Lengths({7: 100_000, 9: 100_000})
    with pytest.raises(InvalidValueError, match=r"request 200000 is 7\.0 \(float\)"):
        Lengths.of([*many, 7.0])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("lengths", "message", "hint"),
    [
        ([1.5], r"request 0 is 1\.5 \(float\), not a whole number", "list of ints"),
        ([1, 1.0], r"request 1 is 1\.0", "list of ints"),
        ([1, True], r"request 1 is True \(bool\)", "list of ints"),
        ([np.bool_(1)], "request 0 is of type bool", "list of ints"),
        ([[1, 2]], "request 0 is of type list", "list of ints"),
        ([np.array([1, 2])], "request 0 is of type ndarray", "list of ints"),
        ("abc", r"request lengths are 'abc' \(str\)", "list of ints"),
        (b"abc", "request lengths are of type bytes", "list of ints"),
        (1.5, "request lengths are 1.5", "list of ints"),
        (None, "request lengths are of type NoneType", ".lengths of a trace"),
        ({1: 2}, "request lengths are of type dict", "kvcalc.Lengths({200: 50})"),
        (Counter([1]), "request lengths are of type Counter", "kvcalc.Lengths({200: 50})"),
        (np.ones((2, 2), int), "an array of 2 dimensions", "array.ravel()"),
        (np.array(5), "an array of 0 dimensions", "array.ravel()"),
        (np.array([1.5]), "an array of float64, not of integers", "astype"),
        (np.array([True]), "an array of bool", "astype"),
        (np.array(["1"]), "an array of <U1", "astype"),
        (np.ma.array([1, 2], mask=[False, True]), "request 1 is of type NoneType", "list of ints"),
    ],
)
def test_of_something_else(lengths: Any, message: str, hint: str) -> None:
    """What is no list of integers is refused, with a word on what to give."""
    with pytest.raises(InvalidValueError, match=message) as caught:
        Lengths.of(lengths)

    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({1.5: 1}, "a request length is 1.5"),
        ({True: 1}, "a request length is True"),
        ({1: True}, "a number of requests is True"),
        ({1: 2.0}, "a number of requests is 2.0"),
        ([200], "requests by length are of type list, not a mapping"),
    ],
)
def test_histogram_of_something_else(counts: Any, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message) as caught:
        Lengths(counts)

    assert "kvcalc.Lengths" in caught.value.hint or "list of ints" in caught.value.hint


def test_histogram_of_numpy_integers() -> None:
    (pair,) = Lengths({np.int64(5): np.int64(2)})  # type: ignore[dict-item]

    assert pair == (5, 2)
    assert [type(n) for n in pair] == [int, int]


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
