"""Free memory against the largest hole: does a request fit, and what would fit instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvcalc.answers.results import Fragmentation, SequencesOfMax
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.explain import explain_plan
from kvcalc.core.lengths import whole_number
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import UnitSystem, format_bytes, format_count, format_times
from kvcalc.core.values import Value

__all__ = ["ASSUMES", "Memory", "fragmentation", "other_reading"]

ASSUMES = (
    "the free memory belongs to the pool of a paged cache, which takes it once, at start, and then"
    " hands out blocks that need no neighbours"
)


class Memory(Value, frozen=True, kw_only=True):
    """Free memory: its sum and largest hole, or every hole; and what is asked of it.

    Attributes:
        request_bytes: the allocation asked for; None for one sequence of the plan's maximum.
    """

    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    holes: tuple[int, ...] | None = None
    request_bytes: int | None = None


def fragmentation(
    plan: CachePlan, memory: Memory, *, units: UnitSystem = "binary", explain: bool = False
) -> Fragmentation:
    """Say whether a request fits into free memory in one piece, in blocks, and what else would.

    The figures speak of the holes inside one process's allocator (PyTorch's cached but unallocated
    memory), or inside one preallocated pool. Driver-free memory, as nvidia-smi shows it, has no
    largest hole: the driver maps scattered pages behind one range.

    Args:
        plan: whose sequences of max_model_len tokens are counted.
        memory: what is free and what is asked for.
        units: how the verdict prints sizes.
        explain: put the formula of the sequence's bytes into the result.

    Raises:
        UsageError: neither holes nor free and largest, or holes that contradict them.
        InvalidValueError: a size below zero, a request of nothing, largest beyond free.
    """
    for value in (*_told(memory), *(memory.holes or ())):
        whole_number(value, "a size", "give whole bytes")
    holes = memory.holes
    free, largest = _sizes(memory.free_bytes, memory.largest_free_bytes, holes)
    max_model_len = plan.max_model_len
    sequence_bytes = plan.bytes_needed(max_model_len)
    request_bytes = sequence_bytes if memory.request_bytes is None else memory.request_bytes
    if request_bytes < 1 or sequence_bytes < 1:
        raise InvalidValueError("the request must be at least one byte")
    low, high = _sequence_bounds(free, largest, holes, sequence_bytes)
    unusable = _unusable_bounds(free, largest, holes, request_bytes)
    result = SequencesOfMax(
        max_model_len=max_model_len,
        bytes=sequence_bytes,
        in_request=request_bytes // sequence_bytes,
        in_free=free // sequence_bytes,
        in_holes=low if holes is not None else None,
        bounds=(low, high),
    )
    fits_contiguous, fits_paged = request_bytes <= largest, request_bytes <= free
    return Fragmentation(
        model=plan.model,
        engine=plan.engine,
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        max_model_len=max_model_len,
        free_bytes=free,
        largest_free_bytes=largest,
        holes=None if holes is None else len([h for h in holes if h]),
        request_bytes=request_bytes,
        fits_contiguous=fits_contiguous,
        fits_paged=fits_paged,
        assumes=ASSUMES,
        free_over_request=free / request_bytes,
        external_fragmentation_ratio=1 - largest / free if free else None,
        unusable_ratio=unusable[0] if holes is not None and free else None,
        unusable_bounds=unusable,
        sequences_of_max=result,
        verdict=_verdict(free, largest, request_bytes, result, units),
        explain=explain_plan(plan, [max_model_len]) if explain else (),
    )


def _told(memory: Memory) -> list[int]:
    """Return the single sizes that were given."""
    given = (memory.free_bytes, memory.largest_free_bytes, memory.request_bytes)
    return [value for value in given if value is not None]


def _sizes(free: int | None, largest: int | None, holes: Sequence[int] | None) -> tuple[int, int]:
    if holes is not None:
        if any(h < 0 for h in holes):
            raise InvalidValueError("a hole is smaller than nothing")
        total, top = sum(holes), max(holes, default=0)
        if free not in (None, total) or largest not in (None, top):
            raise UsageError(
                f"the holes add up to {format_count(total)} B, the largest being"
                f" {format_count(top)} B, which is not what is given beside them",
                hint="give the holes alone, or free and largest alone",
            )
        return total, top
    if free is None or largest is None:
        raise UsageError(
            "free memory and its largest hole are both needed",
            hint="give --free and --largest, every hole with --holes, or a file that tells them:"
            " --snapshot (PyTorch), --oom (an error's text), --jax-stats, --bfc-log",
        )
    if free < 0 or largest < 0 or largest > free:
        raise InvalidValueError(
            f"the largest hole ({format_count(largest)} B) cannot exceed the free memory"
            f" ({format_count(free)} B)",
            hint="check the units of --free and --largest",
        )
    if free and not largest:
        raise InvalidValueError(
            "a largest hole of 0 with memory free means that it was not reported",
            hint="give the size of the largest hole",
        )
    return free, largest


def _sequence_bounds(
    free: int, largest: int, holes: Sequence[int] | None, size: int
) -> tuple[int, int]:
    """How many pieces of `size` the holes take: exact with the holes, else the least and most.

    One hole is as large as `largest`. At worst all others are just too small; at best they are
    whole multiples of the size.
    """
    if holes is not None:
        exact = sum(hole // size for hole in holes)
        return exact, exact
    if largest < size:
        return 0, 0
    return largest // size, largest // size + (free - largest) // size


def _unusable_bounds(
    free: int, largest: int, holes: Sequence[int] | None, request: int
) -> tuple[float, float]:
    """Share of the free bytes in holes smaller than the request: least and most.

    Gorman's unusable free space index for one request size.
    """
    if not free:
        return 0.0, 0.0
    if holes is not None:
        exact = sum(hole for hole in holes if hole < request) / free
        return exact, exact
    if largest < request:
        return 1.0, 1.0
    rest = free - largest
    # As many further holes as reach the request, each at most as large as the largest.
    usable = min(rest, rest // request * largest)
    return (rest - usable) / free, rest / free


def _verdict(
    free: int, largest: int, request: int, sequences: SequencesOfMax, units: UnitSystem
) -> str:
    def size(value: int) -> str:
        return format_bytes(value, units=units)

    asked = f"a request of {size(request)}"
    have = f"{size(free)} free"
    level = (
        "These are holes inside one allocator or pool, not driver-free memory, which has no"
        " largest hole."
    )
    if request > free:
        return (
            f"Shortage, not fragmentation: {asked} is more than all of the {have};"
            f" {size(request - free)} is missing. {level}"
        )
    if request <= largest:
        return f"Fits: {asked} goes into the largest hole of {size(largest)} ({have}). {level}"
    return (
        f"Fragmented: {asked} fits no hole (the largest is {size(largest)}) though {have} is"
        f" {format_times(free, request)} times as much. {_in_blocks(sequences, size)} {level}"
    )


def _in_blocks(sequences: SequencesOfMax, size: Callable[[int], str]) -> str:
    """Say what a request that fits no hole comes to in blocks."""
    longest, count = format_count(sequences.max_model_len), sequences.in_free
    pool = "if it belongs to a paged pool, which a server takes once, at start."
    if not sequences.in_request:
        whole = "takes" if not count else "would take"
        return (
            f"In blocks it fits, {pool} One whole sequence of {longest} tokens {whole}"
            f" {size(sequences.bytes)}, more than the request"
            + (" and more than is free." if not count else ".")
        )
    return (
        f"In blocks it fits: the free memory would hold {count} sequence{_s(count)} of {longest}"
        f" tokens where the request would hold {sequences.in_request}, {pool}"
    )


def other_reading(result: Fragmentation, other: Fragmentation) -> list[str]:
    """Say what changes when sizes given in GiB are meant as GB, or the other way round.

    Returns:
        one line, or none where the answer is the same.
    """
    this, that = result.sequences_of_max, other.sequences_of_max
    counts = (this.in_request, this.in_free), (that.in_request, that.in_free)
    fits = (result.fits_contiguous, result.fits_paged), (other.fits_contiguous, other.fits_paged)
    if counts[0] == counts[1] and fits[0] == fits[1]:
        return []
    line = (
        f"GB and GiB differ here: read the other way, the request holds {that.in_request}"
        f" sequence{_s(that.in_request)} and the free memory {that.in_free}"
    )
    for before, after, how in zip(*fits, ("in one piece", "in blocks"), strict=True):
        if before != after:
            line += f", and it {'fits' if after else 'does not fit'} {how}"
    return [line]


def _s(count: int) -> str:
    return "" if count == 1 else "s"
