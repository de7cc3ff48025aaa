"""How many of the oracle's pools kvcalc has to the byte, by class."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.sglang.rows import differences, rows
from tests.engines.tally import Compared, Tally, tallied

__all__ = ["LEFT_OUT", "tallies"]

LEFT_OUT: dict[str, str] = {}
"""Row -> why it is not compared. None is left out."""


@cache
def tallies() -> dict[tuple[str, str], Tally]:
    """Return a tally for every (release, class): pools equal in all and by tensor."""
    built: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows():
        built.setdefault((row["version"], row["pool"]), []).append(row)
    return {key: tallied(map(_compared, listed)) for key, listed in built.items()}


def _compared(row: dict[str, Any]) -> Compared:
    why = LEFT_OUT.get(row["name"])
    return Compared(row["name"], [] if why else differences(row), answers=1, left_out=why)
