"""The figures of PyTorch's caching allocator, under the keys of `torch.cuda.memory_stats()`."""

from __future__ import annotations

__all__ = ["METRICS", "Stats"]

METRICS = (
    *("allocation", "segment", "active", "inactive_split"),
    *("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes"),
    "requested_bytes",
)
"""Counts first, then bytes; each is told for all, for the large pool and for the small one."""


class _Stat:
    """One figure: what it is now, its peak, and what was ever added and taken away."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, by: int) -> None:
        self.current += by
        self.peak = max(self.peak, self.current)
        if by > 0:
            self.allocated += by
        else:
            self.freed -= by


class Stats:
    """All figures of one device.

    Args:
        max_split_size: the allocator's setting, None for no limit.
    """

    def __init__(self, max_split_size: int | None) -> None:
        self.max_split_size = -1 if max_split_size is None else max_split_size
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_device_alloc = 0
        self.num_device_free = 0
        self.num_sync_all_streams = 0
        self._figures = {
            f"{metric}.{pool}": _Stat()
            for metric in METRICS
            for pool in ("all", "large_pool", "small_pool")
        }
        self._oversize = {"oversize_allocations": _Stat(), "oversize_segments": _Stat()}

    def current(self, metric: str) -> int:
        """Return what a figure is now, over both pools."""
        return self._figures[f"{metric}.all"].current

    def taken(self, size: int, requested: int, *, small: bool, oversize: bool) -> None:
        """A block was handed out."""
        for metric, by in (("allocation", 1), ("allocated_bytes", size), ("active", 1),
                           ("active_bytes", size), ("requested_bytes", requested)):  # fmt: skip
            self._change(metric, by, small=small)
        if oversize:
            self._oversize["oversize_allocations"].change(1)

    def freed(self, size: int, *, small: bool, oversize: bool) -> None:
        """A block was given back; it may still wait for a stream."""
        self._change("allocation", -1, small=small)
        self._change("allocated_bytes", -size, small=small)
        if oversize:
            self._oversize["oversize_allocations"].change(-1)

    def idle(self, size: int, requested: int, *, small: bool) -> None:
        """A block that was given back waits for nothing any more."""
        for metric, by in (("active", 1), ("active_bytes", size), ("requested_bytes", requested)):
            self._change(metric, -by, small=small)

    def inactive(self, size: int, count: int, *, small: bool) -> None:
        """The free pieces of split segments changed by so many bytes and pieces."""
        if size:
            self._change("inactive_split_bytes", size, small=small)
        if count:
            self._change("inactive_split", count, small=small)

    def segment(self, size: int, *, small: bool, oversize: bool) -> None:
        """A segment came from the device, or went back to it where the size is negative."""
        one = 1 if size > 0 else -1
        self._change("segment", one, small=small)
        self.mapped(size, small=small)
        if oversize:
            self._oversize["oversize_segments"].change(one)

    def mapped(self, size: int, *, small: bool) -> None:
        """Memory came from the device, or went back; an expandable segment counts as none."""
        self._change("reserved_bytes", size, small=small)
        if size > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1

    def flat(self) -> dict[str, int]:
        """Return every figure, keys sorted."""
        out = {
            name: getattr(self, name)
            for name in ("max_split_size", "num_alloc_retries", "num_device_alloc",
                         "num_device_free", "num_ooms", "num_sync_all_streams")
        }  # fmt: skip
        for name, stat in {**self._figures, **self._oversize}.items():
            for part in _Stat.__slots__:
                out[f"{name}.{part}"] = getattr(stat, part)
        return dict(sorted(out.items()))

    def _change(self, metric: str, by: int, *, small: bool) -> None:
        for pool in ("all", "small_pool" if small else "large_pool"):
            self._figures[f"{metric}.{pool}"].change(by)
