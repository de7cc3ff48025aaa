"""The out-of-memory text of PyTorch 2.2 and later, written from numbers.

The synthetic allocator raises it, so that what reads such texts can be tried on known answers.
"""

from __future__ import annotations

__all__ = ["oom_text", "pytorch_size"]

_KIB = 2**10


def pytorch_size(size: int) -> str:
    """Print bytes as PyTorch does: two decimals of the largest binary unit up to GiB.

    >>> pytorch_size(512), pytorch_size(20 * 2**20), pytorch_size(2**40)
    ('512 bytes', '20.00 MiB', '1024.00 GiB')
    """
    if size <= _KIB:
        return f"{size} bytes"
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", _KIB)):
        if size > unit or unit == _KIB:
            return f"{size / unit:.2f} {name}"
    raise AssertionError("every size has a unit")


def oom_text(
    *,
    asked_bytes: int,
    device: int,
    capacity_bytes: int,
    free_bytes: int,
    process_bytes: int,
    allocated_bytes: int,
    unallocated_bytes: int,
    private_bytes: int = 0,
    allowed_bytes: int | None = None,
) -> str:
    """Word an out-of-memory error as PyTorch does, in one line."""
    size = pytorch_size
    allowed = "" if allowed_bytes is None else f"{size(allowed_bytes)} allowed; "
    private = ""
    if private_bytes:
        private = f"with {size(private_bytes)} allocated in private pools (e.g., CUDA Graphs), "
    return (
        f"CUDA out of memory. Tried to allocate {size(asked_bytes)}. GPU {device} has a total"
        f" capacity of {size(capacity_bytes)} of which {size(free_bytes)} is free. Including"
        f" non-PyTorch memory, this process has {size(process_bytes)} memory in use. {allowed}Of"
        f" the allocated memory {size(allocated_bytes)} is allocated by PyTorch, {private}and"
        f" {size(unallocated_bytes)} is reserved by PyTorch but unallocated."
    )
