"""From plain values to core values, with every fault of a file found at once, each with its line.

msgspec stops at the first fault and words it for programmers. So a value is first converted whole,
which is all that a good file costs; only where that fails are its fields looked at one by one.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec

from kvcalc.core.errors import KvcalcError, UnknownNameError, nearest
from kvcalc.core.values import Value
from kvcalc.models.documents import Document, KeyPath, Plain
from kvcalc.models.text import printable, shown

__all__ = ["Fault", "Faults", "in_one_line", "named", "unknown", "unknown_field"]

T = TypeVar("T")

_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
}
_EXPECTED = re.compile(
    r"Expected `([a-z | ]+)`(?:, got `[a-z]+`| of length (>= \d+)| ([<>]= -?\d+))?"
)
_BOUNDS = {">=": "at least", "<=": "at most"}


class Fault(Value, frozen=True, kw_only=True):
    """One fault of a file.

    Attributes:
        line: counted from 1.
        path: keys and list positions from the top of the document.
        message: what is wrong, in one line.
    """

    line: int
    path: tuple[str | int, ...]
    message: str


class Faults:
    """The faults of one document, gathered while it is converted."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._found: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, path: KeyPath, message: str) -> None:
        """Note a fault at the value of that path."""
        self._found.append(Fault(line=self._document.line(path), path=path, message=message))

    def in_order(self) -> list[Fault]:
        """Return the faults by line."""
        return sorted(self._found, key=lambda fault: fault.line)

    def convert(
        self, value: Plain, wanted: type[T], path: KeyPath, beside: tuple[str, ...] = ()
    ) -> T | None:
        """Convert a plain value to a core value; None, with faults noted, where it is none.

        `beside` names fields that the caller has read and taken away: they are known too.
        """
        try:
            return msgspec.convert(value, wanted)
        except (msgspec.ValidationError, KvcalcError) as error:
            # KvcalcError: a constructor that asks the dtype table, for one, raises it unwrapped.
            before = len(self)
            self._look_into(value, wanted, path, beside)
            if len(self) == before:
                self.add(path, _said(error, value, path))
            return None

    def _look_into(self, value: Plain, wanted: Any, path: KeyPath, beside: tuple[str, ...]) -> None:
        """Note what is wrong inside a value; nothing, where only the whole is at fault."""
        wanted = _without_none(wanted)
        origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
        if origin is typing.Annotated:
            self._look_into(value, arguments[0], path, beside)
        elif origin is typing.Literal and isinstance(value, str):
            self.add(path, unknown(named(path), value, arguments))
        elif isinstance(value, dict) and _is_struct(wanted):
            self._fields(value, wanted, path, beside)
        elif isinstance(value, dict) and origin is dict:
            for key, item in value.items():
                self.convert(item, arguments[1], (*path, key))
        elif isinstance(value, list) and origin in (list, tuple):
            for index, item in enumerate(value):
                self.convert(item, arguments[0], (*path, index))

    def _fields(
        self, value: dict[str, Plain], wanted: type[Value], path: KeyPath, beside: tuple[str, ...]
    ) -> None:
        fields = {field.encode_name: field for field in msgspec.structs.fields(wanted)}
        for key, item in value.items():
            if key not in fields:
                self.add((*path, key), unknown_field(key, (*fields, *beside)))
            else:
                self.convert(item, cast(type[object], fields[key].type), (*path, key))
        for name, field in fields.items():
            if field.required and name not in value:
                self.add(path, f"{name} is missing")


def named(path: KeyPath) -> str:
    """Return what a message calls the value of a path: the field, or `entry 3 of layers`."""
    *before, last = ("the file", *path)
    if isinstance(last, str):
        return shown(last).strip("'")
    return f"entry {last + 1} of {named(tuple(before[1:]))}"


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Say that a name is not known, which ones resemble it and which there are."""
    names = sorted(known)
    return f"unknown {what} {shown(name)}; {_guess(name, names)}known: {', '.join(names)}"


def unknown_field(name: str, known: Iterable[str]) -> str:
    """Say that a field is not known and which ones resemble it; else which there are."""
    names = sorted(known)
    guess = _guess(name, names).strip()
    return f"unknown field {shown(name)}; {guess or 'known: ' + ', '.join(names)}"


def in_one_line(error: KvcalcError) -> str:
    """Return an error and what to do about it; of many known names, the nearest alone."""
    advice = error.hint
    if isinstance(error, UnknownNameError) and error.suggestions:
        advice = _guess(error.name, error.suggestions).strip()
    return printable(f"{error.message}; {advice}" if advice else error.message)


def _guess(name: object, known: list[str]) -> str:
    close = nearest(name, known) if isinstance(name, str) else []
    return f"did you mean {' or '.join(close)}? " if close else ""


def _without_none(wanted: Any) -> Any:
    """Return the type of a value that is there, of one that may be left out."""
    given = [a for a in typing.get_args(wanted) if a is not types.NoneType]
    is_union = typing.get_origin(wanted) in (types.UnionType, typing.Union)
    return given[0] if is_union and len(given) == 1 else wanted


def _is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


def _said(error: Exception, value: Plain, path: KeyPath) -> str:
    """Put an error of msgspec or of a constructor into plain words."""
    if isinstance(error, KvcalcError):
        return in_one_line(error)
    text = str(error).partition(" - at `$")[0]
    match = _EXPECTED.match(text)
    if not match:
        return printable(text)  # a constructor's own words
    types_, length, bound = match.groups()
    if text.endswith("'") and "matching regex" in text:
        return f"{named(path)} is {shown(value)}, which is not of the wanted form"
    words = " or ".join(_TYPES.get(t, t) for t in types_.split(" | ") if t != "null")
    if length:
        return f"{named(path)} is empty"
    if bound:
        sign, limit = bound.split()
        words = f"{words} of {_BOUNDS[sign]} {limit}"
    return f"{named(path)} must be {words}, not {shown(value)}"
