"""Numbers as each program reads them: a suffix means one thing here and another there."""

from __future__ import annotations

import math
import re
from decimal import Decimal

__all__ = ["BadNumberError", "decimal", "iec_or_si", "short", "whole"]

_MOST = 2**62
_WHOLE = re.compile(r"[+-]?\d{1,19}(?:_\d{1,19}){0,4}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,3})?", re.ASCII)
_SHORT = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)([kKmMgGtT])", re.ASCII)
_IEC_OR_SI = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)([kMGT]|[KMGT]i)", re.ASCII)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}


class BadNumberError(ValueError):
    """A text that a program does not take for a number.

    Args:
        cure: what to write; "" where an example of the setting says it best.
    """

    def __init__(self, cure: str = "") -> None:
        super().__init__(cure)
        self.cure = cure


def whole(text: str) -> int:
    """Read a whole number without a suffix.

    Raises:
        BadNumberError: anything else.

    >>> whole("4096")
    4096
    """
    text = text.strip()
    if not _WHOLE.fullmatch(text) or abs(int(text)) > _MOST:
        plain = _plain(text)
        raise BadNumberError(f"write {plain}" if plain else "")
    return int(text)


def decimal(text: str) -> float:
    """Read a number with or without a fraction.

    Raises:
        BadNumberError: anything else.

    >>> decimal(".9")
    0.9
    """
    text = text.strip()
    value = float(text) if _DECIMAL.fullmatch(text) else math.inf
    if not math.isfinite(value):
        raise BadNumberError
    return value


def short(text: str) -> int:
    """Read a whole number as vLLM does: k, m, g, t count by 1000, K, M, G, T by 1024.

    Raises:
        BadNumberError: anything else; a fraction before a suffix that counts by 1024.

    >>> short("32k"), short("32K"), short("25.6k")
    (32000, 32768, 25600)
    """
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        return whole(text)
    number, suffix = match.groups()
    power = _POWER[suffix.lower()]
    if suffix.islower():
        return _bounded(Decimal(number) * 1000**power)
    if "." in number:
        raise BadNumberError(f"write a whole number before {suffix}, or {number}{suffix.lower()}")
    return _bounded(Decimal(number) * 1024**power)


def iec_or_si(text: str) -> int:
    """Read a whole number as SGLang does: k, M, G, T count by 1000, Ki, Mi, Gi, Ti by 1024.

    Raises:
        BadNumberError: anything else, such as 32K; a fraction before a suffix that counts by 1024.

    >>> iec_or_si("32k"), iec_or_si("32Ki")
    (32000, 32768)
    """
    text = text.strip()
    match = _IEC_OR_SI.fullmatch(text)
    if match is None:
        wrong = _SHORT.fullmatch(text)
        if wrong is None:
            return whole(text)
        number, suffix = wrong.groups()
        letter = "k" if suffix == "K" else suffix.upper()
        raise BadNumberError(
            f"write {number}{letter} (by 1000) or {number}{suffix.upper()}i (by 1024)"
        )
    number, suffix = match.groups()
    power = _POWER[suffix[0].lower()]
    if len(suffix) == 1:
        return _bounded(Decimal(number) * 1000**power)
    if "." in number:
        raise BadNumberError(f"write a whole number before {suffix}")
    return _bounded(Decimal(number) * 1024**power)


def _bounded(value: Decimal) -> int:
    if value > _MOST:
        raise BadNumberError("write a smaller number")
    return int(value)


def _plain(text: str) -> str:
    """Return what a suffix most likely means, written out; "" where there is none."""
    match = _SHORT.fullmatch(text)
    if match is None:
        return ""
    number, suffix = match.groups()
    power = _POWER[suffix.lower()]
    base = 1000 if suffix.islower() or "." in number else 1024
    value = Decimal(number) * base**power
    return str(int(value)) if value == int(value) and value <= _MOST else ""
