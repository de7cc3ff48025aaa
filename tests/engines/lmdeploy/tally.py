"""How many of the oracle's answers kvcalc gives, by quant_policy, and what is left out and why."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.lmdeploy.rows import differences, reason, rows
from tests.engines.tally import Compared, Tally, tallied

__all__ = ["tallies"]


@cache
def tallies() -> dict[str, Tally]:
    """Return a tally for every quant_policy."""
    policies = dict.fromkeys(row["policy"] for row in rows())
    return {
        policy: tallied(_compared(row) for row in rows() if row["policy"] == policy)
        for policy in policies
    }


def _compared(row: dict[str, Any]) -> Compared:
    name = f"{row['model']}, tp {row['tp']}, {row['policy']}"
    why, refused = reason(row), "error" in row
    found = [] if why is not None else differences(row)
    return Compared(name, found, not refused, refused, why)
