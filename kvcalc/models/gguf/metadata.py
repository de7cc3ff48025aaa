"""The key-values of a GGUF header: numbers, short texts and lists kept, the rest stepped over.

The format: llama.cpp b11434, `ggml/src/gguf.cpp` (gguf_init_from_reader) and the GGUF document of
ggml. What is kept is bounded whatever the file says.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kvcalc.models.gguf.faults import broken
from kvcalc.models.gguf.window import ByteWindow
from kvcalc.models.text import shown

__all__ = ["MAX_LIST", "Entry", "Skipped", "read_metadata"]

MAX_LIST = 4096
"""Numbers in a list that is kept; llama.cpp's lists by layer hold at most 512."""

_MAX_KEYS = 65_536
_MAX_TEXT = 256  # bytes of a key or text that is kept
_MAX_KEPT = 65_536  # numbers in all lists together
_MAX_DEPTH = 4  # lists in lists; llama.cpp itself reads none
_MAX_NESTED = 100_000

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF type -> letter of `struct`."""

_WHOLE = frozenset("BbHhIiQq?")
_STRING, _LIST = 8, 9
_SMALLEST_PAIR = 8 + 1 + 4 + 1
_LIST_HEAD = 4 + 8


class Skipped(NamedTuple):
    """A value that was not kept: a long text, or a list of `length` entries."""

    what: str
    length: int


Entry = bool | int | float | str | tuple[int, ...] | Skipped


def read_metadata(window: ByteWindow, count: int) -> dict[str, Entry]:
    """Read `count` key-values.

    Raises:
        InputError: more keys than any model has, a key that stands twice or is empty, a type that
            GGUF does not have, lists nested too deep, or a length beyond the end of the file.
    """
    if count > _MAX_KEYS:
        raise broken(window.file, f"{count} metadata keys; at most {_MAX_KEYS} are read")
    window.need(count * _SMALLEST_PAIR, f"{count} metadata keys")
    return _Reader(window).read(count)


class _Reader:
    def __init__(self, window: ByteWindow) -> None:
        self._window = window
        self._kept = _MAX_KEPT
        self._nested = _MAX_NESTED

    def read(self, count: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for _ in range(count):
            key = self._text("a key")
            entry = self._value(self._window.number("I", "a value type"), key)
            if not isinstance(key, str):
                continue  # far longer than the keys that anybody asks for
            if not key or key in entries:
                fault = f"the key {shown(key)} stands twice" if key else "a key without a name"
                raise broken(self._window.file, fault, "convert the model anew")
            entries[key] = entry
        return entries

    def _text(self, what: str) -> str | Skipped:
        length = self._window.number("Q", f"the length of {what}")
        if length > _MAX_TEXT:
            self._window.skip(length, what)
            return Skipped("a text", length)
        return self._window.take(length, what).decode("utf-8", "replace")

    def _value(self, type_: int, key: object) -> Entry:
        if code := _NUMBERS.get(type_):
            form = struct.Struct(self._window.order + code)
            value: bool | int | float = form.unpack(self._window.take(form.size, "a number"))[0]
            return value
        if type_ == _STRING:
            return self._text("a text")
        if type_ == _LIST:
            return self._list(key, 1)
        raise self._unknown_type(type_, key)

    def _list(self, key: object, depth: int) -> tuple[int, ...] | Skipped:
        what = f"the list {shown(key)}" if isinstance(key, str) else "a list"
        type_ = self._window.number("I", what)
        count = self._window.number("Q", what)
        if code := _NUMBERS.get(type_):
            size = count * struct.calcsize(self._window.order + code)
            if depth > 1 or code not in _WHOLE or count > min(MAX_LIST, self._kept):
                self._window.skip(size, what)
                return Skipped("a list", count)
            self._kept -= count
            form = f"{self._window.order}{count}{code}"
            return tuple(int(n) for n in struct.unpack(form, self._window.take(size, what)))
        if type_ == _STRING:
            self._window.skip_strings(count, what)
        elif type_ == _LIST:
            self._lists(count, what, key, depth)
        else:
            raise self._unknown_type(type_, key)
        return Skipped("a list", count)

    def _lists(self, count: int, what: str, key: object, depth: int) -> None:
        self._window.need(count * _LIST_HEAD, what)
        self._nested -= count
        if depth == _MAX_DEPTH or self._nested < 0:
            hint = "llama.cpp reads no lists in lists at all"
            raise broken(self._window.file, f"{what}: too many lists in lists", hint)
        for _ in range(count):
            self._list(key, depth + 1)

    def _unknown_type(self, type_: int, key: object) -> Exception:
        named = shown(key) if isinstance(key, str) else "a long key"
        return broken(self._window.file, f"{named} has value type {type_}, which GGUF has not")
