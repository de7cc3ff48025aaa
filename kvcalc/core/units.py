"""Bytes and tokens as exact ints: reading them, printing them, dividing them.

Binary names mean powers of two (KiB, MiB, GiB), decimal names powers of ten (kB, MB, GB). A bare
`40G` or `32k` means one thing to one reader and another to the next, so it is refused with both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

from kvcalc.core.errors import InvalidValueError

__all__ = [
    "UNIT_SYSTEMS",
    "UnitSystem",
    "add_rates",
    "cdiv",
    "format_bytes",
    "format_concurrency",
    "format_count",
    "format_number_of",
    "format_ratio",
    "format_times",
    "parse_bytes",
    "parse_tokens",
    "round_up",
]

UnitSystem = Literal["binary", "decimal"]
UNIT_SYSTEMS: tuple[UnitSystem, ...] = ("binary", "decimal")

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_EXACT = {**_BINARY, **_DECIMAL, "KB": 10**3, "bytes": 1}
_NUMBER = r"(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?P<fraction>\.\d+)?"
_SIZE = re.compile(rf"\s*{_NUMBER}\s*(?P<unit>[A-Za-z]*)\s*", re.ASCII)
_MAX_TEXT = 60  # longer than any size that means something; keeps messages and conversions short
_MAX_TOKENS = 10**12
_WHOLE_LIMIT = 2_048  # a whole number of a smaller unit is printed as such below this


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up, for "how many blocks".

    >>> cdiv(17, 16)
    2
    """
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below a.

    >>> round_up(5000, 256)
    5120
    """
    return -(-a // multiple) * multiple


def add_rates(rates: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Add up mean rates of (bytes, tokens) exactly, in lowest terms.

    A compressed cache writes 584 B with every fourth token: 146 B a token on average. Where the
    mean is no whole number, the second part tells for how many tokens it is.

    >>> add_rates([(1024, 1), (584, 4)])
    (1170, 1)
    >>> add_rates([(132, 128)])
    (33, 32)
    """
    total = sum((Fraction(size, tokens) for size, tokens in rates), Fraction(0))
    return total.numerator, total.denominator


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…")


def parse_bytes(text: str, *, up: bool = False) -> int:
    """Read a size such as `123`, `15GiB`, `1.9 GiB`, `40GB` or `983,040 B` as bytes.

    Args:
        text: the size; without a unit it is bytes.
        up: round a fraction of a byte up (requests) instead of down (free memory, holes).

    Raises:
        InvalidValueError: not a size, negative, or a unit with two readings (`40G`, `40gb`).

    >>> parse_bytes("1.9GiB")
    2040109465
    """
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise InvalidValueError(
            f"{_shown(text)} is not a size",
            hint="write bytes, or a number with a unit: 15GiB, 40GB",
        )
    unit = match["unit"] or "B"
    number = Fraction(match["whole"].replace(",", "") + (match["fraction"] or ""))
    if unit not in _EXACT:
        raise _bad_unit(text, match["whole"] + (match["fraction"] or ""), unit)
    exact = number * _EXACT[unit]
    whole = int(exact)
    return whole + 1 if up and exact != whole else whole


def _bad_unit(text: str, number: str, unit: str) -> InvalidValueError:
    letter, folded = unit[0].upper(), unit.lower()
    if letter in "KMGTP" and folded in {letter.lower() + end for end in ("", "b", "ib")}:
        power = "KMGTP".index(letter) + 1
        binary = f"{number}{letter}iB (2^{10 * power})"
        if folded.endswith("ib"):
            return InvalidValueError(
                f"{_shown(text)} has an unknown unit", hint=f"write {number}{letter}iB"
            )
        decimal = f"{number}{'k' if letter == 'K' else letter}B (10^{3 * power})"
        return InvalidValueError(
            f"{_shown(text)} has more than one reading", hint=f"write {binary} or {decimal}"
        )
    return InvalidValueError(
        f"{_shown(text)} has an unknown unit",
        hint=f"units are {', '.join(dict.fromkeys([*_BINARY, *_DECIMAL]))}",
    )


def parse_tokens(text: str, *, minimum: int = 1, maximum: int = _MAX_TOKENS) -> int:
    """Read a whole number of tokens, such as `8192` or `131,072`.

    Raises:
        InvalidValueError: not a whole number, below `minimum`, beyond `maximum`, or `32k`, which
            means 32,000 to some and 32,768 to others.

    >>> parse_tokens("131,072")
    131072
    """
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None or match["fraction"]:
        raise InvalidValueError(
            f"{_shown(text)} is not a number of tokens", hint="write a whole number such as 8192"
        )
    value = int(match["whole"].replace(",", ""))
    unit = match["unit"].lower()
    if unit in ("k", "m"):
        power = 1 if unit == "k" else 2
        raise InvalidValueError(
            f"{_shown(text)} tokens has two readings",
            hint=f"write {value * 1000**power} or {value * 1024**power}",
        )
    if unit:
        raise InvalidValueError(
            f"{_shown(text)} is not a number of tokens", hint="write a whole number such as 8192"
        )
    if not minimum <= value <= maximum:
        raise InvalidValueError(
            f"{_shown(text)} tokens is out of range",
            hint=f"tokens go from {minimum} to {maximum}",
        )
    return value


def _scaled(value: int, unit: int, digits: int) -> str:
    """Return value / unit with `digits` decimals, rounded half up, in exact arithmetic."""
    scale = 10**digits
    scaled = (2 * value * scale + unit) // (2 * unit)
    whole, rest = divmod(scaled, scale)
    text = f"{whole:,}"
    return f"{text}.{rest:0{digits}d}".rstrip("0").rstrip(".") if digits else text


def format_bytes(value: int, *, units: UnitSystem = "binary", exact: bool = False) -> str:
    """Print a byte count for people.

    No digit is lost where none has to be: a value is printed in its largest unit where two
    decimals hold it, else as a whole number of a smaller unit (1,984 KiB) where that is short, and
    only then rounded.

    Args:
        value: bytes; may be negative (a shortfall).
        units: binary (KiB, MiB, GiB) or decimal (kB, MB, GB).
        exact: every digit, in bytes.

    >>> format_bytes(983_040)
    '960 KiB'
    >>> format_bytes(153_944_064)
    '146.8 MiB'
    """
    if value < 0:
        return "-" + format_bytes(-value, units=units, exact=exact)
    if exact:
        return f"{value:,} B"
    table = _BINARY if units == "binary" else _DECIMAL
    name, size = max(((n, s) for n, s in table.items() if s <= max(value, 1)), key=lambda t: t[1])
    if value * 100 % size == 0:
        return f"{_scaled(value, size, 2)} {name}"
    for smaller, unit in sorted(table.items(), key=lambda t: -t[1]):
        if unit <= size and value % unit == 0 and value // unit < _WHOLE_LIMIT:
            return f"{value // unit:,} {smaller}"
    rounded = _scaled(value, size, 1 if value >= 100 * size else 2)
    step = 1024 if units == "binary" else 1000
    above = next((n for n, s in table.items() if s == size * step), None)
    if rounded == f"{step:,}" and above is not None:  # rounded up into the next unit
        name, rounded = above, "1"
    return f"{rounded} {name}"


def format_count(value: int) -> str:
    """Print a count with thousands separated.

    >>> format_count(65536)
    '65,536'
    """
    return f"{value:,}"


def format_number_of(value: int, noun: str) -> str:
    """Print a count with its noun, which gets an s unless there is one.

    >>> format_number_of(1, "KV head"), format_number_of(8, "KV head")
    ('1 KV head', '8 KV heads')
    """
    return f"{format_count(value)} {noun}" + ("" if value == 1 else "s")


def format_concurrency(value: float) -> str:
    """Print sequences at once with two decimals; from a thousand on whole ones alone.

    >>> format_concurrency(15.527), format_concurrency(27_921.4)
    ('15.53', '27,921')
    """
    return f"{value:,.2f}" if value < _WHOLE_FROM else format_count(int(value))


_WHOLE_FROM = 1000


def format_times(value: int, of: int) -> str:
    """Print value / of with at most two decimals, rounded down.

    >>> format_times(15, 2)
    '7.5'
    """
    hundredths = 100 * value // of
    return f"{hundredths // 100:,}.{hundredths % 100:02d}".rstrip("0").rstrip(".")


def format_ratio(ratio: float) -> str:
    """Print a ratio between 0 and 1 as a percentage with two decimals.

    >>> format_ratio(0.85656738)
    '85.66 %'
    """
    return f"{100 * ratio:.2f} %"
