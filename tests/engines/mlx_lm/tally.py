"""How many of mlx-lm's answers kvcalc gives, and what is left out and why."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.mlx_lm.rows import differences, reason, rows
from tests.engines.tally import Compared, Tally, tallied

__all__ = ["tally"]


@cache
def tally() -> Tally:
    """Compare every row: both figures are equal, or both refuse."""
    return tallied(map(_compared, rows()))


def _compared(row: dict[str, Any]) -> Compared:
    asked = {k: v for k, v in row.items() if k not in ("model", "answer")}
    why, refused = reason(row), "error" in row
    found = [] if why is not None else differences(row)
    return Compared(f"{row['model']}, {asked}", found, not refused, refused, why)
