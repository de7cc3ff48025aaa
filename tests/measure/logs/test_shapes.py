"""Figures as they are printed, and the templates of lines."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.measure.logs.line_patterns import read, shape
from kvcalc.measure.logs.starts import BY_ENGINE, SHAPES, matters, shapes_near, starts_of
from tests.measure.logs.samples import ALL

_GIB = 2**30


@given(st.integers(0, 10**12), st.sampled_from(("GiB", "MiB")))
def test_the_range_holds_what_was_printed(size: int, unit: str) -> None:
    """Any size lies in the range of its own print, with two decimals or with zeros left out."""
    scale = 2**30 if unit == "GiB" else 2**20
    for text in (f"{size / scale:.2f}", f"{round(size / scale, 2)}"):
        found = read(text, unit)
        assert found.low is not None
        assert found.high is not None
        assert found.low <= size <= found.high
        assert found.high - found.low <= scale / 100 + 1


@pytest.mark.parametrize("text", ["5.0", "9.3", "1.1", "24"])
def test_zeros_left_out_are_still_two_decimals(text: str) -> None:
    """As vLLM prints round(x, 2), 1.1 is no wider a range than 1.10."""
    assert read(text, "GiB")[1:] == read(f"{float(text):.2f}", "GiB")[1:]


def test_more_decimals_are_a_narrower_range() -> None:
    found = read("14.9888", "GiB")
    assert (found.low, found.high) == (
        -(-Fraction("14.98875") * _GIB // 1),
        Fraction("14.98885") * _GIB // 1,
    )


def test_negative_figures() -> None:
    found = read("-0.90", "GiB")
    assert found.low is not None
    assert found.low < -0.9 * _GIB < (found.high or 0) < 0


def test_a_floor_is_a_range_above() -> None:
    """LMDeploy prints whole MB, rounded down."""
    found = read("64", "MiB-floor")
    assert (found.low, found.high) == (64 * 2**20, 65 * 2**20 - 1)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("0 bytes", 0, 0), ("254.0 MiB", 266285876, 266390732), ("2 GiB", 3 * 2**29, 5 * 2**29)],
)
def test_sizes_with_their_own_unit(text: str, low: int, high: int) -> None:
    found = read(text, "size")
    assert (found.low, found.high) == (low, high)


def test_thousands_and_plain_digits() -> None:
    assert read("1,048,576", "tokens").low == read("1048576", "tokens").low == 1048576


def test_a_template() -> None:
    made = shape("size", "size = <a:MiB> MiB (~<n:count> cells[, <s:count> seqs]){ ok| no}")
    match = made.expression.search("x: size =  1.50 MiB (   8 cells, 2 seqs) ok")
    assert match is not None
    assert match.groupdict() == {"a": "1.50", "n": "8", "s": "2"}
    assert made.expression.search("size = 1.50 MiB (8 cells) no")
    assert not made.expression.search("size = 1.50 MB (8 cells) no")


@pytest.mark.parametrize("engine", BY_ENGINE)
def test_no_line_is_passed_over_before_it_is_looked_at(engine: str) -> None:
    """What a shape needs in a line is enough for the line to be looked at."""
    assert all(matters(f"... {one.needle} ...") for one in BY_ENGINE[engine])
    assert not matters('INFO: 10.0.0.1:1234 - "POST /v1/chat/completions HTTP/1.1" 200 OK')


def test_a_needle_is_found_wherever_it_stands() -> None:
    """A line is cut into pieces of four letters: a needle may begin at each of a piece's."""
    for number, (_, one) in enumerate(SHAPES):
        for before in range(8):
            for behind in range(4):
                line = "#" * before + one.needle + "#" * behind
                assert number in [near for near, _, _ in shapes_near(line)], line
    assert list(shapes_near("#" * 100)) == []


def test_every_shape_that_samples_have_is_read() -> None:
    """The samples have lines of every engine that is catalogued."""
    engines = {s.engine for text in ALL.values() for s in starts_of(enumerate(text.split("\n"), 1))}
    assert engines == set(BY_ENGINE) - {"exllamav2"}
