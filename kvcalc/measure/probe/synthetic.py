"""A device without memory for --dry-run: PyTorch's caching allocator, counted and not made.

The rules are few: sizes are multiples of 512 B; up to 1 MiB come from 2 MiB segments, up to 10 MiB
from 20 MiB segments, larger ones from a segment of their own in steps of 2 MiB; a block is split
where enough remains, and freed neighbours merge again; before the allocator gives up it hands back
segments that are free as a whole and tries once more. One stream and the default pool are all that
a probe uses; the model of the tests knows the others, and both agree.

Source of the rules: pytorch `c10/cuda/CUDACachingAllocator.cpp`, as of 2.13.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from kvcalc.allocator.segments import MIN_BLOCK, SMALL_SIZE, device_bytes, is_small
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import InvalidValueError, UnavailableError
from kvcalc.core.units import round_up
from kvcalc.measure.probe.device import Attention, Contiguous, Decoded, DeviceFacts, Paged, Reading

__all__ = ["CachingAllocator", "SyntheticDevice"]

_CONTEXT = 512 * 2**20  # a CUDA context with its modules; 300 to 600 MB on real ones
_ID = 4  # bytes of a block id


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, linked to its neighbours in it."""

    address: int
    size: int
    small: bool
    requested: int = 0
    free: bool = True
    previous: _Block | None = None
    following: _Block | None = None


class CachingAllocator:
    """PyTorch's caching allocator of one device, for one stream.

    Args:
        total_bytes: memory of the device.
        other_bytes: taken by the driver's context and by other processes.
    """

    def __init__(self, total_bytes: int, other_bytes: int = 0) -> None:
        self.total_bytes = total_bytes
        self.other_bytes = other_bytes
        self.reserved_bytes = 0
        self.allocated_bytes = 0
        self.requested_bytes = 0
        self._next = 0
        self._live: dict[int, _Block] = {}
        self._holes: dict[int, _Block] = {}
        self._order: dict[bool, list[tuple[int, int]]] = {True: [], False: []}

    @property
    def free_bytes(self) -> int:
        """Bytes that the device has free."""
        return self.total_bytes - self.other_bytes - self.reserved_bytes

    def alloc(self, size: int) -> int:
        """Allocate and return the address.

        Raises:
            InvalidValueError: a size below 1.
            UnavailableError: no hole, and nothing more from the device; worded as PyTorch's own.
        """
        if size < 1:
            raise InvalidValueError("an allocation is at least 1 byte")
        rounded = round_up(size, MIN_BLOCK)
        block = self._reuse(rounded) or self._grow(rounded)
        if block is None:
            self.empty_cache()
            block = self._grow(rounded)
        if block is None:
            raise UnavailableError(self._out_of_memory(device_bytes(rounded)))
        self._remove(block)
        rest = block.size - rounded
        if rest >= MIN_BLOCK if block.small else rest > SMALL_SIZE:
            self._cut(block, rounded)
        block.free, block.requested = False, size
        self._live[block.address] = block
        self.allocated_bytes += block.size
        self.requested_bytes += size
        return block.address

    def free(self, address: int) -> None:
        """Give a block back and merge it with free neighbours."""
        block = self._live.pop(address)
        self.allocated_bytes -= block.size
        self.requested_bytes -= block.requested
        block.free = True
        if block.previous is not None and block.previous.free:
            self._remove(block.previous)
            block = _join(block.previous, block)
        if block.following is not None and block.following.free:
            self._remove(block.following)
            _join(block, block.following)
        self._add(block)

    def empty_cache(self) -> None:
        """Hand segments that are free as a whole back to the device."""
        for block in list(self._holes.values()):
            if block.previous is None and block.following is None:
                self._remove(block)
                self.reserved_bytes -= block.size

    def _reuse(self, size: int) -> _Block | None:
        """Return the smallest free block of the class that holds the size."""
        order = self._order[is_small(size)]
        at = bisect_left(order, (size, 0))
        return self._holes[order[at][1]] if at < len(order) else None

    def _grow(self, size: int) -> _Block | None:
        total = device_bytes(size)
        if total > self.free_bytes:
            return None
        block = _Block(self._next, total, is_small(size))
        self._next += total
        self.reserved_bytes += total
        self._add(block)
        return block

    def _cut(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.small)
        rest.previous, rest.following = block, block.following
        if rest.following is not None:
            rest.following.previous = rest
        block.following, block.size = rest, size
        self._add(rest)

    def _add(self, block: _Block) -> None:
        insort(self._order[block.small], (block.size, block.address))
        self._holes[block.address] = block

    def _remove(self, block: _Block) -> None:
        order = self._order[block.small]
        del order[bisect_left(order, (block.size, block.address))]
        del self._holes[block.address]

    def _out_of_memory(self, asked: int) -> str:
        return (
            f"CUDA out of memory. Tried to allocate {_size(asked)}. GPU 0 has a total capacity of"
            f" {_size(self.total_bytes)} of which {_size(self.free_bytes)} is free. Including"
            f" non-PyTorch memory, this process has"
            f" {_size(self.reserved_bytes + self.other_bytes)} memory in use. Of the allocated"
            f" memory {_size(self.allocated_bytes)} is allocated by PyTorch, and"
            f" {_size(self.reserved_bytes - self.allocated_bytes)} is reserved by PyTorch but"
            " unallocated."
        )


def _join(left: _Block, right: _Block) -> _Block:
    left.size += right.size
    left.following = right.following
    if left.following is not None:
        left.following.previous = left
    return left


def _size(size: int) -> str:
    """Print bytes as PyTorch does: two decimals of the largest binary unit up to GiB."""
    if size <= 2**10:
        return f"{size} bytes"
    name, unit = next((u for u in (("GiB", 2**30), ("MiB", 2**20)) if size > u[1]), ("KiB", 2**10))
    return f"{size / unit:.2f} {name}"


class SyntheticDevice:
    """A GPU of some memory, whose allocations are counted and not made.

    Its decode step takes what every paged kernel takes (block tables and the output) and no
    workspace of its own, which differs by kernel.
    """

    def __init__(self, total_bytes: int, name: str) -> None:
        self._allocator = CachingAllocator(total_bytes, min(_CONTEXT, total_bytes // 8))
        self._sizes: dict[int, int] = {}
        self._base_peak = 0
        self.facts = DeviceFacts(kind="synthetic", name=name, caching=True)

    def settle(self) -> None:
        """Hand whole free segments back."""
        self._allocator.empty_cache()

    def reset_peak(self) -> None:
        """Watch from what is allocated now."""
        self._base_peak = self._allocator.allocated_bytes

    def read(self) -> Reading:
        """Return the allocator's figures."""
        allocator = self._allocator
        used = allocator.total_bytes - allocator.free_bytes
        return Reading(
            storage=sum(self._sizes.values()),
            requested=allocator.requested_bytes,
            allocated=allocator.allocated_bytes,
            reserved=allocator.reserved_bytes,
            peak=max(self._base_peak, allocator.allocated_bytes),
            process=used,
            used=used,
            free=allocator.free_bytes,
        )

    def allocate(self, size: int) -> int:
        """Allocate and return the address."""
        address = self._allocator.alloc(size)
        self._sizes[address] = size
        return address

    def release(self, handles: tuple[int, ...]) -> None:
        """Free what was allocated."""
        for address in handles:
            self._allocator.free(address)
            del self._sizes[address]

    def decode_paged(self, step: Paged) -> Decoded:
        """Allocate block tables and one output, and free them again."""
        widest = max((len(table) for table in step.tables), default=1)
        tables = len(step.tables) * max(1, widest) * _ID
        return self._step(step.attention, len(step.lengths), tables)

    def decode_contiguous(self, step: Contiguous) -> Decoded:
        """Allocate the lengths and one output, and free them again."""
        return self._step(step.attention, len(step.lengths), len(step.lengths) * _ID)

    def _step(self, attention: Attention, requests: int, index: int) -> Decoded:
        width = attention.num_heads * attention.head_dim * element_bytes(attention.dtype)
        made = [self._allocator.alloc(size) for size in (index, requests * width)]
        self._base_peak = max(self._base_peak, self._allocator.allocated_bytes)
        for address in made:
            self._allocator.free(address)
        return Decoded("none: tables and output alone")
