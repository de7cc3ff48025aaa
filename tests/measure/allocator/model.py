"""A caching allocator that allocates nothing: PyTorch's rules, its figures and its snapshots.

The answers are known because the rules are few: sizes are multiples of 512 B; up to 1 MiB come from
2 MiB segments, up to 10 MiB from 20 MiB segments, larger ones from a segment of their own in steps
of 2 MiB; a block is split where enough remains, and freed neighbours merge again; blocks are
reused only by the same stream, pool and class; before the allocator gives up it hands back whole
free segments and tries once more. Tests ask it for
snapshots and hold the allocator of a dry run against it.

Source of the rules: pytorch `c10/cuda/CUDACachingAllocator.cpp`, as of 2.13.
"""

from __future__ import annotations

from typing import Any

from kvcalc.allocator.segments import (
    LARGE_SEGMENT,
    MIN_BLOCK,
    SMALL_SEGMENT,
    SMALL_SIZE,
    device_bytes,
    is_small,
)
from kvcalc.core.errors import InvalidValueError, UnavailableError
from kvcalc.core.lengths import whole_number
from kvcalc.core.units import round_up
from tests.measure.allocator.blocks import (
    Block,
    FreeBlocks,
    Pool,
    cut,
    first_of,
    free_in_row,
    inactive_split,
    merge,
    room,
)
from tests.measure.allocator.oom_text import oom_text
from tests.measure.allocator.snapshots import runs, segment
from tests.measure.allocator.stats import Stats

__all__ = ["SyntheticAllocator", "SyntheticOutOfMemoryError"]


_FIRST_ADDRESS = 0x7F00_0000_0000


class SyntheticOutOfMemoryError(UnavailableError):
    """The synthetic allocator has no room; the message is worded as PyTorch's own."""


class SyntheticAllocator:
    """One device's caching allocator, with no device.

    Args:
        total_bytes: memory of the device.
        other_bytes: taken by the driver's context and by other processes.
        device: number of the device, as snapshots and messages name it.
        max_split_size: blocks from this size on are never split; None for no limit.
        expandable: segments grow in place instead of being allocated apart.
        allowed_bytes: what this process may reserve (a fraction limit); None for no limit.

    Raises:
        InvalidValueError: a size that is no whole number, or more taken than there is.
    """

    def __init__(
        self,
        total_bytes: int = 80 * 2**30,
        *,
        other_bytes: int = 0,
        device: int = 0,
        max_split_size: int | None = None,
        expandable: bool = False,
        allowed_bytes: int | None = None,
    ) -> None:
        for value in (total_bytes, other_bytes, device):
            whole_number(value, "a size", "give whole bytes")
        if not 0 <= other_bytes <= total_bytes or device < 0:
            raise InvalidValueError("more memory is taken than the device has")
        if max_split_size is not None and max_split_size < LARGE_SEGMENT:
            raise InvalidValueError("max_split_size is at least 20 MiB")
        self.total_bytes = total_bytes
        self.other_bytes = other_bytes
        self.device = device
        self.max_split_size = max_split_size
        self.expandable = expandable
        self.allowed_bytes = allowed_bytes
        self._pools: dict[tuple[Pool, bool], FreeBlocks] = {}
        self._heads: dict[int, Block] = {}
        self._live: dict[int, Block] = {}
        self._next = _FIRST_ADDRESS
        self._stats = Stats(max_split_size)

    # ------------------------------------------------------------------ asking

    def alloc(self, size: int, stream: int = 0, pool: Pool = (0, 0)) -> int:
        """Allocate and return the address.

        Args:
            size: bytes asked for.
            stream: the stream that will use the memory.
            pool: a private pool (of a graph), or the default one.

        Raises:
            InvalidValueError: a size below 1.
            SyntheticOutOfMemoryError: no hole, and nothing more from the device.
        """
        whole_number(size, "a size", "give whole bytes")
        if size < 1:
            raise InvalidValueError("an allocation is at least 1 byte")
        rounded = round_up(size, MIN_BLOCK)
        owner = self._owner(pool, is_small(rounded))
        block = (
            self._reuse(owner, rounded, stream)
            or self._grow(owner, rounded, stream)
            or self._retry(owner, rounded, stream)
        )
        if block is None:
            self._stats.num_ooms += 1
            raise SyntheticOutOfMemoryError(self._text(device_bytes(rounded)))
        self._take(block, rounded, size)
        return block.address

    def free(self, address: int) -> None:
        """Give a block back; where another stream still uses it, it waits for `synchronize`.

        Raises:
            InvalidValueError: nothing is allocated there.
        """
        block = self._live.pop(address, None)
        if block is None:
            raise InvalidValueError(f"nothing is allocated at {address:#x}")
        oversize = self._oversize(block.size)
        self._stats.freed(block.size, small=block.owner.small, oversize=oversize)
        if block.users:
            block.state = "active_awaiting_free"
            self._live[~address] = block  # no longer found by its address
        else:
            self._release(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Say that another stream uses the block too.

        Raises:
            InvalidValueError: nothing is allocated there.
        """
        block = self._live.get(address)
        if block is None:
            raise InvalidValueError(f"nothing is allocated at {address:#x}")
        if stream != block.stream:
            block.users.add(stream)

    def synchronize(self) -> None:
        """Let all streams finish: blocks that waited become free."""
        for key in [key for key in self._live if key < 0]:
            block = self._live.pop(key)
            block.users.clear()
            self._release(block)

    def empty_cache(self) -> None:
        """Hand whole free segments (or whole free pieces of expandable ones) back to the device."""
        self.synchronize()
        self._stats.num_sync_all_streams += 1
        for (pool, _), owner in self._pools.items():
            if pool == (0, 0):  # a private pool keeps its segments as long as it lives
                for block in list(owner.blocks.values()):
                    if block.expandable:
                        self._unmap(block)
                    elif not block.split:
                        self._return(block)

    def mem_get_info(self) -> tuple[int, int]:
        """Return what the device has free, and what it has."""
        return self.total_bytes - self.other_bytes - self.reserved_bytes, self.total_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes taken from the device."""
        return self._stats.current("reserved_bytes")

    @property
    def allocated_bytes(self) -> int:
        """Bytes handed out, rounded as blocks are."""
        return self._stats.current("allocated_bytes")

    def stats(self) -> dict[str, int]:
        """Return the figures under the keys of `torch.cuda.memory_stats()`."""
        return self._stats.flat()

    def snapshot(self) -> dict[str, Any]:
        """Return the state in the shape of `torch.cuda.memory._snapshot()`."""
        settings = {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1 if self.max_split_size is None else self.max_split_size,
            "expandable_segments": self.expandable,
        }
        return {
            "segments": [segment(run, self.device) for run in runs(self._heads)],
            "device_traces": [[] for _ in range(self.device + 1)],
            "allocator_settings": settings,
            "external_annotations": [],
        }

    # ------------------------------------------------------------------ rules

    def _owner(self, pool: Pool, small: bool) -> FreeBlocks:
        return self._pools.setdefault((pool, small), FreeBlocks(pool, small))

    def _reuse(self, owner: FreeBlocks, size: int, stream: int) -> Block | None:
        """Find the smallest free block that serves; oversize ones only for requests near them.

        One that can still grow counts as large as it can become.
        """
        limit = self.max_split_size
        block = None
        for other in owner.from_size(stream, size):
            if block is not None and room(other) >= room(block):
                break
            block = other
            if not self.expandable:
                break
        if block is None or limit is None:
            return block
        if size < limit <= block.size:
            return None
        if size >= limit and block.size >= size + LARGE_SEGMENT:
            return None
        return block

    def _grow(self, owner: FreeBlocks, size: int, stream: int) -> Block | None:
        """Take a new segment from the device, or more of an expandable one."""
        total = device_bytes(size)
        if self.allowed_bytes is not None and self.reserved_bytes + total > self.allowed_bytes:
            return None
        if self.expandable:
            return self._expand(owner, size, stream)
        if total > self.mem_get_info()[0]:
            return None
        block = Block(self._next, total, stream, owner)
        self._next += round_up(total, SMALL_SEGMENT)
        self._heads[block.address] = block
        owner.add(block)
        self._stats.segment(total, small=owner.small, oversize=self._oversize(total))
        return block

    def _retry(self, owner: FreeBlocks, size: int, stream: int) -> Block | None:
        """Hand back what must be, then what can be, and ask the device once more after each."""
        limited = self.max_split_size is not None and not self.expandable  # those go by pages
        if limited and self._return_oversize(owner, size, stream):
            block = self._grow(owner, size, stream)
            if block is not None:
                return block
        self.empty_cache()
        self._stats.num_alloc_retries += 1
        return self._grow(owner, size, stream)

    def _return_oversize(self, owner: FreeBlocks, size: int, stream: int) -> bool:
        """Hand back one free oversize block of the size, else the largest until they add up."""
        least = max(size, self.max_split_size or 0)
        one = next(owner.from_size(stream, least), None)
        if one is not None:
            self._return(one)
            return True
        returned = 0
        for block in reversed(list(owner.from_size(stream, self.max_split_size or 0))):
            if returned >= least:
                break
            returned += block.size
            self._return(block)
        return returned >= least

    def _oversize(self, size: int) -> bool:
        return self.max_split_size is not None and size >= self.max_split_size

    def _splits(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.owner.small or self.expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL_SIZE and not self._oversize(size)

    def _take(self, block: Block, size: int, requested: int) -> None:
        block.owner.remove(block)
        before = inactive_split(block)
        rest = None
        if self._splits(block, size):
            rest = cut(block, size)
            block.owner.add(rest)
        after = inactive_split(rest)
        block.state = "active_allocated"
        block.requested = requested
        self._live[block.address] = block
        small = block.owner.small
        self._stats.inactive(after - before, bool(after) - bool(before), small=small)
        self._stats.taken(block.size, requested, small=small, oversize=self._oversize(block.size))

    def _release(self, block: Block) -> None:
        """Make a block free and merge it with free neighbours."""
        small, size, requested = block.owner.small, block.size, block.requested
        block.state = "inactive"
        before = count = 0
        for side in (block.previous, block.following):
            if side is not None and side.free and side.mapped:
                before += inactive_split(side)
                count += bool(inactive_split(side))
        block = merge(block)
        block.owner.add(block)
        after = inactive_split(block)
        self._stats.inactive(after - before, bool(after) - count, small=small)
        self._stats.idle(size, requested, small=small)

    def _return(self, block: Block) -> None:
        """Hand a whole free segment back to the device."""
        block.owner.remove(block)
        del self._heads[block.address]
        oversize = self._oversize(block.size)
        self._stats.segment(-block.size, small=block.owner.small, oversize=oversize)

    # ------------------------------------------------------------------ expandable segments

    def _expand(self, owner: FreeBlocks, size: int, stream: int) -> Block | None:
        """Map more of a range, beginning in a free block where one lies before what is unmapped."""
        block = self._place(owner, size, stream)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            following = block.following
            missing = size - block.size
            mapped = following and self._map(following, min(missing, following.size))
            if mapped is None:
                return None
            block = mapped
        return block

    def _map(self, place: Block, size: int) -> Block | None:
        """Map the beginning of an unmapped stretch; return the free block that it is part of."""
        length = round_up(size, SMALL_SEGMENT if place.owner.small else LARGE_SEGMENT)
        if length > self.mem_get_info()[0]:
            return None
        if length < place.size:
            cut(place, length)
        place.mapped = True
        block = merge(place)
        block.owner.add(block)
        self._stats.mapped(length, small=block.owner.small)
        return block

    def _place(self, owner: FreeBlocks, size: int, stream: int) -> Block:
        """Return where free and unmapped stretches in a row are long enough, else a new range."""
        for head in self._heads.values():
            block: Block | None = head
            while block is not None and block.owner is owner and block.stream == stream:
                if not block.mapped:
                    before = block.previous
                    start = before if before is not None and before.free else block
                    if free_in_row(start, size):
                        return start
                block = block.following
        length = round_up(self.total_bytes + self.total_bytes // 8 + size, LARGE_SEGMENT)
        start = Block(round_up(self._next, LARGE_SEGMENT), length, stream, owner)
        start.expandable, start.mapped = True, False
        self._heads[start.address] = start
        self._next = start.address + length
        return start

    def _unmap(self, block: Block) -> None:
        """Hand back the whole pieces that a free block of an expandable segment covers."""
        step = SMALL_SEGMENT if block.owner.small else LARGE_SEGMENT
        base = first_of(block).address
        start = base + round_up(block.address - base, step)
        end = base + (block.address + block.size - base) // step * step
        if start >= end:
            return
        block.owner.remove(block)
        if block.address + block.size > end:
            block.owner.add(cut(block, end - block.address))
        if start > block.address:
            rest = cut(block, start - block.address)
            block.owner.add(block)
            block = rest
        block.mapped = False
        self._stats.mapped(start - end, small=block.owner.small)
        if not merge(block).split:
            del self._heads[base]

    def _text(self, asked: int) -> str:
        private = sum(
            block.size
            for (pool, _), owner in self._pools.items()
            if pool != (0, 0)
            for block in owner.blocks.values()
        )  # what is free in them counts as allocated, since nobody else may have it
        return oom_text(
            asked_bytes=asked,
            device=self.device,
            capacity_bytes=self.total_bytes,
            free_bytes=self.mem_get_info()[0],
            process_bytes=self.reserved_bytes + self.other_bytes,
            allocated_bytes=self.allocated_bytes + private,
            unallocated_bytes=self.reserved_bytes - self.allocated_bytes - private,
            private_bytes=private,
            allowed_bytes=self.allowed_bytes,
        )
