"""From a file that an allocator or a failure left to what it says of free memory."""

from __future__ import annotations

from kvcalc.cli.inputs.numbers import size
from kvcalc.cli.values import Values
from kvcalc.core.allocator_state import PoolState
from kvcalc.core.errors import UsageError
from kvcalc.core.segments import Snapshot

__all__ = ["holes_file", "pools", "snapshot"]

_FILES = ("snapshot", "oom", "jax_stats", "bfc_log")
"""Parameters that name a file which tells of free memory."""

_SIZES = ("free", "largest", "holes")


def holes_file(values: Values) -> str | None:
    """Return which of the files is given; None where the sizes are.

    Raises:
        UsageError: two of them, sizes beside one, what none of them takes, or no file's name.
    """
    given = [name for name in _FILES if values[name] is not None]
    if not given:
        if values["device_free"] is not None:
            raise UsageError(
                f"{values.places['device_free']} goes with a snapshot",
                hint="give --snapshot FILE, or leave it out",
            )
        return None
    beside = [*given[1:], *(name for name in _SIZES if values[name] is not None)]
    if given[0] != "snapshot" and values["device_free"] is not None:
        beside.append("device_free")
    if given[0] == "oom" and values["request"] is not None:
        beside.append("request")
    if beside:
        raise UsageError(
            f"{values.places[given[0]]} and {values.places[beside[0]]} are both given",
            hint="the file tells that already; give one of the two",
        )
    if not values[given[0]]:
        raise UsageError("no file is named", hint="name it", where=values.places[given[0]])
    return given[0]


def snapshot(values: Values, notes: list[str]) -> tuple[Snapshot, int | None]:
    """Return the snapshot and what the device has free beside it, where that is known.

    Args:
        values: what was given.
        notes: gains where the free memory comes from, if it was not given.
    """
    from kvcalc.measure.snapshot import read_snapshot

    read = read_snapshot(values["snapshot"])
    free = size(values, "device_free")
    if free is None and read.oom_events and len(read.devices) == 1:
        free = read.oom_events[-1].device_free_bytes
        notes.append(
            f"the device is taken to have {free:,} B free, as at the last failed allocation of the"
            " snapshot's trace; --device-free says otherwise"
        )
    return read, free


def pools(values: Values, name: str) -> list[PoolState]:
    """Return the pools of a file of statistics (`jax_stats`) or of a log (`bfc_log`)."""
    from kvcalc.measure import pools as measured

    if name == "bfc_log":
        return [measured.read_bfc_log(values[name])]
    return measured.read_jax_stats(values[name])
