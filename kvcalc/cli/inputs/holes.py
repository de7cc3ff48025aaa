"""From a file that an allocator or a failure left to what it says of free memory."""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.allocator.segments import Snapshot
from kvcalc.allocator.state import PoolState
from kvcalc.answers.fragmentation import Memory
from kvcalc.cli.inputs.numbers import MAX_LISTED, size, whole
from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.units import parse_bytes

__all__ = ["holes_file", "memory", "pools", "snapshot"]

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


_SWAPPED = {"kB": "KiB", "KB": "KiB", "MB": "MiB", "GB": "GiB", "TB": "TiB"}
_SWAPPED |= {"KiB": "kB", "MiB": "MB", "GiB": "GB", "TiB": "TB"}


def memory(values: Values, *, swapped: bool = False) -> Memory:
    """Return the free memory and the request as given.

    Args:
        values: what was given.
        swapped: read GiB where GB was typed, and the other way round.
    """

    def swap(text: str) -> str:
        unit = text.lstrip("0123456789., ").strip()
        return text.replace(unit, _SWAPPED[unit]) if unit in _SWAPPED else text

    given = values
    if swapped:
        names = ("free", "largest", "request")
        other = {name: values[name] and swap(values[name]) for name in names}
        given = Values({**values, **other}, values.origins, values.places)
    holes = None
    if values["holes"] is not None:
        holes = values.at(
            "holes",
            lambda: _holes(values["holes"], lambda t: parse_bytes(swap(t) if swapped else t)),
        )
    return Memory(
        free_bytes=size(given, "free"),
        largest_free_bytes=size(given, "largest"),
        holes=holes,
        request_bytes=size(given, "request", up=True),
    )


def _holes(text: str, read: Callable[[str], int]) -> tuple[int, ...]:
    """Read `1.9GiB,29x512MiB`."""
    holes: list[int] = []
    for part in text.split(","):
        factor, times, hole = part.strip().partition("x")
        count = whole(factor) if times and hole else 1
        if len(holes) + count > MAX_LISTED:
            raise InvalidValueError(
                f"more than {MAX_LISTED} holes", hint="give --free and --largest instead"
            )
        holes.extend([read(hole if times and hole else part.strip())] * count)
    bare = [part for part in text.split(",") if part.strip().isdigit()]
    if bare and len(bare) < len(text.split(",")):
        raise InvalidValueError(
            f"{text!r} mixes sizes with and without a unit",
            hint="a comma separates holes, not thousands; give every hole a unit",
        )
    return tuple(holes)
