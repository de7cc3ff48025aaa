"""What an expression of a template gives, as far as the values beside it and its defaults say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = ["Lookup", "evaluated", "lookup_of", "shortened"]

Lookup = Callable[[str], object]
"""A value of a name such as `.Values.maxModelLen`: text, number, list or mapping; None for none."""

_KEEPS = {"quote", "squote", "toString", "int", "int64", "float64", "trim", "string", "float"}
_NAME = re.compile(r"\$?\.?[A-Za-z_][\w.-]*|\.[A-Za-z_][\w.-]*")
_LITERAL = re.compile(r"""^(?:"([^"]*)"|'([^']*)'|`([^`]*)`|([-+\w./:@]+))$""")
_CALLED = re.compile(r"^(default|d)\s*\((.*)\)$", re.DOTALL)
_DEFAULT = re.compile(r"""^default\s+("[^"]*"|'[^']*'|`[^`]*`|\S+)(?:\s+(\S+))?$""")
_MOST_SHOWN = 60


def lookup_of(values: Mapping[str, object]) -> Lookup:
    """Return a lookup of `.Values.a.b` in plain values."""

    def find(name: str) -> object:
        head, _, rest = name.removeprefix("$").removeprefix(".").partition(".")
        if head != "Values" or not rest:
            return None
        value: object = values
        for key in rest.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return find


def evaluated(inner: str, lookup: Lookup | None) -> tuple[str, str | None]:
    """Return an expression's name, and its value where one is known."""
    base, *filters = [part.strip() for part in _piped(inner)]
    value, name = None, shortened(inner)
    if function := _DEFAULT.match(base):
        value, base = _literal(function[1]), function[2] or ""
    if base.startswith("required "):
        base = base.split()[-1]
    if _NAME.fullmatch(base):
        name = base
        known = _text(lookup(base)) if lookup else None
        value = value if known is None else known
    for each in filters:
        if (called := _CALLED.match(each)) is not None:
            given = _literal(called[2].split(",")[0].strip())
        elif (function := _DEFAULT.match(each)) is not None:
            given = _literal(function[1])
        elif each in _KEEPS:
            continue
        else:
            return name, None
        value = given if value in (None, "") else value
    return name, value


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _piped(inner: str) -> list[str]:
    """Split at the bars that are not quoted."""
    parts, quote, at = [], "", 0
    for place, char in enumerate(inner):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`":
            quote = char
        elif char == "|":
            parts.append(inner[at:place])
            at = place + 1
    return [*parts, inner[at:]]


def _literal(text: str) -> str | None:
    found = _LITERAL.match(text)
    if found is None or text.startswith((".", "$")):
        return None
    return next((group for group in found.groups() if group is not None), None)


def shortened(inner: str) -> str:
    """Return an expression as messages may name it."""
    text = " ".join(inner.split())
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
