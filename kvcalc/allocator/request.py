"""Whether a caching allocator serves one allocation: from a hole that it may use, or the device.

A free block of PyTorch's allocator serves requests of its own pool, stream and class alone, and
max_split_size keeps large blocks for large requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from kvcalc.allocator.segments import (
    LARGE_SEGMENT,
    MIN_BLOCK,
    SMALL_SEGMENT,
    Hole,
    Segment,
    device_bytes,
    is_small,
)
from kvcalc.core.units import round_up
from kvcalc.core.values import Value

__all__ = ["RequestFit", "may_use", "served"]


class RequestFit(Value, frozen=True, kw_only=True):
    """Whether one allocation is served.

    Attributes:
        block_bytes: the request rounded up to a block.
        size_class: which holes it may use.
        device_bytes: what is asked of the device where no hole serves.
        fits_now: a free block serves it as it is.
        streams: those that have such a block.
        largest_usable_bytes: the largest hole that it may use, over all streams.
        usable_bytes: of the holes that serve it as they are, over all streams.
        fits_after_empty_cache: with whole segments given back; None where it hangs on what the
            device has free.
        device_free_bytes: what the device has free; None where nobody said.
        device_free_needed_bytes: what it must have free beside what is given back.
        requests_in_holes: such requests that the usable holes take.
        requests_in_free: such requests that their bytes would take in one piece.
    """

    request_bytes: int
    block_bytes: int
    size_class: Literal["small", "large"]
    device_bytes: int
    fits_now: bool
    streams: tuple[int, ...]
    largest_usable_bytes: int
    usable_bytes: int
    fits_after_empty_cache: bool | None
    device_free_bytes: int | None
    device_free_needed_bytes: int
    requests_in_holes: int
    requests_in_free: int


def may_use(
    segments: Sequence[Segment], block: int, max_split: int | None
) -> Iterator[tuple[Segment, Hole]]:
    """Yield each hole that a request may use by its class and max_split_size, however small.

    Args:
        segments: of the pool that the request draws on.
        block: its bytes, rounded up to a block.
        max_split: blocks from this size on are never split; None for no limit.
    """
    small = is_small(block)
    for segment in segments:
        if segment.small == small:
            for hole in segment.free_blocks():
                if _may_serve(hole.size, block, max_split):
                    yield segment, hole


def served(
    segments: Sequence[Segment], request: int, max_split: int | None, device_free: int | None
) -> RequestFit:
    """Say whether a pool serves a request.

    Args:
        segments: of the pool that it draws on.
        request: its bytes, at least 1.
        max_split: blocks from this size on are never split; None for no limit.
        device_free: what the device has free beside; None where it is not known.
    """
    block = round_up(request, MIN_BLOCK)
    small = is_small(block)
    now: dict[int, list[int]] = {}
    kept = 0
    for segment, hole in may_use(segments, block, max_split):
        now.setdefault(segment.stream, []).append(hole.size)
        kept = max(kept, hole.kept)
    holes = [size for sizes in now.values() for size in sizes]
    streams = tuple(sorted(stream for stream, sizes in now.items() if max(sizes) >= block))
    wanted = _wanted(segments, block, small=small)
    needed = max(0, wanted - sum(segment.returnable for segment in segments))
    after: bool | None = True
    if kept < block and needed:
        after = None if device_free is None else needed <= device_free
    return RequestFit(
        request_bytes=request,
        block_bytes=block,
        size_class="small" if small else "large",
        device_bytes=wanted,
        fits_now=bool(streams),
        streams=streams,
        largest_usable_bytes=max(holes, default=0),
        usable_bytes=sum(hole for hole in holes if hole >= block),
        fits_after_empty_cache=after,
        device_free_bytes=device_free,
        device_free_needed_bytes=0 if kept >= block else needed,
        requests_in_holes=sum(hole // block for hole in holes),
        requests_in_free=sum(holes) // block,
    )


def _may_serve(hole: int, block: int, max_split: int | None) -> bool:
    """Whether max_split_size lets a hole serve a block, large enough or not."""
    if max_split is None:
        return True
    if block < max_split:
        return hole < max_split
    return hole < block + LARGE_SEGMENT


def _wanted(segments: Sequence[Segment], block: int, *, small: bool) -> int:
    """Bytes asked of the device for a block; where segments grow in place, only what is missing."""
    growing = [s for s in segments if s.expandable and s.small == small]
    if not growing:
        return device_bytes(block)
    step = SMALL_SEGMENT if small else LARGE_SEGMENT
    # A free block at the end grows: of it, what begins a page stays, and whole pages are returned.
    rests = (-(s.total - s.blocks[-1].size) % step for s in growing if s.blocks[-1].state == "free")
    return round_up(max(0, block - max(rests, default=0)), step)
