"""A probe's log: what was asked and every reading, as JSON that can be evaluated again anywhere."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvcalc.core.errors import InputError, printable
from kvcalc.core.values import Value
from kvcalc.measure.probe.device import DeviceFacts, Reading

__all__ = ["SCHEMA", "Asked", "ProbeLog", "Stage", "as_json", "from_json"]

SCHEMA = "kvcalc.probe-log/1"
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]


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
    block_size: int | None
    max_model_len: int
    layout: str
    units: int
    requests: int
    tokens: int
    computed_bytes: _Bytes
    contiguous_computed_bytes: _Bytes
    sizes: tuple[tuple[_Bytes, _Bytes], ...]
    contiguous_sizes: tuple[tuple[_Bytes, _Bytes], ...] = ()


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
    workspace: int | None = None


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
        InputError: it is none, or of another version.
    """
    try:
        log = msgspec.json.decode(content, type=ProbeLog)
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
    return log
