"""Traces of JSON objects: one a line (JSONL), or one array of them; and arrays of lengths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec

from kvcalc.core.errors import InputError
from kvcalc.workload.columns import WRAPPERS, choose_columns, no_columns
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


class _Column(NamedTuple):
    """A number in every object, at the end of one key or of several, each in the one before."""

    name: str
    """The keys joined by dots."""
    path: tuple[str, ...]


_Tokens = tuple[list[int], ...]
"""What each chosen column holds, equally long."""

_Token = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]

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
    columns = _chosen(
        _as_object(first, first_line, file), file, first_line, prompt_column, output_column
    )
    fast = _Fast(columns)
    tally = Tally()
    for start, text in chain([(line, block)], blocks):
        tokens = fast.lines(text) or _tokens(_line_values(start, text, file), columns, file)
        tally.add(*tokens)
    return Reading("jsonl", tuple(column.name for column in columns), tally)


def read_array(
    blocks: Iterator[Block], file: str, prompt_column: str | None, output_column: str | None
) -> Reading:
    """Read one JSON array of objects, or of lengths, up to 64 Mi characters.

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
        return Reading("json", (), tally)
    first_line, first = head
    if isinstance(first, _Number):
        no_columns(file, first_line, prompt_column, output_column)
        tally.add(_fast_lengths(text) or _lengths(_elements(text, line, file), file))
        return Reading("json", (), tally)
    columns = _chosen(
        _as_object(first, first_line, file), file, first_line, prompt_column, output_column
    )
    tokens = _Fast(columns).array(text) or _tokens(_elements(text, line, file), columns, file)
    tally.add(*tokens)
    return Reading("json", tuple(column.name for column in columns), tally)


def _chosen(
    first: _Object, file: str, line: int, prompt_column: str | None, output_column: str | None
) -> tuple[_Column, ...]:
    """Choose the columns by the first object: its keys, and numbers nested where they are known.

    Raises:
        InputError: as `choose_columns` says.
        UsageError: both options name the same column.
    """
    literal = dict.fromkeys(key for key, _ in first)
    columns = [_Column(key, (key,)) for key, _ in first]
    nested = [
        (*path, key)
        for path in (tuple(wrapper.split(".")[:-1]) for wrapper in WRAPPERS if wrapper)
        for inner in _objects_at(first, path)
        for key, _ in inner
    ]
    known = set(nested)
    for asked in dict.fromkeys(filter(None, (prompt_column, output_column))):
        nested += [path for path in _dotted(first, asked) if path not in known]
        known.update(nested)
    named = [_Column(".".join(path), path) for path in nested]
    columns += [column for column in named if column.name not in literal]
    names = [column.name for column in columns]
    chosen = choose_columns(names, file, line, prompt_column, output_column)
    return tuple(columns[names.index(name)] for name in chosen)


def _objects_at(row: _Object, path: Iterable[str]) -> list[_Object]:
    """Return the objects at the end of some keys; several where a key is repeated."""
    found = [row]
    for key in path:
        found = [v for inner in found for k, v in inner if k == key and isinstance(v, _Object)]
    return found


def _dotted(row: _Object, name: str) -> list[tuple[str, ...]]:
    """Return the nested keys that a name with dots can mean, without case; a key may have dots."""
    found: list[tuple[str, ...]] = []
    open_: list[tuple[_Object, str, tuple[str, ...]]] = [(row, name.strip().casefold(), ())]
    while open_:  # no recursion: the name and the object may be as deep as they like
        inner, rest, path = open_.pop()
        for key, value in inner:
            folded = key.casefold()
            if path and folded == rest:
                found.append((*path, key))
            elif isinstance(value, _Object) and rest.startswith(f"{folded}."):
                open_.append((value, rest[len(folded) + 1 :], (*path, key)))
    return found


def _struct(fields: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Any, dict[str, str]]:
    """Make the type that holds a number at the end of each path.

    Args:
        fields: a name for each number, and its keys from the outermost.

    Returns:
        The type, and where it has each number, by name, as attributes joined by dots.

    Raises:
        ValueError: keys with quotes, backslashes or control characters, or a key that should
            hold both a number and an object.
    """
    types: list[tuple[str, Any]] = []
    keys: dict[str, str] = {}
    places: dict[str, str] = {}
    inner: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for name, path in fields:
        if len(path) > 1:
            inner.setdefault(path[0], []).append((name, path[1:]))
            continue
        types.append((name, _Token))
        keys[name] = path[0]
        places[name] = name
    for i, (key, below) in enumerate(inner.items()):
        struct, deeper = _struct(below)
        types.append((f"inner{i}", struct))
        keys[f"inner{i}"] = key
        places.update({name: f"inner{i}.{place}" for name, place in deeper.items()})
    return msgspec.defstruct("Row", types, rename=keys, gc=False), places


class _Fast:
    """Decode the columns of every object and skip the others, or give None to have faults named.

    msgspec takes the last of repeated keys and does not say so. Every object has the key (it is
    required), so there is no repetition where the text holds the quoted key as often as there
    are objects, and no escape that could spell it otherwise. So for each key of a path.
    """

    def __init__(self, columns: Sequence[_Column]) -> None:
        self._keys = {f'"{key}"' for column in columns for key in column.path}
        names = [f"column{i}" for i in range(len(columns))]
        paths = [column.path for column in columns]
        self._getters: list[attrgetter[int]] = []
        try:
            struct, places = _struct(list(zip(names, paths, strict=True)))
            row: Any = struct  # mypy takes no unpacked name for a type
            self._getters = [attrgetter(places[name]) for name in names]
            self._line: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(row)
            self._array: msgspec.json.Decoder[Any] | None = msgspec.json.Decoder(list[row])
        except (ValueError, RecursionError):  # a path may be as deep as the user types it
            self._line = self._array = None

    def lines(self, text: str) -> _Tokens | None:
        if self._line is None:
            return None
        lines = [line for line in text.split("\n") if line]
        try:
            return self._checked(text, list(map(self._line.decode, lines)))
        except (ValueError, RecursionError):
            return None

    def array(self, text: str) -> _Tokens | None:
        if self._array is None:
            return None
        try:
            return self._checked(text, self._array.decode(text))
        except (ValueError, RecursionError):
            return None

    def _checked(self, text: str, rows: list[Any]) -> _Tokens | None:
        if "\\u" in text or "\\/" in text or any(text.count(k) != len(rows) for k in self._keys):
            return None
        return tuple(list(map(getter, rows)) for getter in self._getters)


def _fast_lengths(text: str) -> list[int] | None:
    """Decode an array of lengths, or give None to have its fault named."""
    try:
        return msgspec.json.decode(text, type=list[_Token])
    except (ValueError, RecursionError):
        return None


def _lengths(values: Iterator[tuple[int, Any]], file: str) -> list[int]:
    lengths: list[int] = []
    for line, value in values:
        if not isinstance(value, _Number):
            raise fault(
                file,
                line,
                f"{_kind(value)} where a number should be",
                "the array starts as a list of lengths: give a whole number for each request",
            )
        lengths.append(read_tokens(value, None, file, line))
    return lengths


def _tokens(values: Iterator[tuple[int, Any]], columns: tuple[_Column, ...], file: str) -> _Tokens:
    tokens: _Tokens = tuple([] for _ in columns)
    for line, value in values:
        row = _as_object(value, line, file)
        for numbers, column in zip(tokens, columns, strict=True):
            numbers.append(_cell(row, column, line, file))
    return tokens


def _cell(row: _Object, column: _Column, line: int, file: str) -> int:
    value: Any = row
    for depth, key in enumerate(column.path):
        if not isinstance(value, _Object):
            raise _unfit(column.path[:depth], value, "an object", line, file)
        found = [inner for name, inner in value if name == key]
        if len(found) != 1:
            what = f"there {len(found)} times" if found else "missing"
            shown = quoted(".".join(column.path[: depth + 1]))
            raise fault(file, line, f"key {shown} is {what}", "give every object the key once")
        (value,) = found
    if isinstance(value, _Number):
        return read_tokens(value, column.name, file, line)
    raise _unfit(column.path, value, "a number of tokens", line, file)


def _unfit(path: Iterable[str], value: object, wanted: str, line: int, file: str) -> InputError:
    shown = f"the text {quoted(value)}" if type(value) is str else _kind(value)
    return fault(
        file,
        line,
        f"key {quoted('.'.join(path))} is {shown}, not {wanted}",
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
