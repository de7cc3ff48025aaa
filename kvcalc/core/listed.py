"""Request lengths as people list them: `200,1200,700`, or `50x200` for fifty of 200."""

from __future__ import annotations

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.units import parse_tokens

__all__ = ["MAX_LISTED", "parse_lengths"]

MAX_LISTED = 100_000
"""Lengths in one list."""

_MOST_REQUESTS = 100_000_000_000_000_000_000  # of one length
_MAX_DIGITS = 21
_MAX_SHOWN = 40


def parse_lengths(text: str) -> Lengths:
    """Read `200,1200,700` or `3x200,1200`: a request each, or as many as the factor says.

    Raises:
        InvalidValueError: no length, or more than MAX_LISTED of them.

    >>> parse_lengths("50x200,1200").pairs
    ((200, 50), (1200, 1))
    """
    counts: dict[int, int] = {}
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_LISTED:
        raise InvalidValueError(
            f"{len(parts)} lengths in one list", hint="write them to a file and use a trace"
        )
    for part in parts:
        factor, times, length = part.rpartition("x")
        if not length or (times and not factor):
            raise InvalidValueError(
                f"{_cut(part)!r} is no length", hint="write lengths such as 200,1200 or 50x700"
            )
        n = parse_tokens(length)
        counts[n] = counts.get(n, 0) + (_requests(factor) if times else 1)
    return Lengths(counts)


def _requests(text: str) -> int:
    digits = text.strip()
    plain = digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS
    if not plain or not 1 <= int(digits) <= _MOST_REQUESTS:
        raise InvalidValueError(
            f"{_cut(text)!r} is not a whole number from 1 to {_MOST_REQUESTS}",
            hint="write a number such as 16",
        )
    return int(digits)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
