"""Whole numbers, tokens, sizes and words as they were typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UnknownNameError
from kvcalc.core.lengths import OVER_POLICIES, Over
from kvcalc.core.units import UNIT_SYSTEMS, UnitSystem, parse_bytes, parse_tokens
from kvcalc.core.values import MAX_DIMENSION

__all__ = [
    "MAX_LISTED",
    "choice",
    "cut",
    "number",
    "one_of",
    "over_policy",
    "seconds",
    "size",
    "some_size",
    "switched",
    "token_count",
    "tokens",
    "unit_system",
    "whole",
    "whole_from_0",
]

MAX_LISTED = 100_000
"""Lengths or holes in one list."""

_MAX_DIGITS = 20
_MAX_SHOWN = 40  # characters of a wrong value that a message repeats
_T = TypeVar("_T")


def whole(text: str, high: int = MAX_DIMENSION) -> int:
    """Read a whole number from 1 to `high`.

    Raises:
        InvalidValueError: it is none.
    """
    digits = text.strip()
    if (
        not digits.isascii()
        or not digits.isdigit()
        or len(digits) > _MAX_DIGITS
        or not 1 <= int(digits) <= high
    ):
        raise InvalidValueError(
            f"{cut(text)!r} is not a whole number from 1 to {high}",
            hint="write a number such as 16",
        )
    return int(digits)


def cut(text: str) -> str:
    """Return a wrong value as a message repeats it."""
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def number(values: Values, name: str) -> int | None:
    """Read a whole number of at least 1; None when it was not given."""
    given = values[name]
    return None if given is None else values.at(name, lambda: whole(given))


def whole_from_0(values: Values, name: str) -> int | None:
    """Read a whole number of at least 0; None when it was not given."""
    if values[name] is None:
        return None
    given = str(values[name])
    return 0 if given.strip() == "0" else values.at(name, lambda: whole(given))


def tokens(values: Values, name: str) -> int | None:
    """Read a number of tokens; None when it was not given."""
    given = values[name]
    return (
        None
        if given is None
        else values.at(name, lambda: parse_tokens(given, maximum=MAX_DIMENSION))
    )


def token_count(text: str) -> int:
    """Read one number of tokens, such as 4096 or 32Ki."""
    return parse_tokens(text, maximum=MAX_DIMENSION)


def some_size(
    values: Values, name: str, what: str, example: str, *, up: bool = False
) -> int | None:
    """Read a size in bytes that must be something; None when it was not given.

    Raises:
        InvalidValueError: nothing.
    """
    found = size(values, name, up=up)
    if found == 0:
        raise InvalidValueError(
            f"{what} of 0 B hold{'' if what.endswith('s') else 's'} nothing",
            hint=f"give a size such as {example}",
            where=values.places[name],
        )
    return found


_LONGEST_WAIT = 3_600


def seconds(values: Values, name: str, default: float) -> float:
    """Read a time in seconds, up to an hour.

    Raises:
        InvalidValueError: no such time.
    """
    if values[name] is None:
        return default
    given = str(values[name]).strip()
    plain = given.replace(".", "", 1)
    if not (plain.isascii() and plain.isdigit() and 0 < float(given) <= _LONGEST_WAIT):
        raise InvalidValueError(
            f"{cut(given)!r} is no time above 0 and up to {_LONGEST_WAIT} s",
            hint="write seconds, such as 5 or 0.5",
            where=values.places[name],
        )
    return float(given)


def size(values: Values, name: str, *, up: bool = False) -> int | None:
    """Read a size in bytes; None when it was not given."""
    given = values[name]
    return None if given is None else values.at(name, lambda: parse_bytes(given, up=up))


def choice(values: Values, name: str, known: Sequence[_T]) -> _T:
    """Return the known value of that spelling; the first when none was given."""
    given = values[name]
    return known[0] if given is None else one_of(given, known, values.places.get(name, name))


def one_of(given: str, known: Sequence[_T], where: str) -> _T:
    """Return the known value of that spelling.

    Raises:
        UnknownNameError: there is none; the known ones are listed.
    """
    for value in known:
        if value == given:
            return value
    raise UnknownNameError("value", given, [str(k) for k in known], where=where)


def unit_system(values: Values) -> UnitSystem:
    """Read --units."""
    return choice(values, "units", UNIT_SYSTEMS)


def over_policy(values: Values) -> Over:
    """Read --over."""
    return choice(values, "over", OVER_POLICIES)


_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


def switched(values: Values, name: str) -> bool | None:
    """Read a switch; None where it is left to the engine."""
    given = values[name]
    if given is None or isinstance(given, bool):
        return given
    word = str(given).strip().lower()
    if word in (*_ON, *_OFF):
        return word in _ON
    raise InvalidValueError(
        f"{cut(str(given))!r} is neither true nor false",
        hint="write true or false",
        where=values.places[name],
    )
