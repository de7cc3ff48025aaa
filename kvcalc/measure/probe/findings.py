"""From the log of a probe to its answer: medians, spreads, and each gap between two layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median_low
from typing import Any

import msgspec

from kvcalc.answers.probed import MeasuredBytes, ProbeDifference, ProbeResult
from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.core.values import NonNegative, Positive, Value
from kvcalc.measure.probe.device import Bytes, DeviceFacts, Reading
from kvcalc.measure.probe.synthetic import CachingAllocator

__all__ = [
    "LEAK_LIMIT",
    "SCHEMA",
    "STAGES",
    "Asked",
    "ProbeLog",
    "Stage",
    "as_json",
    "found",
    "from_json",
]

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
    """Read a log back."""
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


# --------------------------------------------------------------------- from a log to an answer

LEAK_LIMIT = 2 * 2**20
"""What may be left at the end: one segment of the allocator, or a page of the driver."""

_ROUNDING = (
    "blocks are multiples of 512 B, and up to 1 MiB that is left of a large one stays with it"
)
_SEGMENTS = "segments: 2 MiB for small blocks, 20 MiB up to 10 MiB, multiples of 2 MiB above"
_DRIVER = "pages of the driver, its context where it grew, and what other processes took meanwhile"
_MOST_TENSORS = 100_000


def found(log: ProbeLog) -> ProbeResult:
    """Return what a log comes to."""
    asked = log.asked
    pool = _measured(log, "pool")
    workspace = _workspace(log, "pool", "decode")
    contiguous = _measured(log, "contiguous") if _has(log, "contiguous") else None
    leak = _leak(log)
    kernels = [s.kernel for run in log.runs for s in run if s.name == "decode" and s.kernel]
    return ProbeResult(
        backend=log.backend,
        device=log.device.name,
        kind=log.device.kind,
        model=asked.model,
        engine=asked.engine,
        kv_cache_dtype=asked.kv_cache_dtype,
        block_size=asked.block_size,
        max_model_len=asked.max_model_len,
        kernel=kernels[0] if kernels else None,
        versions=log.device.versions,
        layout=asked.layout,
        tensors=sum(count for _, count in asked.sizes),
        requests=asked.requests,
        tokens=asked.tokens,
        units=asked.units,
        computed_bytes=asked.computed_bytes,
        measured=pool,
        workspace_bytes=workspace,
        contiguous_computed_bytes=asked.contiguous_computed_bytes,
        contiguous=contiguous,
        contiguous_workspace_bytes=_workspace(log, "contiguous", "contiguous_decode"),
        leak_bytes=leak,
        repetitions=len(log.runs),
        spread_bytes=_spread(log),
        differences=tuple(_differences(log, pool, contiguous)),
        verdict=_verdict(log, pool, contiguous, leak),
        notes=log.notes,
    )


def _stages(log: ProbeLog, name: str) -> list[tuple[Stage, Stage]]:
    """Return (what was there before, the stage) of every repetition that has the stage."""
    before = "freed" if name.startswith("contiguous") else "baseline"
    pairs = []
    for run in log.runs:
        by_name = {stage.name: stage for stage in run}
        if name in by_name and before in by_name:
            pairs.append((by_name[before], by_name[name]))
    return pairs


def _has(log: ProbeLog, name: str) -> bool:
    return bool(_stages(log, name))


def _changes(log: ProbeLog, name: str, of: Callable[[Reading], int | None]) -> list[int]:
    changes = []
    for before, after in _stages(log, name):
        first, then = of(before.reading), of(after.reading)
        if first is not None and then is not None:
            changes.append(then - first)
    return changes


_READ_LAYERS: dict[str, Callable[[Reading], int | None]] = {
    "storage_bytes": lambda r: r.storage,
    "requested_bytes": lambda r: r.requested,
    "allocated_bytes": lambda r: r.allocated,
    "reserved_bytes": lambda r: r.reserved,
    "process_bytes": lambda r: r.process,
    "device_bytes": lambda r: r.used,
}
"""Layers of accounting from the inside out, and where a reading has them."""


def _measured(log: ProbeLog, name: str) -> MeasuredBytes:
    figures: dict[str, int | None] = {}
    for layer, of in _READ_LAYERS.items():
        changes = _changes(log, name, of)
        figures[layer] = median_low(changes) if changes else None
    return MeasuredBytes(**figures)


def _spread(log: ProbeLog) -> int | None:
    """Return the largest difference between repetitions of what the allocator told."""
    spreads = []
    for name in ("pool", "contiguous"):
        for layer in ("storage_bytes", "requested_bytes", "allocated_bytes", "reserved_bytes"):
            changes = _changes(log, name, _READ_LAYERS[layer])
            if changes:
                spreads.append(max(changes) - min(changes))
    return max(spreads, default=None)


def _workspace(log: ProbeLog, held: str, decode: str) -> int | None:
    """Return the most that a step took beside what it read, over the repetitions."""
    taken = []
    for run in log.runs:
        by_name = {stage.name: stage for stage in run}
        if decode not in by_name or held not in by_name:
            continue
        stage = by_name[decode]
        peak, before = stage.reading.peak, by_name[held].reading.allocated
        if stage.workspace is not None:
            taken.append(stage.workspace)
        elif peak is not None and before is not None:
            taken.append(max(0, peak - before))
    return max(taken, default=None)


def _leak(log: ProbeLog) -> int | None:
    """Return what is left of the last repetition, by the innermost layer that can tell."""
    run = {stage.name: stage.reading for stage in log.runs[-1]}
    first, last = run.get("baseline"), run.get("end")
    if first is None or last is None:
        return None
    for of in (_READ_LAYERS["reserved_bytes"], _READ_LAYERS["storage_bytes"]):
        before, after = of(first), of(last)
        if before is not None and after is not None:
            return max(0, after - before)
    return None


def _differences(
    log: ProbeLog, pool: MeasuredBytes, contiguous: MeasuredBytes | None
) -> Iterator[ProbeDifference]:
    sizes = log.asked.sizes
    yield from _gaps("pool", log.asked.computed_bytes, pool, sizes, caching=log.device.caching)
    workspace = _workspace(log, "pool", "decode")
    if workspace is not None:
        yield ProbeDifference(
            name="workspace of a step",
            bytes=workspace,
            expected_bytes=None,
            explained_by="the kernel's own buffers, its output, block tables and lengths",
        )
    if contiguous is not None:
        whole = log.asked.contiguous_computed_bytes
        sizes = log.asked.contiguous_sizes
        yield from _gaps("contiguous", whole, contiguous, sizes, caching=log.device.caching)
        inner = contiguous.storage_bytes, pool.storage_bytes
        if None not in inner:
            yield ProbeDifference(
                name="contiguous over paged",
                bytes=(inner[0] or 0) - (inner[1] or 0),
                expected_bytes=whole - log.asked.computed_bytes,
                explained_by="room for the maximum that the requests do not use, less last blocks",
            )


def _gaps(
    what: str,
    computed: int,
    measured: MeasuredBytes,
    sizes: Sequence[tuple[int, int]],
    *,
    caching: bool,
) -> Iterator[ProbeDifference]:
    """Yield the gap between each two layers that were both read."""
    allocated, reserved = _predicted(sizes) if caching else (None, None)
    inner = computed
    gaps: tuple[tuple[str, int | None, int | None, str], ...] = (
        ("storage", measured.storage_bytes, computed, "what the tensors hold is what is computed"),
        ("requested", measured.requested_bytes, computed, "each tensor asks for what it holds"),
        ("allocated", measured.allocated_bytes, allocated, _ROUNDING),
        ("reserved", measured.reserved_bytes, reserved, _SEGMENTS),
        ("device", measured.device_bytes, None, _DRIVER),
    )
    for name, outer, expected, why in gaps:
        if outer is None:
            continue
        yield ProbeDifference(
            name=f"{what}: {name}",
            bytes=outer - inner,
            expected_bytes=None if expected is None else expected - inner,
            explained_by=why,
        )
        inner = outer


def _predicted(sizes: Sequence[tuple[int, int]]) -> tuple[int | None, int | None]:
    """Return what PyTorch's rules make of such allocations on a device with room for them."""
    if sum(count for _, count in sizes) > _MOST_TENSORS:
        return None, None
    allocator = CachingAllocator(2**62)
    for size, count in sizes:
        for _ in range(count):
            if size:
                allocator.alloc(size)
    return allocator.allocated_bytes, allocator.reserved_bytes


def _verdict(
    log: ProbeLog, pool: MeasuredBytes, contiguous: MeasuredBytes | None, leak: int | None
) -> str:
    computed = log.asked.computed_bytes
    inner = next(
        (
            value
            for value in (pool.storage_bytes, pool.requested_bytes, pool.allocated_bytes)
            if value is not None
        ),
        None,
    )
    said = []
    if inner is None:
        said.append("The device tells nothing of what was allocated.")
    elif inner == computed:
        said.append(f"The pool holds what is computed, to the byte: {format_count(computed)} B.")
    else:
        said.append(
            f"The pool holds {format_count(inner)} B, and {format_count(computed)} B are computed."
        )
    outer = pool.reserved_bytes
    if outer is not None and outer > computed:
        said.append(f"The device gives up {format_bytes(outer - computed)} more, in segments.")
    if contiguous is not None and contiguous.storage_bytes and pool.storage_bytes:
        times = contiguous.storage_bytes / pool.storage_bytes
        requests = format_number_of(log.asked.requests, "request")
        take = "takes" if log.asked.requests == 1 else "take"
        said.append(f"In one piece each, the {requests} {take} {times:,.2f} times as much.")
    if leak is not None and leak > LEAK_LIMIT:
        said.append(f"{format_bytes(leak)} was not given back.")
    return " ".join(said)
