"""The holes of a caching allocator: which of them a request may use, now and after a clearing.

A free block of PyTorch's allocator serves one device, stream, pool and class (up to 1 MiB, or
more), so the largest hole of all is only an upper bound. Whole free segments go back to the device
by themselves before the allocator gives up; pieces of segments that are partly in use do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from kvcalc.allocator.request import RequestFit, may_use, served
from kvcalc.allocator.segments import DEFAULT_POOL, OomEvent, Segment, Snapshot
from kvcalc.core.values import Value

__all__ = [
    "AllocatorState",
    "HoleBin",
    "HoleGroup",
    "PoolState",
    "fragmentation_index",
    "histogram",
    "pool_state",
    "state_of",
]


class HoleGroup(Value, frozen=True, kw_only=True):
    """Holes that serve the same requests.

    Attributes:
        pool: "0.0" for the default one.
        size_class: small (allocations of up to 1 MiB) or large.
        releasable_bytes: what goes back to the device when the cache is emptied; of a private
            pool, only once nothing uses the pool any more.
        expandable_segments: how many of the segments grow in place.
    """

    stream: int
    pool: str
    size_class: Literal["small", "large"]
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    awaiting_bytes: int
    free_bytes: int
    holes: int
    largest_free_bytes: int
    releasable_bytes: int
    expandable_segments: int


class HoleBin(Value, frozen=True, kw_only=True):
    """Holes of at least `from_bytes`, a power of two, and less than twice that.

    Attributes:
        fitting_bytes: of them, in holes that serve the request: large enough, and of a pool and
            class that it may use.
    """

    from_bytes: int
    holes: int
    bytes: int
    fitting_bytes: int


class AllocatorState(Value, frozen=True, kw_only=True):
    """One device's memory as its allocator tells it, and what a request finds there.

    Attributes:
        source: what told it: snapshot, jax or bfc.
        reserved_bytes: taken from the device; the pool's limit for jax and bfc.
        awaiting_bytes: given back, but a stream still uses it.
        requested_bytes: what was asked for of what is in use; None where it is not told.
        releasable_bytes: goes back to the device when the cache is emptied.
        split_free_bytes: free, in segments that are partly in use: it does not go back.
        private_free_bytes: free in private pools, which others may not use.
        fragmentation_index: Linux's, at the request, of the holes that it may use: None where one
            serves it (Linux prints -1), else near 0 for a shortage and near 1 for fragmentation.
        quadratic_ratio: 1 - sqrt(sum of squared holes) / free; None where nothing is free.
    """

    source: Literal["snapshot", "jax", "bfc"]
    device: int
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    awaiting_bytes: int
    requested_bytes: int | None
    releasable_bytes: int
    split_free_bytes: int
    private_free_bytes: int
    expandable_segments: int
    groups: tuple[HoleGroup, ...]
    histogram: tuple[HoleBin, ...]
    request: RequestFit | None
    fragmentation_index: float | None
    quadratic_ratio: float | None
    oom_events: tuple[OomEvent, ...] = ()


def histogram(
    holes: Iterable[int], request: int, usable: Iterable[int] | None = None
) -> tuple[HoleBin, ...]:
    """Sort holes into powers of two, every bin between the least and the largest among them.

    Args:
        holes: all of them.
        request: bytes of one allocation.
        usable: those that it may use, large enough or not; all when left out.
    """
    counts: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    fitting: Counter[int] = Counter()
    told = list(holes)
    for hole in told:
        counts[hole.bit_length() - 1] += 1
        sizes[hole.bit_length() - 1] += hole
    for hole in told if usable is None else usable:
        fitting[hole.bit_length() - 1] += hole if hole >= request else 0
    if not counts:
        return ()
    return tuple(
        HoleBin(
            from_bytes=1 << power,
            holes=counts[power],
            bytes=sizes[power],
            fitting_bytes=fitting[power],
        )
        for power in range(min(counts), max(counts) + 1)
    )


class PoolState(Value, frozen=True, kw_only=True):
    """A pool that was taken once and is handed out in parts: JAX's, or a BFC allocator's.

    Attributes:
        reserved_bytes: all of it.
        holes: every free chunk, where they are told.
        asked_bytes: the request that failed, where it is told.
    """

    source: Literal["jax", "bfc"]
    device: int
    reserved_bytes: int
    allocated_bytes: int
    largest_free_bytes: int
    holes: tuple[int, ...] | None = None
    asked_bytes: int | None = None


def pool_state(pool: PoolState, request: int) -> AllocatorState:
    """Return the state of such a pool; nothing in it is given back, and no class divides it."""
    holes = pool.holes or ()
    return AllocatorState(
        source=pool.source,
        device=pool.device,
        segments=1,
        reserved_bytes=pool.reserved_bytes,
        allocated_bytes=pool.allocated_bytes,
        awaiting_bytes=0,
        requested_bytes=None,
        releasable_bytes=0,
        split_free_bytes=pool.reserved_bytes - pool.allocated_bytes,
        private_free_bytes=0,
        expandable_segments=0,
        groups=(),
        histogram=histogram(holes, request),
        request=None,
        fragmentation_index=None if pool.holes is None else fragmentation_index(holes, request),
        quadratic_ratio=_quadratic(holes),
    )


def fragmentation_index(holes: Sequence[int], request: int) -> float | None:
    """Return Linux's fragmentation index for a request; None where a hole serves it.

    1 - (1 + free / request) / holes: near 0 the request fails for want of memory, near 1 for want
    of a hole.
    """
    if not holes:
        return 0.0
    if max(holes) >= request:
        return None
    return max(0.0, 1 - (1 + sum(holes) / request) / len(holes))


def _quadratic(holes: Sequence[int]) -> float | None:
    free = sum(holes)
    if not free:
        return None
    return max(0.0, 1 - float(sum(hole * hole for hole in holes) ** 0.5) / free)


def state_of(
    snapshot: Snapshot, device: int, request: int, device_free: int | None = None
) -> AllocatorState:
    """Say what a device's allocator holds, and whether a request is served.

    Args:
        snapshot: segments of all devices.
        device: which of them.
        request: bytes of one allocation, at least 1.
        device_free: what the device has free beside; None where it is not known.
    """
    segments = [segment for segment in snapshot.segments if segment.device == device]
    blocks = [block for segment in segments for block in segment.blocks]
    holes = [block.size for block in blocks if block.state == "free"]
    in_use = [block for block in blocks if block.state != "free"]
    told = all(block.requested is not None for block in in_use)
    own = [segment for segment in segments if segment.pool == DEFAULT_POOL]
    private = sum(_free(segment) for segment in segments if segment.pool != DEFAULT_POOL)
    releasable = sum(segment.returnable for segment in own)
    fit = served(own, request, snapshot.max_split_size, device_free)
    usable = [hole.size for _, hole in may_use(own, fit.block_bytes, snapshot.max_split_size)]
    return AllocatorState(
        source="snapshot",
        device=device,
        segments=len(segments),
        reserved_bytes=sum(block.size for block in blocks),
        allocated_bytes=sum(b.size for b in blocks if b.state == "allocated"),
        awaiting_bytes=sum(b.size for b in blocks if b.state == "awaiting"),
        requested_bytes=sum(b.requested or 0 for b in in_use) if told else None,
        releasable_bytes=releasable,
        split_free_bytes=sum(holes) - private - releasable,
        private_free_bytes=private,
        expandable_segments=sum(segment.expandable for segment in segments),
        groups=_groups(segments),
        histogram=histogram(holes, fit.block_bytes, usable),
        request=fit,
        fragmentation_index=fragmentation_index(usable, fit.block_bytes),
        quadratic_ratio=_quadratic(holes),
        oom_events=snapshot.oom_events,
    )


def _free(segment: Segment) -> int:
    return sum(block.size for block in segment.blocks if block.state == "free")


def _groups(segments: Sequence[Segment]) -> tuple[HoleGroup, ...]:
    by_key: dict[tuple[int, tuple[int, int], bool], list[Segment]] = {}
    for segment in segments:
        key = (segment.stream, segment.pool, segment.small)
        by_key.setdefault(key, []).append(segment)
    return tuple(_group(by_key[key]) for key in sorted(by_key))


def _group(segments: Sequence[Segment]) -> HoleGroup:
    blocks = [block for segment in segments for block in segment.blocks]
    holes = [block.size for block in blocks if block.state == "free"]
    first = segments[0]
    return HoleGroup(
        stream=first.stream,
        pool=f"{first.pool[0]}.{first.pool[1]}",
        size_class="small" if first.small else "large",
        segments=len(segments),
        reserved_bytes=sum(block.size for block in blocks),
        allocated_bytes=sum(b.size for b in blocks if b.state == "allocated"),
        awaiting_bytes=sum(b.size for b in blocks if b.state == "awaiting"),
        free_bytes=sum(holes),
        holes=len(holes),
        largest_free_bytes=max(holes, default=0),
        releasable_bytes=sum(segment.returnable for segment in segments),
        expandable_segments=sum(segment.expandable for segment in segments),
    )
