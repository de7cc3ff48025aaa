"""Results of checks as CSV: one result a row, numbers exact."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from kvcalc.core.checks import Check

__all__ = ["as_csv"]

_COLUMNS = (
    *("name", "assertion", "workload", "operator", "limit", "actual", "low", "high"),
    *("level", "status", "message", "hint", "file", "line"),
)


def as_csv(results: Sequence[Check]) -> str:
    """Return a header and one row a result; nothing where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for result in results:
        writer.writerow([_cell(getattr(result, column)) for column in _COLUMNS])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
