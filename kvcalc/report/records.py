"""Results for machines: a JSON document, or CSV that a spreadsheet does not calculate with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

__all__ = ["as_csv", "as_json", "columns_csv"]

_FORMULA = re.compile("[ ]*[=+@\\-\uff1d\uff0b\uff0d\uff20].")
"""How a formula begins, for one spreadsheet or another."""

_HARMLESS = re.compile(r"[+-][0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?: ?%)?|--?[A-Za-z][\w-]*")
"""A number; a flag, which calculates nothing and which programs compare."""

_QUOTED = re.compile('[,;"\t\r\n]|^ | $')
_UNSEEN = re.compile(r"[^\n\x20-\x7e]")

_REPEATED = (
    "file",
    "line",
    "model",
    "name",
    "engine",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
)
"""Fields that say which combination a CSV row belongs to, where a result has them."""


_APART = "flags"
"""Field that sets a result apart where none of those does."""


def as_json(document: Any, *, ascii_only: bool = False) -> str:
    """Return a document, indented by two; ints exact whatever their size.

    Characters that steer a terminal, or that nobody sees, are escaped as JSON escapes them.

    Args:
        document: what it holds.
        ascii_only: escape every character beyond ASCII.
    """
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"

    def escaped(match: re.Match[str]) -> str:  # such characters stand in strings only
        kept = match[0].isprintable() and not ascii_only
        return match[0] if kept else json.dumps(match[0])[1:-1]

    return _UNSEEN.sub(escaped, text)


def as_csv(results: Sequence[object]) -> str:
    """Return one row a measurement: the combination, the metric's dotted name, the value."""
    records: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in results]
    keys = [key for key in _REPEATED if records and key in records[0]]
    if any(record.get(_APART) for record in records):
        keys.append(_APART)
        records = [{**record, _APART: " ".join(record[_APART])} for record in records]
    rows = (
        [*(record[key] for key in keys), metric, value]
        for record in records
        for metric, value in _flat(record)
        if metric not in keys
    )
    return _csv([[*keys, "metric", "value"], *rows])


def columns_csv(columns: Sequence[str], results: Sequence[object]) -> str:
    """Return a header and one row a result with these of its attributes."""
    return _csv([columns, *([getattr(result, name) for name in columns] for result in results)])


def _csv(rows: Iterable[Iterable[object]]) -> str:
    return "".join(",".join(map(_cell, row)) + "\n" for row in rows)


def _cell(value: object) -> str:
    """Return a cell: numbers exact, nothing where there is no value, no text a formula."""
    if isinstance(value, str):
        # An apostrophe is what spreadsheets take for the mark of a text.
        text = f"'{value}" if _FORMULA.match(value) and not _HARMLESS.fullmatch(value) else value
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}.{i}")
    else:
        yield prefix, value
