"""A device that is none: PyTorch's allocation rules without a byte of memory, for --dry-run."""

from __future__ import annotations

from kvcalc.core.dtypes import element_bytes
from kvcalc.measure.allocator import SyntheticAllocator
from kvcalc.measure.probe.device import Contiguous, Decoded, DeviceFacts, Paged, Reading
from kvcalc.measure.probe.layout import Attention

__all__ = ["SyntheticDevice"]

_CONTEXT = 512 * 2**20  # a CUDA context with its modules; 300 to 600 MB on real ones
_ID = 4  # bytes of a block id


class SyntheticDevice:
    """A card of some memory, whose allocations are counted and not made.

    Its decode step takes what every paged kernel takes (block tables and the output) and no
    workspace of its own, which differs by kernel.

    Args:
        total_bytes: memory of the card.
        name: what to call it.
    """

    def __init__(self, total_bytes: int, name: str) -> None:
        self._allocator = SyntheticAllocator(
            total_bytes, other_bytes=min(_CONTEXT, total_bytes // 8)
        )
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
        free, total = allocator.mem_get_info()
        return Reading(
            storage=sum(self._sizes.values()),
            requested=allocator.stats()["requested_bytes.all.current"],
            allocated=allocator.allocated_bytes,
            reserved=allocator.reserved_bytes,
            peak=max(self._base_peak, allocator.allocated_bytes),
            process=total - free,
            used=total - free,
            free=free,
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
