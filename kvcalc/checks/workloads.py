"""Workloads of kvcalc.yaml: requests by their lengths, a histogram, or a trace."""

from __future__ import annotations

import os
from typing import Any, NamedTuple, cast

from kvcalc.checks.sized import Load
from kvcalc.core.errors import InvalidValueError, UnknownNameError
from kvcalc.core.lengths import OVER_POLICIES, Lengths, Over, parse_lengths, whole_number

__all__ = ["WorkloadEntry", "load_of", "read_workload"]

_KEYS = ("lengths", "histogram", "trace", "prompt_column", "output_column", "over")
_SOURCES = ("lengths", "histogram", "trace")
_EXAMPLE = "write {lengths: [200, 1200]}, {histogram: [[200, 50]]} or {trace: requests.csv}"


class WorkloadEntry(NamedTuple):
    """A workload as it stands in the file; a trace is read when it is asked for.

    Attributes:
        over: what becomes of requests beyond the maximum; None: they are a finding.
    """

    name: str
    line: int
    lengths: Lengths | None
    trace: str | None = None
    columns: tuple[str | None, str | None] = (None, None)
    over: Over | None = None


def read_workload(name: str, given: object, line: int) -> WorkloadEntry:
    """Read one workload.

    Raises:
        InvalidValueError, UnknownNameError: it is none.
    """
    if isinstance(given, (str, list)):
        given = {"lengths": given}
    if not isinstance(given, dict):
        raise InvalidValueError(f"workload {name:.40} is no mapping", hint=_EXAMPLE)
    for key in given:
        if key not in _KEYS:
            raise UnknownNameError("key of a workload", f"{key:.40}", _KEYS)
    sources = [key for key in _SOURCES if key in given]
    if len(sources) != 1:
        told = " and ".join(sources) or "nothing"
        raise InvalidValueError(f"workload {name:.40} gives {told}", hint=_EXAMPLE)
    over = given.get("over")
    if over is not None and over not in OVER_POLICIES:
        raise UnknownNameError("value of over", f"{over!s:.40}", OVER_POLICIES)
    return _entry(name, given, line)


def _entry(name: str, given: dict[str, Any], line: int) -> WorkloadEntry:
    columns = (_column(given.get("prompt_column")), _column(given.get("output_column")))
    if any(columns) and "trace" not in given:
        raise InvalidValueError("columns are of a trace", hint="name the trace: trace: FILE")
    over = given.get("over")
    policy = cast("Over | None", over)
    if "trace" in given:
        if not isinstance(given["trace"], str):
            raise InvalidValueError("the trace is no file's name", hint="write trace: requests.csv")
        return WorkloadEntry(name, line, None, given["trace"], columns, policy)
    lengths = _lengths(given["lengths"]) if "lengths" in given else _histogram(given["histogram"])
    if not lengths.requests:
        raise InvalidValueError(f"workload {name:.40} has no request", hint=_EXAMPLE)
    return WorkloadEntry(name, line, lengths, over=policy)


def load_of(entry: WorkloadEntry, folder: str) -> Load:
    """Return a workload's requests; a trace is read here.

    Raises:
        InputError: the trace cannot be read.
    """
    if entry.lengths is not None:
        return Load(entry.name, entry.lengths, entry.over)
    from kvcalc.workload.traces import read_trace  # numpy comes with it

    path = os.path.join(folder, entry.trace or "")
    trace = read_trace(path, prompt_column=entry.columns[0], output_column=entry.columns[1])
    return Load(entry.name, trace.lengths, entry.over)


def _column(given: Any) -> str | None:
    return None if given is None else str(given)


def _lengths(given: object) -> Lengths:
    if isinstance(given, str):
        return parse_lengths(given)
    if isinstance(given, int):
        given = [given]
    if not isinstance(given, list):
        raise InvalidValueError("lengths are a list", hint="write lengths: [200, 1200]")
    counts: dict[int, int] = {}
    for part in given:
        one = parse_lengths(part) if isinstance(part, str) else Lengths.of([_whole(part)])
        for length, count in one:
            counts[length] = counts.get(length, 0) + count
    return Lengths(counts)


def _histogram(given: object) -> Lengths:
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise InvalidValueError(
            "a histogram is a list of pairs", hint="write [[200, 50], [700, 3]]"
        )
    counts: dict[int, int] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise InvalidValueError("no pair of length and requests", hint="write [[200, 50]]")
        length, count = (int(n) if isinstance(n, str) and n.isdecimal() else n for n in pair)
        counts[_whole(length)] = counts.get(_whole(length), 0) + _whole(count)
    return Lengths(counts)


def _whole(given: object) -> int:
    found = whole_number(given, "a length", "write a whole number such as 200")
    if found < 1:
        raise InvalidValueError("a length or count below 1", hint="leave it out")
    return found
