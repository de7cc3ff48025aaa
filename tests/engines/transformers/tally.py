"""How many of the oracle's answers kvcalc gives, by cache, and what is left out and why."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.tally import Compared, Tally, tallied
from tests.engines.transformers.rows import differences, rows

__all__ = ["LEFT_OUT", "tallies"]

LEFT_OUT = {
    "Unrecognized model identifier": "transformers has no class of that name: code of a hub",
    "Tensor.item() cannot be called on meta tensors": "the oracle has tensors without values",
    "is invalid for input of size": "the oracle took the feed-forward blocks out",
    "'tuple' object has no attribute 'view'": "the oracle took the feed-forward blocks out",
    "'dict' object has no attribute 'get_text_config'": "the oracle read no nested config",
    "split_with_sizes expects": "the oracle's positions are those of text alone",
    "build:": "the oracle could not build the model from this config",
    "config:": "the oracle could not read this config",
    "no row": "a twin of a config whose rows are not among the results",
}
"""Part of an error -> why it says nothing of the engine; kvcalc may plan for these models."""


@cache
def tallies() -> dict[str, Tally]:
    """Return a tally for every cache; `none` holds rows that tell of no cache."""
    asked: dict[str, list[dict[str, Any]]] = {}
    for row in rows():
        name = "none"
        if "dtype" in row:
            name = row.get("args", {}).get("cache_implementation", "dynamic")
        asked.setdefault(name, []).append(row)
    return {name: tallied(map(_compared, listed)) for name, listed in asked.items()}


def _compared(row: dict[str, Any]) -> Compared:
    why, refused = _reason(row), "error" in row
    if why is not None:
        return Compared(row["model"], [], left_out=why)
    name = f"{row['model']}, {row.get('args')}, {row.get('tokens')}"
    return Compared(name, differences(row), not refused, refused)


def _reason(row: dict[str, Any]) -> str | None:
    error = row.get("error", "" if "dtype" in row else "no row")
    return next((reason for part, reason in LEFT_OUT.items() if part in error), None)
