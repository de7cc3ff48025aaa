"""Sizes and tokens: every spelling that is read, every one that is refused, and what is printed."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.units import (
    add_rates,
    cdiv,
    format_bytes,
    format_count,
    format_ratio,
    parse_bytes,
    parse_tokens,
    round_up,
)

ARABIC_15 = "\u0661\u0665"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("123", 123),
        ("00012", 12),
        ("  5 ", 5),
        ("7 bytes", 7),
        ("5B", 5),
        ("983,040 B", 983_040),
        ("1KiB", 1024),
        ("1,234.5 KiB", 1_264_128),
        ("512MiB", 536_870_912),
        ("15GiB", 16_106_127_360),
        ("15\tGiB", 16_106_127_360),
        ("2TiB", 2_199_023_255_552),
        ("1PiB", 1_125_899_906_842_624),
        ("1kB", 1000),
        ("1KB", 1000),
        ("3MB", 3_000_000),
        ("15GB", 15_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("1PB", 1_000_000_000_000_000),
        ("0.5KiB", 512),
    ],
)
def test_parse_bytes(text: str, expected: int) -> None:
    """Binary names are powers of two, decimal names powers of ten, and no unit means bytes."""
    assert parse_bytes(text) == expected
    assert parse_bytes(text, up=True) == expected


@pytest.mark.parametrize(
    ("text", "down"), [("1.9GiB", 2_040_109_465), ("1.5", 1), ("0.1B", 0), ("0.0009kB", 0)]
)
def test_fraction_of_a_byte(text: str, down: int) -> None:
    """Free memory is rounded down to a byte and requests up."""
    assert parse_bytes(text) == down
    assert parse_bytes(text, up=True) == down + 1


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("40G", ("40GiB (2^30)", "40GB (10^9)")),
        ("40g", ("40GiB (2^30)", "40GB (10^9)")),
        ("40gb", ("40GiB (2^30)", "40GB (10^9)")),
        ("40 Gb", ("40GiB (2^30)", "40GB (10^9)")),
        ("1.5G", ("1.5GiB (2^30)", "1.5GB (10^9)")),
        ("1,000k", ("1,000KiB (2^10)", "1,000kB (10^3)")),
        ("64K", ("64KiB (2^10)", "64kB (10^3)")),
        ("64kb", ("64KiB (2^10)", "64kB (10^3)")),
        ("3m", ("3MiB (2^20)", "3MB (10^6)")),
        ("3T", ("3TiB (2^40)", "3TB (10^12)")),
        ("3p", ("3PiB (2^50)", "3PB (10^15)")),
    ],
)
def test_two_readings(text: str, readings: tuple[str, str]) -> None:
    """A unit that people read in two ways is refused, and the hint spells out both."""
    with pytest.raises(InvalidValueError) as caught:
        parse_bytes(text)

    assert caught.value.message == f"{text!r} has more than one reading"
    assert caught.value.hint == f"write {readings[0]} or {readings[1]}"


@pytest.mark.parametrize("text", ["5 Bytes", "40b", "2EiB", "3GiBs", "4blocks", "1 KBit"])
def test_unknown_unit(text: str) -> None:
    """A unit that means nothing is refused with the known ones."""
    with pytest.raises(InvalidValueError, match="unknown unit") as caught:
        parse_bytes(text)

    assert "GiB" in caught.value.hint
    assert "GB" in caught.value.hint


NO_SIZES = [
    "",
    "   ",
    "GiB",
    "-1",
    "+1",
    "-1GiB",
    "1,00",
    "1,0000",
    ",100",
    "1_000",
    "1e9",
    "0x10",
    ".5GiB",
    "5.GiB",
    "1.2.3",
    "1/2",
    "nan",
    "inf",
    "15GiB 3",
    "15\u00a0GiB",
    ARABIC_15,
    f"{ARABIC_15}GiB",
    "15\uff27iB",
    "\u00b2",
    "9" * 61,
    "1" + " " * 80 + "B",
]


@pytest.mark.parametrize("text", NO_SIZES)
def test_no_size(text: str) -> None:
    """What is no plain number with a unit is refused, in one short line."""
    with pytest.raises(InvalidValueError, match="is not a size") as caught:
        parse_bytes(text)

    assert caught.value.hint
    assert len(caught.value.message) < 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8192", 8192), ("131,072", 131_072), (" 1 ", 1), ("1" + "0" * 12, 10**12)],
)
def test_parse_tokens(text: str, expected: int) -> None:
    assert parse_tokens(text) == expected


def test_minimum_of_tokens() -> None:
    """Zero tokens are refused unless the caller allows them."""
    assert parse_tokens("0", minimum=0) == 0
    with pytest.raises(InvalidValueError, match="out of range") as caught:
        parse_tokens("0")
    assert caught.value.hint == "tokens go from 1 to 1000000000000"


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("32k", "write 32000 or 32768"),
        ("32K", "write 32000 or 32768"),
        ("128 k", "write 128000 or 131072"),
        ("1m", "write 1000000 or 1048576"),
    ],
)
def test_tokens_with_two_readings(text: str, readings: str) -> None:
    """32k is 32,000 to some and 32,768 to others."""
    with pytest.raises(InvalidValueError, match="two readings") as caught:
        parse_tokens(text)

    assert caught.value.hint == readings


@pytest.mark.parametrize("text", [*NO_SIZES, "1.5k", "8192.0", "8k tokens", "32kb", "5B", "32ki"])
def test_no_tokens(text: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a number of tokens"):
        parse_tokens(text)


@pytest.mark.parametrize("text", ["1000000000001", "9" * 60])
def test_too_many_tokens(text: str) -> None:
    with pytest.raises(InvalidValueError, match="out of range"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("value", "binary", "decimal"),
    [
        (0, "0 B", "0 B"),
        (1, "1 B", "1 B"),
        (1000, "1,000 B", "1 kB"),
        (1023, "1,023 B", "1,023 B"),
        (1024, "1 KiB", "1,024 B"),
        (65_536, "64 KiB", "65.54 kB"),
        (983_040, "960 KiB", "983.04 kB"),
        (1_048_576, "1 MiB", "1.05 MB"),
        (1_572_864, "1.5 MiB", "1.57 MB"),
        (2_031_616, "1,984 KiB", "2.03 MB"),
        (2_500_000, "2.38 MiB", "2.5 MB"),
        (48 * 3_207_168, "146.8 MiB", "153.9 MB"),
        (200 * 131_072, "25 MiB", "26.21 MB"),
        (536_870_912, "512 MiB", "536.9 MB"),
        (2_040_109_465, "1.9 GiB", "2.04 GB"),
        (15 * 2**30, "15 GiB", "16.11 GB"),
        (40 * 10**9, "37.25 GiB", "40 GB"),
        (2**50, "1 PiB", "1.13 PB"),
        (2**60, "1,024 PiB", "1,152.9 PB"),
        (-983_040, "-960 KiB", "-983.04 kB"),
    ],
)
def test_format_bytes(value: int, binary: str, decimal: str) -> None:
    """Two decimals of the largest unit, whole numbers of a smaller one, and only then rounding."""
    assert format_bytes(value) == binary
    assert format_bytes(value, units="decimal") == decimal


@pytest.mark.parametrize(
    ("value", "expected"), [(12_344, "12.34 kB"), (12_345, "12.35 kB"), (12_346, "12.35 kB")]
)
def test_halves_are_rounded_up(value: int, expected: str) -> None:
    assert format_bytes(value, units="decimal") == expected


def test_no_unit_above_the_largest() -> None:
    """What rounds up in the largest unit stays in it; `1 PB` would be a thousandth."""
    assert format_bytes(999_960 * 10**12 + 1, units="decimal") == "1,000 PB"
    assert format_bytes(2**60 - 1) == "1,024 PiB"


def test_exact() -> None:
    """Exact means every digit, in bytes, in either system."""
    assert format_bytes(983_040, exact=True) == "983,040 B"
    assert format_bytes(-5, units="decimal", exact=True) == "-5 B"
    assert format_bytes(2**100, exact=True) == f"{2**100:,} B"


def test_exact_digits_survive() -> None:
    """Bytes are ints of any size: reading back what was printed loses no digit."""
    value = 2**100 + 1

    assert parse_bytes(format_bytes(value, exact=True)) == value


def test_fraction_with_many_digits() -> None:
    """However many digits a fraction has, less than a byte rounds down to none."""
    assert parse_bytes("0." + "9" * 40) == 0


def test_counts_and_ratios() -> None:
    assert format_count(65536) == "65,536"
    assert format_ratio(0.85656738) == "85.66 %"
    assert format_ratio(0.0) == "0.00 %"


def test_division() -> None:
    assert [cdiv(n, 16) for n in (0, 1, 15, 16, 17)] == [0, 1, 1, 1, 2]
    assert [round_up(n, 256) for n in (0, 1, 256, 5000)] == [0, 256, 256, 5120]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], (0, 1)),
        ([(1024, 1)], (1024, 1)),
        ([(1024, 1), (512, 1)], (1536, 1)),
        ([(0, 7), (2, 1)], (2, 1)),
        # 584 B with every fourth token: 146 B a token.
        ([(1024, 1), (584, 4)], (1170, 1)),
        ([(1152, 2)], (576, 1)),
        ([(132, 128)], (33, 32)),
        # 8 entries of 584 B in 32 tokens, and one of 100 B: 4,772 B.
        ([(584, 4), (100, 32)], (1193, 8)),
        ([(584, 4), (584, 6)], (730, 3)),
    ],
)
def test_add_rates(rates: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    """Mean rates are added exactly and given in lowest terms."""
    assert add_rates(rates) == expected
