"""The procedure: baseline, pool, decode, free, then one piece a request, and back to nothing.

One warm-up run before the first repetition keeps what loads once (context, kernels, handles of
libraries) out of the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan, Group, Pool
from kvcalc.core.units import format_bytes, format_number_of
from kvcalc.measure.probe.device import (
    Attention,
    Contiguous,
    Decoded,
    Device,
    Laid,
    Paged,
    attention_layers,
    laid_out,
    twin_tensors,
)
from kvcalc.measure.probe.findings import SCHEMA, Asked, ProbeLog, Stage

__all__ = ["MAX_REQUESTS", "Question", "ask", "measure"]

MAX_REQUESTS = 10_000
"""Sequences that are laid into a pool; block tables of more say nothing new."""

_SHARE = 2  # a probe takes at most one half of what is free, unless it is told otherwise


class Question(NamedTuple):
    """A pool to measure.

    Attributes:
        plan: whose it is.
        lengths: tokens of each request.
        pools: each pool of the binding rank, its units, and its tensors.
        asked: the same, as a log keeps it.
        contiguous: bytes of each tensor of the twin.
    """

    plan: CachePlan
    lengths: tuple[int, ...]
    pools: tuple[tuple[Pool, int, Laid], ...]
    asked: Asked
    contiguous: tuple[int, ...]


def ask(plan: CachePlan, requests: Lengths, kv_cache_bytes: int | None = None) -> Question:
    """Return the pool that holds requests of these lengths, or that a budget buys.

    Args:
        plan: whose pool.
        requests: how many there are of each length.
        kv_cache_bytes: of the whole pool; None for what the requests need.
    """
    count = sum(times for _, times in requests)
    if not 1 <= count <= MAX_REQUESTS:
        raise InvalidValueError(
            f"{format_number_of(count, 'request')} to lay into a pool",
            hint=f"give 1 to {MAX_REQUESTS:,}",
        )
    lengths = [n for n, times in requests for _ in range(times)]
    longest = max(lengths)
    if longest > plan.max_model_len:
        raise InvalidValueError(
            f"a request of {longest:,} tokens is over the maximum of {plan.max_model_len:,}",
            hint="raise --max, or leave it out",
        )
    rank = plan.rank
    units = _units(plan, lengths, kv_cache_bytes)
    pools = tuple(
        (pool, count, laid_out(plan, pool, count))
        for pool, count in zip(rank.pools, units, strict=True)
    )
    sizes = [size for _, _, laid in pools for size in laid.sizes]
    contiguous = twin_tensors(plan, plan.max_model_len, len(lengths))
    asked = Asked(
        model=plan.model,
        engine=plan.engine,
        engine_version=plan.engine_version,
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        max_model_len=plan.max_model_len,
        layout="; ".join(dict.fromkeys(laid.told for _, _, laid in pools)),
        units=sum(units),
        requests=len(lengths),
        tokens=sum(lengths),
        computed_bytes=sum(pool.total_bytes(count) for pool, count, _ in pools),
        contiguous_computed_bytes=sum(contiguous),
        sizes=_counted(sizes),
        contiguous_sizes=_counted(contiguous),
    )
    return Question(plan, tuple(lengths), pools, asked, contiguous)


def _counted(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((size, len(list(equal))) for size, equal in groupby(sizes))


def _units(plan: CachePlan, lengths: Sequence[int], budget: int | None) -> tuple[int, ...]:
    """Return the units of each pool; what the requests need where nothing else decides."""
    rank = plan.rank
    counts = Counter(lengths)
    needed = [
        sum(count * pool.need(rank.local(n)) for n, count in counts.items()) for pool in rank.pools
    ]
    if budget is not None or plan.sized:
        found = plan.capacity(budget)
        units = tuple(pool.units for pool in found.pools)
        if plan.split != "fungible":
            for pool, have, want in zip(rank.pools, units, needed, strict=True):
                if pool.usable(have) < want:
                    raise InvalidValueError(
                        f"pool {pool.name} has {pool.usable(have):,} units for sequences, and the"
                        f" requests need {want:,}",
                        hint="give it more (--kv-memory), or fewer or shorter requests (--lengths)",
                    )
            return units
    return tuple(
        want + (0 if pool.reserved_is_extra else pool.reserved_units)
        for pool, want in zip(rank.pools, needed, strict=True)
    )


def measure(
    device: Device,
    question: Question,
    *,
    backend: str,
    version: str,
    repetitions: int = 3,
    limit: int | None = None,
    told: Callable[[str], None] | None = None,
) -> ProbeLog:
    """Run the procedure and return its log.

    Args:
        device: to measure on.
        question: what to measure.
        backend: as the log names it.
        version: of kvcalc.
        repetitions: how often; the first is preceded by a warm-up.
        limit: bytes that the probe may hold at once; None for half of what is free.
        told: is given a line on what happens now.
    """
    say = told or (lambda _: None)
    device.settle()
    if limit is None:
        free = device.read().free
        limit = None if free is None else free // _SHARE
    _refuse(question.asked.computed_bytes, limit)
    notes: list[str] = []
    whole = question.asked.contiguous_computed_bytes
    fits = limit is None or whole <= limit
    if not fits:
        notes.append(
            f"one piece a request would take {format_bytes(whole)}, more than the limit of"
            f" {format_bytes(limit or 0)}: it is computed, not measured"
        )
    say("warming up")
    _once(device, question, [], contiguous=fits)
    runs = []
    for repetition in range(repetitions):
        say(f"repetition {repetition + 1} of {repetitions}")
        runs.append(_once(device, question, notes, contiguous=fits))
    return ProbeLog(
        schema=SCHEMA,
        kvcalc_version=version,
        backend=backend,
        device=device.facts,
        asked=question.asked,
        runs=tuple(runs),
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise InvalidValueError(
            f"the pool takes {format_bytes(size)}, more than the limit of {format_bytes(limit)}",
            hint="raise --limit (half of what is free otherwise), or give fewer --lengths",
        )


def _once(
    device: Device, question: Question, notes: list[str], *, contiguous: bool
) -> tuple[Stage, ...]:
    """Run one repetition; whatever happens, what was allocated is given back."""
    stages: list[Stage] = []

    def note(name: str, decoded: Decoded | None = None) -> None:
        kernel = decoded.kernel if decoded else None
        workspace = decoded.workspace if decoded else None
        reading = device.read()
        stages.append(Stage(name=name, reading=reading, kernel=kernel, workspace=workspace))

    device.settle()
    note("baseline")
    sizes, whole = question.asked.sizes, question.asked.contiguous_sizes
    _phase(device, sizes, note, "pool", lambda held: _paged(device, question, held, notes))
    device.settle()
    note("freed")
    if contiguous:
        _phase(
            device, whole, note, "contiguous", lambda held: _whole(device, question, held, notes)
        )
        device.settle()
    note("end")
    return tuple(stages)


def _phase(
    device: Device,
    sizes: Sequence[tuple[int, int]],
    note: Callable[..., None],
    name: str,
    decode: Callable[[tuple[Any, ...]], Decoded | None],
) -> None:
    held: list[Any] = []
    try:
        for size, count in sizes:
            held.extend(device.allocate(size) for _ in range(count))
        note(name)
        device.reset_peak()
        decoded = decode(tuple(held))
        if decoded is not None:
            note("decode" if name == "pool" else f"{name}_decode", decoded)
    finally:
        device.release(tuple(held))
        held.clear()


def _paged(
    device: Device, question: Question, held: tuple[Any, ...], notes: list[str]
) -> Decoded | None:
    """Run a decode step over each group of layers that a plain kernel can read."""
    last: Decoded | None = None
    start = 0
    for pool, _, laid in question.pools:
        tensors = held[start : start + len(laid.sizes)]
        start += len(laid.sizes)
        free = pool.reserved_units
        for group in pool.groups:
            attention = attention_layers(question.plan, group)
            tables, free = _tables(question, group, free)
            if attention is None or laid.cut == "buffer":
                notes.append(f"no kernel is run over {group.name}: its layout is the engine's own")
                continue
            step = Paged(
                attention, tensors, laid.cut == "side", tables, _read(question.lengths, attention)
            )
            found = device.decode_paged(step)
            notes.extend(found.notes)
            last = _more(last, found)
    return last


def _more(one: Decoded | None, other: Decoded) -> Decoded:
    """Steps run one after the other, so that the larger workspace is the peak."""
    if one is None or one.workspace is None or other.workspace is None:
        return other
    return other if other.workspace >= one.workspace else one


def _tables(
    question: Question, group: Group, first: int
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the block ids of each request, from `first` on, and the next free one."""
    rank = question.plan.rank
    tables = []
    for n in question.lengths:
        count = group.rule.held(rank.local(n))
        tables.append(tuple(range(first, first + count)))
        first += group.rule.peak(rank.local(n))
    return tuple(tables), first


def _read(lengths: tuple[int, ...], attention: Attention) -> tuple[int, ...]:
    if attention.window is None:
        return lengths
    return tuple(min(n, attention.window) for n in lengths)


def _whole(
    device: Device, question: Question, held: tuple[Any, ...], notes: list[str]
) -> Decoded | None:
    """Run the same steps over one piece a request."""
    rank = question.plan.rank
    twin = question.plan.contiguous(question.plan.max_model_len).rank
    last: Decoded | None = None
    start = 0
    groups = [group for pool in rank.pools for group in pool.groups]
    for pool, group in zip(twin.pools, groups, strict=False):
        attention = attention_layers(question.plan, group)
        if len(groups) != len(twin.pools) or attention is None:
            notes.append(f"no kernel is run over one piece a request of {group.name}")
            return last
        keys = held[start : start + attention.layers]
        values = held[start + attention.layers : start + 2 * attention.layers]
        start += 2 * attention.layers
        units = pool.need(rank.local(question.plan.max_model_len))
        slots = units * pool.groups[0].rule.slots_per_unit
        step = Contiguous(attention, keys, values, slots, _read(question.lengths, attention))
        last = _more(last, device.decode_contiguous(step))
    return last
