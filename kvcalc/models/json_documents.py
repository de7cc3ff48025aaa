"""A strict and bounded JSON reader for config.json, shard indexes and safetensors headers.

What it does beyond `json.loads`: a key that stands twice in one object is refused, as are numbers
beyond any machine's (a whole number of more than 20 digits, `1e999`), half of a surrogate pair, and
a text whose size, depth or count of values no model's file comes near. Bare `Infinity`, `-Infinity`
and `NaN` are read: published Mamba-2 configs hold `"time_step_limit": [0.0, Infinity]`.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NoReturn

from kvcalc.core.errors import InputError
from kvcalc.models.text import DocumentError, printable, shown

__all__ = [
    "MAX_CHARACTERS",
    "MAX_DEPTH",
    "MAX_VALUES",
    "decode_json",
    "read_json",
    "read_json_file",
]

MAX_CHARACTERS = 2**24
"""Of one text; the longest config.json in the corpus has 58 thousand."""

MAX_DEPTH = 64
"""Lists and objects inside one another; configs need eight or so."""

MAX_VALUES = 500_000
"""Values of one text, give or take those punctuation marks that stand in strings."""

_MAX_DIGITS = 20
"""Of a whole number: 2^64 has twenty. Python refuses to read thousands with an error of its own."""

_BRACKETS = re.compile(r'"[^"]*"?|([\[\]{}])')
_TOKENS = re.compile(r'"[^"]*"?|[\[\]{}:]')
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


class _DuplicateKeyError(Exception):
    """An object holds one key twice; where, only a second look at the text can tell."""


class _NumberError(Exception):
    """A number is out of all bounds; the argument is how it is written."""


def read_json(
    text: str,
    where: str,
    *,
    max_characters: int = MAX_CHARACTERS,
    max_values: int = MAX_VALUES,
) -> dict[str, Any]:
    """Read a text that is one JSON object.

    Args:
        text: the document; a byte order mark is dropped.
        where: how errors name the file.
        max_characters: the longest text that is looked at.
        max_values: the most values, keys apart, that it may hold.

    Raises:
        InputError: larger than the limits.
        DocumentError: with the line, for whatever cannot be read as this module says.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > max_characters:
        message = f"larger than {max_characters} characters"
        raise InputError(message, hint="this is no model's JSON file", where=where)
    if not text.strip(" \t\r\n"):
        _refuse("the file is empty", text, 0, where, "give a JSON object: {...}")
    containers = text.count("[") + text.count("{")
    if containers + text.count(",") > max_values:
        message = f"more than {max_values} values"
        raise InputError(message, hint="this is no model's JSON file", where=where)
    if containers > MAX_DEPTH:
        _check_depth(text, where)
    value = _parse(text, where)
    if not isinstance(value, dict):
        message = f"the file holds {shown(value)}, not a JSON object"
        at = len(text) - len(text.lstrip())
        _refuse(message, text, at, where, "give a JSON object: {...}")
    if _SURROGATE.search(text):
        _check_characters(value, text, where)
    return value


def read_json_file(
    path: str | os.PathLike[str],
    where: str | None = None,
    *,
    max_characters: int = MAX_CHARACTERS,
    max_values: int = MAX_VALUES,
) -> dict[str, Any]:
    """Read a file that is one JSON object, as `read_json` reads a text.

    Args:
        path: the file.
        where: how errors name it; the path as given when None.
        max_characters: as in `read_json`, and the most bytes that are read.
        max_values: as in `read_json`.

    Raises:
        InputError: missing, a directory, unreadable, too large, not UTF-8, or not such an object.
    """
    file = printable(os.fspath(path)) if where is None else where
    if os.path.isdir(path):  # Windows says "permission denied" when a directory is opened
        raise InputError("is a directory", hint="give the path of the JSON file", where=file)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(max_characters + 1)
    except FileNotFoundError:
        raise InputError("no such file", hint="check the path", where=file) from None
    except PermissionError:
        raise InputError("permission denied", hint="make the file readable", where=file) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise InputError(f"cannot be read: {reason}", hint="check the path", where=file) from None
    text = decode_json(data, file, max_bytes=max_characters)
    return read_json(text, file, max_characters=max_characters, max_values=max_values)


def decode_json(data: bytes, where: str, *, max_bytes: int = MAX_CHARACTERS) -> str:
    """Decode what should be JSON as UTF-8, a byte order mark dropped.

    Raises:
        InputError: larger than `max_bytes`.
        DocumentError: with the line, for bytes that are not UTF-8.
    """
    if len(data) > max_bytes:
        message = f"larger than {max_bytes} bytes"
        raise InputError(message, hint="this is no model's JSON file", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark, and hands over the bytes it counts in.
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{error.object[error.start]:02x})"
        raise DocumentError(message, file=where, line=line, hint="JSON is UTF-8 text") from None


def _hint(text: str) -> str:
    """Say what a text that is not JSON is known to be."""
    if text.startswith("version https://git-lfs"):
        return "this is a pointer of Git LFS; fetch the file itself: git lfs pull"
    if text.lstrip().startswith("<"):
        return "this is a web page; download the raw file"
    return "compare it with the file as published"


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_int=_whole_number, parse_float=_number
        )
    except json.JSONDecodeError as error:
        said = error.msg.removesuffix(" at").removesuffix(" starting")
        message = f"not valid JSON: {said[:1].lower()}{said[1:]} (column {error.colno})"
        at = min(error.pos, len(text.rstrip()))  # the end of the text is on its last line
        _refuse(message, text, at, where, _hint(text))
    except _NumberError as error:
        literal = str(error)
        message = f"{shown(literal, 24)} is beyond any number of a model"
        hint = "correct the number; quote it if it is text"
        _refuse(message, text, text.find(literal), where, hint)
    except _DuplicateKeyError:
        key, first, second = _duplicate(text)
        message = f"{shown(key)} stands twice, first on line {_line(text, first)}"
        _refuse(message, text, second, where, "remove one of the two")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _DuplicateKeyError
    return value


def _whole_number(literal: str) -> int:
    if len(literal) > _MAX_DIGITS and len(literal.lstrip("-")) > _MAX_DIGITS:
        raise _NumberError(literal)
    return int(literal)


def _number(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise _NumberError(literal)
    return number


def _masked(text: str) -> str:
    """Return the text with escaped quotes and backslashes gone, every other mark in its place."""
    return text.replace("\\\\", "__").replace('\\"', "__")


def _check_depth(text: str, where: str) -> None:
    """Refuse deep nesting before the parser, which is recursive, meets it."""
    depth = 0
    masked = _masked(text)
    for number, bracket in enumerate(_BRACKETS.findall(masked)):
        if not bracket:  # a string
            continue
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            match = next(itertools.islice(_BRACKETS.finditer(masked), number, None))
            message = f"more than {MAX_DEPTH} levels deep"
            _refuse(message, text, match.start(), where, "models' files need eight or so")


def _duplicate(text: str) -> tuple[str, int, int]:
    """Return the first key that stands twice in one object, and where it stands both times."""
    seen: list[dict[str, int]] = []
    last = (0, 0)  # the last string
    for match in _TOKENS.finditer(_masked(text)):
        match match[0][0]:
            case "[" | "{":
                seen.append({})
            case "]" | "}":
                seen.pop()
            case '"':
                last = match.span()
            case _:
                key = str(json.loads(text[last[0] : last[1]]))
                if key in seen[-1]:
                    return key, seen[-1][key], last[0]
                seen[-1][key] = last[0]
    raise AssertionError("an object held a key twice")  # pragma: no cover


def _check_characters(value: dict[str, Any], text: str, where: str) -> None:
    """Refuse half a surrogate pair: no terminal or file could be given it back."""
    if _HALF.search(json.dumps(value, ensure_ascii=False)):
        found = _SURROGATE.search(text)
        at = found.start() if found else 0
        _refuse("half of a surrogate pair in a text", text, at, where, "remove the escape")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _refuse(message: str, text: str, at: int, where: str, hint: str) -> NoReturn:
    raise DocumentError(message, file=where, line=_line(text, max(at, 0)), hint=hint)
