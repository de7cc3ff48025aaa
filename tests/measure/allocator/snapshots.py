"""The shape of PyTorch's memory snapshots, written from a synthetic allocator's blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.measure.allocator.blocks import Block

__all__ = ["runs", "segment"]


def runs(heads: Mapping[int, Block]) -> Iterator[list[Block]]:
    """Yield the blocks of each segment; of an expandable one, each mapped stretch.

    Args:
        heads: the first block of each segment, by address.
    """
    for _, head in sorted(heads.items()):
        run: list[Block] = []
        block: Block | None = head
        while block is not None:
            if block.mapped:
                run.append(block)
            elif run:
                yield run
                run = []
            block = block.following
        if run:
            yield run


def segment(run: list[Block], device: int) -> dict[str, Any]:
    """Return a segment under the keys that PyTorch gives it."""
    first = run[0]
    active = [b for b in run if not b.free]
    return {
        "device": device,
        "address": first.address,
        "total_size": sum(b.size for b in run),
        "allocated_size": sum(b.size for b in run if b.state == "active_allocated"),
        "active_size": sum(b.size for b in active),
        "requested_size": sum(b.requested for b in active),
        "stream": first.stream,
        "segment_type": "small" if first.owner.small else "large",
        "segment_pool_id": first.owner.pool,
        "is_expandable": first.expandable,
        "frames": [],
        "blocks": [
            {
                "address": b.address,
                "size": b.size,
                "requested_size": b.requested,
                "state": b.state,
                "frames": [],
            }
            for b in run
        ],
    }
