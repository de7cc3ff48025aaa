"""Fragmentation as an allocator itself tells it: what a request finds, now and after a clearing."""

from __future__ import annotations

from msgspec.structs import replace

from kvcalc.allocator.request import RequestFit
from kvcalc.allocator.segments import Snapshot, stream_name
from kvcalc.allocator.state import AllocatorState, PoolState, pool_state, state_of
from kvcalc.answers.fragmentation import Memory, fragmentation
from kvcalc.answers.results import Fragmentation
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import UnitSystem, format_bytes

__all__ = ["pool_fragmentation", "snapshot_fragmentation"]


def snapshot_fragmentation(
    plan: CachePlan,
    snapshot: Snapshot,
    device: int,
    *,
    request_bytes: int | None = None,
    device_free_bytes: int | None = None,
    units: UnitSystem = "binary",
    explain: bool = False,
) -> Fragmentation:
    """Say what a device's allocator has free and whether a request is served.

    Free bytes, largest hole and external fragmentation are those of all holes. What is said of the
    request (`fits_contiguous`, `unusable_ratio`, the verdict) counts only holes that it may use: of
    the default pool, and of its own class.

    Args:
        plan: whose sequences of max_model_len tokens are counted.
        snapshot: segments of all devices.
        device: which of them; any, where an allocator took nothing and there are no segments.
        request_bytes: one allocation; None for one sequence of the plan's maximum.
        device_free_bytes: what the device has free beside; None where it is not known.
        units: how the verdict prints sizes.
        explain: put the formula of the sequence's bytes into the result.

    Raises:
        InvalidValueError: the snapshot has no such device; a request of nothing.
    """
    if snapshot.segments and device not in snapshot.devices:
        known = ", ".join(map(str, snapshot.devices))
        raise InvalidValueError(f"no segment of device {device}", hint=f"it has: {known}")
    holes = tuple(
        block.size
        for segment in snapshot.segments
        if segment.device == device
        for block in segment.blocks
        if block.state == "free"
    )
    memory = Memory(holes=holes, request_bytes=request_bytes)
    told = fragmentation(plan, memory, units=units, explain=explain)
    state = state_of(snapshot, device, told.request_bytes, device_free_bytes)
    fit, free = state.request, told.free_bytes
    if fit is None:
        return replace(told, allocator=state, assumes=_ASSUMES)
    unusable = (free - fit.usable_bytes) / free if free else None
    return replace(
        told,
        allocator=state,
        assumes=_ASSUMES,
        fits_contiguous=fit.fits_now,
        unusable_ratio=unusable,
        unusable_bounds=(unusable or 0.0, unusable or 0.0),
        verdict=_verdict(state, fit, free, units),
    )


_ASSUMES = (
    "the request is one allocation from the default pool; in blocks, that all free memory were a"
    " paged cache's"
)


def _verdict(state: AllocatorState, fit: RequestFit, free: int, units: UnitSystem) -> str:
    def size(value: int) -> str:
        return format_bytes(value, units=units)

    asked = f"a request of {size(fit.request_bytes)}"
    hole = f"{size(fit.largest_usable_bytes)} in the {fit.size_class} pool"
    back = size(state.releasable_bytes)
    if fit.fits_now:
        streams = ", ".join(map(stream_name, fit.streams))
        return (
            f"Fits now: {asked} goes into a hole (the largest that it may use is {hole}), for"
            f" stream {streams}."
        )
    none = f"{asked} fits no hole that it may use (the largest is {hole})"
    if not state.segments:
        none = f"the allocator has taken nothing, so {asked} takes {size(fit.device_bytes)} of it"
    if fit.device_free_bytes is not None and fit.device_free_bytes >= fit.device_bytes:
        beside = size(fit.device_free_bytes)
        return f"Fits with memory of the device, which has {beside} free: {none}."
    if fit.fits_after_empty_cache:
        return (
            f"Fits once whole segments are given back, which PyTorch does by itself before it"
            f" gives up: {none}, but {back} of the {size(free)} free"
            f" {'goes' if state.releasable_bytes else 'go'} back to the device"
            + (f", which has {size(fit.device_free_bytes)} free" if fit.device_free_bytes else "")
            + "."
        )
    needed = size(fit.device_free_needed_bytes)
    if fit.device_free_bytes is None:
        gone = f"{back} of the {size(free)} free goes back to the device, which " if free else "it "
        besides = " besides" if state.releasable_bytes else ""
        return (
            f"Depends on what the device has free: {none}; {gone}must have {needed} free{besides}"
            " (a snapshot does not tell: --device-free)."
        )
    short = fit.device_free_needed_bytes - fit.device_free_bytes
    stuck = state.split_free_bytes
    kind = "Shortage"
    if stuck >= short:
        kind = "Fragmented"
    return (
        f"{kind}: {none}; after {back} is given back the device has"
        f" {size(fit.device_free_bytes + state.releasable_bytes)} free and is short by"
        f" {size(short)}, while {size(stuck)} lies free in segments that are partly in use."
    )


def pool_fragmentation(
    plan: CachePlan,
    pool: PoolState,
    *,
    request_bytes: int | None = None,
    units: UnitSystem = "binary",
    explain: bool = False,
) -> Fragmentation:
    """Say what a pool that was taken once has free, and whether a request fits.

    Args:
        plan: whose sequences of max_model_len tokens are counted.
        pool: the pool's figures.
        request_bytes: one allocation; None for the one that failed, where the pool tells it, else
            for one sequence of the plan's maximum.
        units: how the verdict prints sizes.
        explain: put the formula of the sequence's bytes into the result.

    Raises:
        InvalidValueError: figures that contradict each other; a request of nothing.
    """
    request = pool.asked_bytes if request_bytes is None else request_bytes
    if pool.holes is not None:
        memory = Memory(holes=pool.holes, request_bytes=request)
    else:
        memory = Memory(
            free_bytes=pool.reserved_bytes - pool.allocated_bytes,
            largest_free_bytes=pool.largest_free_bytes,
            request_bytes=request,
        )
    told = fragmentation(plan, memory, units=units, explain=explain)
    return replace(told, allocator=pool_state(pool, told.request_bytes))
