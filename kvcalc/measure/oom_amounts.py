"""Sizes as out-of-memory texts print them, with the range that prints so."""

from __future__ import annotations

import re
from fractions import Fraction

from kvcalc.core.oom_values import Amount
from kvcalc.core.units import cdiv

__all__ = ["SIZE", "add", "amount", "exact", "found", "minus"]

SIZE = r"\d{1,20}(?:\.\d{1,6}|,\d{1,2}(?!\d))?\s?(?:bytes|[KMGT]i?B?|B)\b"
"""A figure with its unit, for use inside a pattern.

Some locales print a decimal comma; before three digits it could part thousands, and is not read.
"""

_PARTS = re.compile(r"(?P<whole>\d+)(?:[.,](?P<decimals>\d+))?\s?(?P<unit>\w+)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def amount(text: str) -> Amount:
    """Read a figure; every unit is a power of 1024, as all these programs print them.

    >>> amount("1.00 KiB").high
    1029
    """
    match = _PARTS.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = 1024 ** _POWERS.get(match["unit"][0], 0)
    decimals = match["decimals"] or ""
    value = Fraction(int(match["whole"] + decimals), 10 ** len(decimals)) * unit
    # Nothing prints a fraction of a byte: the last digit is half a step off at most.
    half = Fraction(unit, 2 * 10 ** len(decimals)) if unit > 1 else Fraction(0)
    low = max(Fraction(0), value - half)
    return Amount(
        text=" ".join(text.split()),
        bytes=int(value + Fraction(1, 2)),
        low=cdiv(low.numerator, low.denominator),
        high=int(value + half),
    )


def exact(value: int) -> Amount:
    """Return an amount that is told to the byte."""
    return Amount(text=f"{value} bytes", bytes=value, low=value, high=value)


def found(pattern: str, text: str) -> Amount | None:
    """Return the amount in the first group of a pattern, where it is in a text."""
    match = re.search(pattern.replace("<U>", f"({SIZE})"), text)
    return None if match is None else amount(match[1])


def minus(whole: Amount | None, part: Amount | None) -> Amount | None:
    """Return what is left, with the range of both; never below zero."""
    if whole is None or part is None:
        return None
    return Amount(
        text=f"{whole.text} - {part.text.replace(' + ', ' - ')}",
        bytes=max(0, whole.bytes - part.bytes),
        low=max(0, whole.low - part.high),
        high=max(0, whole.high - part.low),
    )


def add(one: Amount, other: Amount) -> Amount:
    """Return the sum, with the range of both."""
    return Amount(
        text=f"{one.text} + {other.text}",
        bytes=one.bytes + other.bytes,
        low=one.low + other.low,
        high=one.high + other.high,
    )
