"""Traces of JSON objects: one a line (JSONL), or one array of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any

import msgspec

from kvcalc.core.errors import InputError
from kvcalc.workload.columns import choose_columns
from kvcalc.workload.faults import fault, quoted
from kvcalc.workload.source import Block
from kvcalc.workload.tally import MAX_TOKENS, Reading, Tally, read_tokens

__all__ = ["MAX_ARRAY_CHARACTERS", "read_array", "read_lines"]

MAX_ARRAY_CHARACTERS = 64 * 2**20
"""The longest JSON array that is read, because it is read whole; JSONL has no such limit."""

_SPACE = re.compile(r"[ \t\r\n]*")


class _Number(str):
    """A JSON number as it is written, so that one rule reads cells and JSON alike."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """A JSON object with its repeated keys."""


_JSON = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number
)


def read_lines(
    blocks: Iterator[Block], file: str, prompt_column: str | None, output_column: str | None
) -> Reading:
    """Read one JSON object a line; blank lines are skipped, keys of no interest ignored.

    Raises:
        InputError: a line that does not serve, with its number.
        UsageError: both options name the same column.
    """
    line, block = next(blocks)
    first_line, text = next(_numbered(line, block))
    first, _ = _value(text, 0, first_line, file, whole=True)
    keys = [key for key, _ in _as_object(first, first_line, file)]
    columns = choose_columns(keys, file, first_line, prompt_column, output_column)
    fast = _Fast(columns)
    tally = Tally()
    for start, text in chain([(line, block)], blocks):
        tokens = fast.lines(text) or _tokens(_line_values(start, text, file), columns, file)
        tally.add(*tokens)
    return Reading("jsonl", *columns, tally)


def read_array(
    blocks: Iterator[Block], file: str, prompt_column: str | None, output_column: str | None
) -> Reading:
    """Read one JSON array of objects, up to 64 Mi characters.

    Raises:
        InputError: not such an array, or an element that does not serve, with its line.
        UsageError: both options name the same column.
    """
    parts: list[str] = []
    held, line = 0, 1
    for start, part in blocks:
        line = line if parts else start
        parts.append(part)
        held += len(part)
        if held > MAX_ARRAY_CHARACTERS:
            raise fault(
                file,
                None,
                f"the JSON array is longer than {MAX_ARRAY_CHARACTERS // 2**20} MiB",
                "write one object a line (JSONL) instead",
            )
    text = "".join(parts)
    tally = Tally()
    head = next(_elements(text, line, file), None)
    if head is None:
        return Reading("json", "", "", tally)
    first_line, first = head
    keys = [key for key, _ in _as_object(first, first_line, file)]
    columns = choose_columns(keys, file, first_line, prompt_column, output_column)
    tokens = _Fast(columns).array(text) or _tokens(_elements(text, line, file), columns, file)
    tally.add(*tokens)
    return Reading("json", *columns, tally)


class _Fast:
    """Decode two keys of every object and skip the others, or give None to have faults named.

    msgspec takes the last of repeated keys and does not say so. Every object has the key (it is
    required), so there is no repetition where the text holds the quoted key as often as there
    are objects, and no escape that could spell it otherwise.
    """

    def __init__(self, columns: tuple[str, str]) -> None:
        self._keys = [f'"{name}"' for name in columns]
        tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
        names = dict(zip(("prompt", "output"), columns, strict=True))
        try:
            row: Any = msgspec.defstruct(
                "Row", [("prompt", tokens), ("output", tokens)], rename=names, gc=False
            )
            self._line: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(row)
            self._array: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(list[row])
        except ValueError:  # names with quotes, backslashes or control characters
            self._line = self._array = None

    def lines(self, text: str) -> tuple[list[int], list[int]] | None:
        if self._line is None:
            return None
        lines = [line for line in text.split("\n") if line]
        try:
            return self._checked(text, list(map(self._line.decode, lines)))
        except (ValueError, RecursionError):
            return None

    def array(self, text: str) -> tuple[list[int], list[int]] | None:
        if self._array is None:
            return None
        try:
            return self._checked(text, self._array.decode(text))
        except (ValueError, RecursionError):
            return None

    def _checked(self, text: str, rows: list[Any]) -> tuple[list[int], list[int]] | None:
        if "\\u" in text or "\\/" in text or any(text.count(k) != len(rows) for k in self._keys):
            return None
        return [row.prompt for row in rows], [row.output for row in rows]


def _tokens(
    values: Iterator[tuple[int, Any]], columns: tuple[str, str], file: str
) -> tuple[list[int], list[int]]:
    tokens: tuple[list[int], list[int]] = ([], [])
    for line, value in values:
        row = _as_object(value, line, file)
        for numbers, column in zip(tokens, columns, strict=True):
            numbers.append(_cell(row, column, line, file))
    return tokens


def _cell(row: _Object, column: str, line: int, file: str) -> int:
    found = [value for key, value in row if key == column]
    if len(found) != 1:
        what = f"there {len(found)} times" if found else "missing"
        raise fault(file, line, f"key {quoted(column)} is {what}", "give every object the key once")
    (value,) = found
    if isinstance(value, _Number):
        return read_tokens(value, column, file, line)
    shown = f"the text {quoted(value)}" if isinstance(value, str) else _kind(value)
    raise fault(
        file,
        line,
        f"key {quoted(column)} is {shown}, not a number of tokens",
        f"each request needs a whole number of tokens from 0 to {MAX_TOKENS}",
    )


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(json.dumps(value))
    if isinstance(value, _Object):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a number" if isinstance(value, _Number) else "a text"


def _as_object(value: object, line: int, file: str) -> _Object:
    if not isinstance(value, _Object):
        raise fault(file, line, f"{_kind(value)} where an object should be", _OBJECTS_HINT)
    return value


_OBJECTS_HINT = "give one object a line (JSONL), or one array of objects (JSON)"


def _numbered(line: int, block: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a block that are not blank, with their numbers."""
    for number, text in enumerate(block.split("\n"), line):
        if text and not text.isspace():
            yield number, text


def _line_values(line: int, block: str, file: str) -> Iterator[tuple[int, Any]]:
    for number, text in _numbered(line, block):
        yield number, _value(text, 0, number, file, whole=True)[0]


def _value(text: str, at: int, line: int, file: str, *, whole: bool = False) -> tuple[Any, int]:
    """Parse the JSON value at a place (of a text that starts on `line`); give it and its end."""
    try:
        value, end = _JSON.raw_decode(text, _past_space(text, at))
        if whole and (end := _past_space(text, end)) != len(text):
            # Told as the parser tells what it finds.
            raise json.JSONDecodeError("more after the value", text, end)  # noqa: TRY301
    except json.JSONDecodeError as error:
        raise _malformed(file, line + error.lineno - 1, error.colno, error.msg) from None
    except RecursionError:
        raise fault(file, line, "the JSON is nested too deeply", _OBJECTS_HINT) from None
    return value, end


def _past_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _malformed(file: str, line: int, column: int, what: str) -> InputError:
    return fault(file, line, f"not well-formed JSON at character {column}: {what}", _OBJECTS_HINT)


def _elements(text: str, line: int, file: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of the array that a text is, with the line each starts on."""
    at = _past_space(text, 0)
    counted = 0  # characters up to here are counted in `line`
    start = line

    def expected(what: str) -> InputError:
        column = at - text.rfind("\n", 0, at)
        return _malformed(file, start + text.count("\n", 0, at), column, f"expected {what}")

    if text[at : at + 1] != "[":
        raise expected("[")
    at = _past_space(text, at + 1)
    more = text[at : at + 1] != "]"
    while more:
        line += text.count("\n", counted, at)
        counted = at
        value, at = _value(text, at, start, file)
        yield line, value
        at = _past_space(text, at)
        more = text[at : at + 1] == ","
        if more:
            at = _past_space(text, at + 1)
    if text[at : at + 1] != "]":
        raise expected(", or ]")
    at = _past_space(text, at + 1)
    if at != len(text):
        raise expected("the end")
