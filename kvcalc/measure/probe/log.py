"""A probe's log: what was asked and every reading, as JSON that can be evaluated again anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import format_count
from kvcalc.core.values import NonNegative, Positive, Value
from kvcalc.measure.probe.device import Bytes, DeviceFacts, Reading

__all__ = ["SCHEMA", "STAGES", "Asked", "ProbeLog", "Stage", "as_json", "from_json"]

SCHEMA = "kvcalc.probe-log/1"

STAGES = ("baseline", "pool", "decode", "freed", "contiguous", "contiguous_decode", "end")
"""Moments of a repetition, in their order; some may be left out."""


class Asked(Value, frozen=True, kw_only=True):
    """What was probed.

    Attributes:
        sizes: (bytes, how many) of the pool's tensors, in order.
        contiguous_sizes: the same of the contiguous twin; empty where it was left out.
    """

    model: str
    engine: str
    engine_version: str | None
    kv_cache_dtype: str
    block_size: Positive | None
    max_model_len: Positive
    layout: str
    units: Bytes
    requests: NonNegative
    tokens: Bytes
    computed_bytes: Bytes
    contiguous_computed_bytes: Bytes
    sizes: tuple[tuple[Bytes, Bytes], ...]
    contiguous_sizes: tuple[tuple[Bytes, Bytes], ...] = ()


class Stage(Value, frozen=True, kw_only=True):
    """One moment of a repetition.

    Attributes:
        name: baseline, pool, decode, freed, contiguous, contiguous_decode or end.
        reading: what the device told.
        kernel: what ran, after a decode.
        workspace: what it took beside what it read, where it is known by itself.
    """

    name: str
    reading: Reading
    kernel: str | None = None
    workspace: Bytes | None = None


class ProbeLog(Value, frozen=True, kw_only=True):
    """A whole probe.

    Attributes:
        runs: one tuple of stages a repetition.
        notes: what was left out, and why.
    """

    schema: str
    kvcalc_version: str
    backend: str
    device: DeviceFacts
    asked: Asked
    runs: tuple[tuple[Stage, ...], ...]
    notes: tuple[str, ...] = ()


def as_json(log: ProbeLog) -> str:
    """Return the log as text."""
    return msgspec.json.format(msgspec.json.encode(log), indent=1).decode() + "\n"


def from_json(content: bytes, where: str) -> ProbeLog:
    """Read a log back.

    Raises:
        InputError: it is none, of another version, or tells what no device can.
    """
    try:
        # Read plainly first: no text of it may move a cursor, wherever it is shown.
        log = msgspec.convert(_shown(msgspec.json.decode(content)), ProbeLog)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(
            f"no log of a probe: {printable(str(error))[:120]}",
            where=where,
            hint="a log is what --log wrote",
        ) from None
    if log.schema != SCHEMA:
        raise InputError(
            f"a log of {printable(log.schema)[:40]!r}, not {SCHEMA}",
            where=where,
            hint="read it with the kvcalc that wrote it",
        )
    if not log.runs or any(not run for run in log.runs):
        raise InputError("a log without a reading", where=where, hint="run the probe again")
    fault = next(_faults(log), None)
    if fault is not None:
        raise InputError(f"an impossible log: {fault}", where=where, hint=_RERUN)
    return log


_RERUN = "a log is evaluated as --log wrote it; run the probe again"
_LAYERS = ("requested", "allocated", "reserved")  # each is a part of the next


def _shown(value: Any) -> Any:
    """Return a document whose texts are printable, keys included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {printable(key): _shown(item) for key, item in value.items()}
    return value


def _faults(log: ProbeLog) -> Iterator[str]:
    """Yield what contradicts itself."""
    asked = log.asked
    whole = asked.contiguous_computed_bytes
    for what, sizes, total in (
        ("tensors of the pool", asked.sizes, asked.computed_bytes),
        ("tensors of one piece a request", asked.contiguous_sizes, whole),
    ):
        told = sum(size * count for size, count in sizes)
        if sizes and told != total:
            yield f"{what} add up to {format_count(told)} B, not {format_count(total)}"
    for number, run in enumerate(log.runs, start=1):
        at = [STAGES.index(s.name) if s.name in STAGES else -1 for s in run]
        if -1 in at or any(first >= second for first, second in pairwise(at)):
            yield f"repetition {number} is not baseline, pool, ... end in that order, each once"
        for stage in run:
            yield from _impossible(log.device, stage, f"repetition {number}, {stage.name[:20]}")


def _impossible(device: DeviceFacts, stage: Stage, where: str) -> Iterator[str]:
    reading = stage.reading
    told = [(name, getattr(reading, name)) for name in _LAYERS if device.caching]
    known = [(name, value) for name, value in told if value is not None]
    for (inner, less), (outer, more) in pairwise(known):
        if less > more:
            yield f"{where}: {inner} {format_count(less)} B of {outer} {format_count(more)} B"
    peak, allocated = reading.peak, reading.allocated
    if device.caching and peak is not None and allocated is not None and peak < allocated:
        yield f"{where}: a peak of {format_count(peak)} B, with {format_count(allocated)} allocated"
