"""What changed between two runs as CSV: one figure a row, numbers exact."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from kvcalc.core.changes import Changed

__all__ = ["as_csv"]


def as_csv(changes: Sequence[Changed]) -> str:
    """Return a header and one row a change; the header alone where nothing changed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Changed.__struct_fields__)
    for each in changes:
        writer.writerow([_cell(getattr(each, name)) for name in Changed.__struct_fields__])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value
