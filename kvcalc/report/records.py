"""Results for machines: a versioned JSON document, or tidy CSV, one measurement a row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvcalc.core.values import Value

__all__ = ["Envelope", "as_csv", "as_json", "ascii_json"]

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


class Envelope(Value, frozen=True, kw_only=True):
    """The JSON document of every command.

    Attributes:
        schema: name and major version; additions keep the number.
        inputs: what was asked, as typed and as resolved.
        results: one entry a combination, in input order.
        notes: rules that moved a number, and defaults that were taken.
        warnings: what may make an answer wrong.
    """

    schema: str
    kvcalc_version: str
    inputs: dict[str, Any]
    results: Sequence[Any]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


def as_json(envelope: Envelope, members: Mapping[str, Any] | None = None) -> str:
    """Return the document, indented by two; ints exact whatever their size.

    Args:
        envelope: what every command's document holds.
        members: further keys of this one, behind those.
    """
    if members:
        fields = {name: getattr(envelope, name) for name in Envelope.__struct_fields__}
        encoded = msgspec.json.encode({**fields, **members})
    else:
        encoded = msgspec.json.encode(envelope)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def ascii_json(document: str) -> str:
    """Return the same document with every character beyond ASCII escaped."""
    return "".join(
        c if c.isascii() else json.dumps(c)[1:-1]  # such characters stand in strings only
        for c in document
    )


def as_csv(results: Sequence[object]) -> str:
    """Return one row a measurement: the combination, the metric's dotted name, the value."""
    records: list[dict[str, Any]] = [msgspec.to_builtins(result) for result in results]
    keys = [key for key in _REPEATED if records and key in records[0]]
    if any(record.get(_APART) for record in records):
        keys.append(_APART)
        records = [{**record, _APART: " ".join(record[_APART])} for record in records]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*keys, "metric", "value"])
    for record in records:
        for metric, value in _flat(record):
            if metric not in keys:
                writer.writerow([*(record[key] for key in keys), metric, value])
    return out.getvalue()


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{prefix}.{i}")
    elif isinstance(value, bool):
        yield prefix, str(value).lower()
    else:
        yield prefix, value
