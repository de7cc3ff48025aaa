"""What an allocator's snapshot says: segments of device memory, cut into blocks.

The rules of sizes are those of PyTorch's `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from kvcalc.core.units import round_up
from kvcalc.core.values import Value

__all__ = [
    "DEFAULT_POOL",
    "LARGE_SEGMENT",
    "MIN_BLOCK",
    "MIN_LARGE",
    "SMALL_SEGMENT",
    "SMALL_SIZE",
    "Block",
    "Hole",
    "OomEvent",
    "Segment",
    "Snapshot",
    "device_bytes",
    "is_small",
    "stream_name",
]

MIN_BLOCK = 512
SMALL_SIZE = 2**20
SMALL_SEGMENT = 2 * 2**20
MIN_LARGE = 10 * 2**20
LARGE_SEGMENT = 20 * 2**20

DEFAULT_POOL = (0, 0)


class Block(Value, frozen=True, kw_only=True):
    """A piece of a segment.

    Attributes:
        requested: bytes asked for, of a block in use; None where the snapshot does not tell.
        state: in use, given back but waited for by a stream, or free.
    """

    size: int
    state: Literal["allocated", "awaiting", "free"]
    requested: int | None = None


class Hole(NamedTuple):
    """A free block: its size, the largest piece kept when the cache is emptied, and what goes."""

    size: int
    kept: int
    returned: int


class Segment(Value, frozen=True, kw_only=True):
    """Memory that an allocator took from the device in one piece.

    Attributes:
        address: where it begins; 0 where the snapshot does not tell.
        pool: (0, 0), or the pair that names a private pool (of CUDA graphs, most often).
        small: whether it serves allocations of up to 1 MiB.
        expandable: whether it grows in place; it is one mapped stretch then.
    """

    device: int
    address: int
    stream: int
    pool: tuple[int, int]
    small: bool
    expandable: bool
    blocks: tuple[Block, ...]

    @property
    def total(self) -> int:
        """Bytes of the whole."""
        return sum(block.size for block in self.blocks)

    @property
    def returnable(self) -> int:
        """Bytes that go back to the device when the cache is emptied.

        All or nothing of a segment; of an expandable one, the whole pages that are free.
        """
        return sum(hole.returned for hole in self.free_blocks())

    def free_blocks(self) -> Iterator[Hole]:
        """Yield each free block, with what becomes of it when the cache is emptied."""
        step = SMALL_SEGMENT if self.small else LARGE_SEGMENT
        at = 0
        for block in self.blocks:
            end = at + block.size
            if block.state == "free":
                first, last = round_up(at, step), end // step * step
                if self.expandable and first < last:  # whole pages go, what lies beside them stays
                    yield Hole(block.size, max(first - at, end - last), last - first)
                elif not self.expandable and len(self.blocks) == 1:
                    yield Hole(block.size, 0, block.size)
                else:
                    yield Hole(block.size, block.size, 0)
            at = end


class OomEvent(Value, frozen=True, kw_only=True):
    """An allocation that failed, as a snapshot's trace tells it.

    Attributes:
        asked_bytes: the block that was asked for.
        device_free_bytes: what the device had free then.
    """

    asked_bytes: int
    device_free_bytes: int


class Snapshot(Value, frozen=True, kw_only=True):
    """What an allocator says of its memory.

    Attributes:
        max_split_size: blocks from this size on are never split; None for no limit.
        oom_events: in the order of the trace, over all devices.
    """

    segments: tuple[Segment, ...]
    max_split_size: int | None = None
    oom_events: tuple[OomEvent, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that hold segments."""
        return tuple(sorted({segment.device for segment in self.segments}))


def is_small(block_bytes: int) -> bool:
    """Whether a block comes from the small pool."""
    return block_bytes <= SMALL_SIZE


def device_bytes(block_bytes: int) -> int:
    """Return what PyTorch asks the device for, for a block that no hole serves.

    >>> device_bytes(512), device_bytes(2**21), device_bytes(10 * 2**20 + 512)
    (2097152, 20971520, 12582912)
    """
    if is_small(block_bytes):
        return SMALL_SEGMENT
    if block_bytes < MIN_LARGE:
        return LARGE_SEGMENT
    return round_up(block_bytes, SMALL_SEGMENT)


_ADDRESS = 2**16  # streams are numbered by some versions, and told by their address by others


def stream_name(stream: int) -> str:
    """Return how a stream is told: by its number, or by its address.

    >>> stream_name(7), stream_name(0x7F0000001000)
    ('7', '0x7f0000001000')
    """
    return str(stream) if stream < _ADDRESS else f"{stream:#x}"
