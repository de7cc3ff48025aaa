"""How many of llama.cpp's answers kvcalc gives: a line of the table in the README."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.llamacpp.rows import differences, rows
from tests.engines.tally import Compared, Tally, tallied

__all__ = ["FILES", "LEFT_OUT", "tally"]

FILES = ("rows.jsonl", "more_rows.jsonl")
"""The shared questions, and random settings of the same shapes."""

_ABORTS = "llama.cpp aborts on a step whose tokens do not divide by the sequences, not on a size"
LEFT_OUT = {
    "random 213: kimi-linear": _ABORTS,
    "random 246: minimax-01": _ABORTS,
}
"""Name of a row -> why it is not compared."""


@cache
def tally(name: str) -> Tally:
    """Return the tally of a file of questions: contexts, equal in every cache or refused."""
    return tallied(map(_compared, rows(name)))


def _compared(row: dict[str, Any]) -> Compared:
    reason = LEFT_OUT.get(row["name"])
    refused = bool(row.get("refused"))
    found = [] if reason else differences(row)
    return Compared(row["name"], found, not refused, refused, reason)
