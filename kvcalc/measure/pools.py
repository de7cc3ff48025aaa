"""JAX's memory_stats() and the dump of a BFC allocator (TensorFlow, XLA): free and largest hole.

Both allocators take their memory once and hand out parts of it, so what is not in use is free, and
a hole that is too small stays so until its neighbours are freed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from kvcalc.allocator.state import PoolState
from kvcalc.core.errors import InputError
from kvcalc.core.units import format_count
from kvcalc.measure.feed import file_name, read_small

__all__ = ["bfc_log", "jax_stats", "read_bfc_log", "read_jax_stats"]

_STATS_BYTES = 2**18
_LOG_BYTES = 2**26
_MAX_DEPTH = 8
_MAX_BYTES = 2**60
_STATS_HINT = "give what device.memory_stats() returned, as Python prints it or as JSON"
_LOG_HINT = "give the log from 'ran out of memory trying to allocate' to the end of 'Stats:'"

_CHUNK = re.compile(
    r"(?P<state>InUse|Free )\s{0,4}at\s+(?:0x)?[0-9a-fA-F]{1,16}\s+of\s+size\s+(?P<size>\d{1,19})\b"
)
_DUMP = re.compile(r"BFCAllocator dump for")
_BEFORE = 2_000  # characters before a dump that tell of the request
_STAT = re.compile(r"\b(?P<name>Limit|InUse|LargestFreeBlock):\s{1,40}(?P<value>\d{1,19})\b")
_ASKED = re.compile(r"\(rounded to (?P<bytes>\d{1,19})\)")
_REGIONS = re.compile(r"total_region_allocated_bytes_: (?P<bytes>\d{1,19})")


def read_jax_stats(source: str, stdin: BinaryIO | None = None) -> list[PoolState]:
    """Read the statistics of one device, or a list of them, from a file or stdin (`-`)."""
    return jax_stats(read_small(source, _STATS_BYTES, stdin), file_name(source))


def jax_stats(text: str, where: str = "the statistics") -> list[PoolState]:
    """Read the text of `device.memory_stats()`."""
    if len(text) > _STATS_BYTES:
        message = f"more than {format_count(_STATS_BYTES)} characters"
        raise InputError(message, hint=_STATS_HINT, where=where)
    depth = deepest = 0
    for mark in text:
        depth += (mark in "[{(") - (mark in "]})")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise InputError("nested too deep", hint=_STATS_HINT, where=where)
    plain = re.sub(r"\bnull\b", "None", text.strip())
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InputError("this is neither a dict nor JSON", hint=_STATS_HINT, where=where) from None
    entries = value if isinstance(value, (list, tuple)) else [value]
    return [_jax_device(entry, number, where) for number, entry in enumerate(entries)]


def _jax_device(entry: object, number: int, where: str) -> PoolState:
    if entry is None:
        _refuse(where, "memory_stats() returned None: this back end reports nothing (a CPU?)")
    if not isinstance(entry, dict):
        _refuse(where, f"device {number} is no dict")
    figures = {
        key: value
        for key, value in entry.items()
        if type(value) is int and 0 <= value <= _MAX_BYTES
    }
    for name in ("bytes_in_use", "largest_free_block_bytes"):
        if name not in figures:
            _refuse(where, f"device {number} does not tell {name}")
    in_use, largest = figures["bytes_in_use"], figures["largest_free_block_bytes"]
    # The pool is what was taken so far; where it may still grow, the largest hole is of the limit.
    totals = [figures[name] for name in ("pool_bytes", "bytes_limit") if figures.get(name)]
    total = next((total for total in totals if total - in_use >= largest), None)
    if not totals:
        _refuse(where, f"device {number} tells neither pool_bytes nor bytes_limit")
    if total is None:
        _refuse(
            where,
            f"device {number} has {format_count(in_use)} B in use and a hole of"
            f" {format_count(largest)} B in {format_count(totals[-1])} B",
        )
    if not largest and total > in_use:
        _refuse(
            where,
            f"device {number} has {format_count(total - in_use)} B free and a largest hole of 0:"
            " its back end does not report it",
        )
    return PoolState(
        source="jax",
        device=number,
        reserved_bytes=total,
        allocated_bytes=in_use,
        largest_free_bytes=largest,
    )


def _refuse(where: str, message: str) -> NoReturn:
    raise InputError(message, hint=_STATS_HINT, where=where)


def read_bfc_log(source: str, stdin: BinaryIO | None = None) -> PoolState:
    """Read the last dump of a BFC allocator in a log, from a file or stdin (`-`)."""
    return bfc_log(read_small(source, _LOG_BYTES, stdin), file_name(source))


def bfc_log(text: str, where: str = "the log") -> PoolState:
    """Read a log with the dump that a BFC allocator prints when it runs out."""
    for asked, dump in _dumps(text):
        state = _dump(dump, asked, where)
        if state is not None:
            return state
    raise InputError(
        "no dump of a BFC allocator with its chunks or largest free block is in it",
        hint=_LOG_HINT,
        where=where,
    )


def _dumps(text: str) -> Iterator[tuple[int | None, str]]:
    """Yield each dump of a log with the request before it, the last first."""
    starts = [match.start() for match in _DUMP.finditer(text)] or [0]
    for start, end in reversed(list(zip(starts, [*starts[1:], len(text)], strict=True))):
        before = _ASKED.finditer(text, max(0, start - _BEFORE), start or end)
        asked = [int(match["bytes"]) for match in before]
        yield (asked[-1] if asked else None), text[start:end]


def _dump(text: str, asked: int | None, where: str) -> PoolState | None:
    found = ((match["state"] == "InUse", int(match["size"])) for match in _CHUNK.finditer(text))
    chunks = [(used, size) for used, size in found if size]
    stats = {match["name"]: int(match["value"]) for match in _STAT.finditer(text)}
    if chunks:
        holes = tuple(size for used, size in chunks if not used)
        in_use = sum(size for used, size in chunks if used)
        return PoolState(
            source="bfc",
            device=0,
            reserved_bytes=in_use + sum(holes),
            allocated_bytes=in_use,
            largest_free_bytes=max(holes, default=0),
            holes=holes,
            asked_bytes=asked,
        )
    if {"Limit", "InUse", "LargestFreeBlock"} <= stats.keys():
        regions = _REGIONS.search(text)
        total = int(regions["bytes"]) if regions else stats["Limit"]
        return _by_stats(total, stats, asked, where)
    return None


def _by_stats(total: int, stats: dict[str, int], asked: int | None, where: str) -> PoolState | None:
    largest, in_use = stats["LargestFreeBlock"], stats["InUse"]
    if not largest and in_use < total:
        return None  # not reported
    if in_use + largest > total:
        raise InputError(
            f"{format_count(in_use)} B in use and a hole of {format_count(largest)} B are more"
            f" than {format_count(total)} B",
            hint=_LOG_HINT,
            where=where,
        )
    return PoolState(
        source="bfc",
        device=0,
        reserved_bytes=total,
        allocated_bytes=in_use,
        largest_free_bytes=largest,
        asked_bytes=asked,
    )
