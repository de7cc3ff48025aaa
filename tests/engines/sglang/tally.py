"""How many of the oracle's pools kvcalc has to the byte, by class."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tests.engines.sglang.rows import differences, rows

__all__ = ["LEFT_OUT", "Tally", "tallies"]

LEFT_OUT: dict[str, str] = {}
"""Row -> why it is not compared. None is left out."""


class Tally(NamedTuple):
    """What became of the pools of one class.

    Attributes:
        pools: how many were built.
        equal: how many kvcalc has to the byte, in all and by tensor.
        left_out: how many are not compared.
        wrong: what differs, a line each.
    """

    pools: int
    equal: int
    left_out: int
    wrong: tuple[str, ...]


@cache
def tallies() -> dict[tuple[str, str], Tally]:
    """Return a tally for every (release, class)."""
    found: dict[tuple[str, str], Tally] = {}
    for row in rows():
        key = (row["version"], row["pool"])
        pools, equal, left_out, wrong = found.get(key, Tally(0, 0, 0, ()))
        if row["name"] in LEFT_OUT:
            found[key] = Tally(pools + 1, equal, left_out + 1, wrong)
            continue
        said = differences(row)
        lines = (f"{row['name']}: {'; '.join(said)}",) if said else ()
        found[key] = Tally(pools + 1, equal + (not said), left_out, (*wrong, *lines))
    return found
