"""What a caching allocator keeps books in: blocks that know their neighbours, and free lists."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

__all__ = [
    "Block",
    "FreeBlocks",
    "Pool",
    "cut",
    "first_of",
    "free_in_row",
    "inactive_split",
    "merge",
    "room",
]

Pool = tuple[int, int]
"""The pair that names a pool; (0, 0) is the one that everybody draws on, others are of graphs."""


class Block:
    """A piece of a segment, linked to its neighbours in it."""

    __slots__ = (
        *("address", "expandable", "following", "mapped", "owner", "previous", "requested"),
        *("size", "state", "stream", "users"),
    )

    def __init__(self, address: int, size: int, stream: int, owner: FreeBlocks) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.owner = owner
        self.requested = 0
        self.state = "inactive"
        self.mapped = True
        self.expandable = False
        self.users: set[int] = set()
        self.previous: Block | None = None
        self.following: Block | None = None

    @property
    def free(self) -> bool:
        return self.state == "inactive"

    @property
    def split(self) -> bool:
        return self.previous is not None or self.following is not None


class FreeBlocks:
    """The free blocks of one pool and class, the smallest of a stream first."""

    def __init__(self, pool: Pool, small: bool) -> None:
        self.pool = pool
        self.small = small
        self.keys: list[tuple[int, int, int]] = []
        self.blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        insort(self.keys, (block.stream, block.size, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        key = (block.stream, block.size, block.address)
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[block.address]

    def from_size(self, stream: int, size: int) -> Iterator[Block]:
        """Yield the stream's blocks of at least a size, the smallest first."""
        for at in range(bisect_left(self.keys, (stream, size, 0)), len(self.keys)):
            found, _, address = self.keys[at]
            if found != stream:
                return
            yield self.blocks[address]


def cut(block: Block, size: int) -> Block:
    """Cut a block after `size` bytes and return the rest."""
    rest = Block(block.address + size, block.size - size, block.stream, block.owner)
    rest.mapped, rest.expandable, rest.state = block.mapped, block.expandable, block.state
    rest.previous, rest.following = block, block.following
    if rest.following is not None:
        rest.following.previous = rest
    block.following = rest
    block.size = size
    return rest


def merge(block: Block) -> Block:
    """Join a free block, which is in no list, with the neighbours of its kind."""
    previous = block.previous
    if previous is not None and previous.free and previous.mapped == block.mapped:
        if previous.mapped:
            previous.owner.remove(previous)
        block = _join(previous, block)
    following = block.following
    if following is not None and following.free and following.mapped == block.mapped:
        if following.mapped:
            following.owner.remove(following)
        block = _join(block, following)
    return block


def _join(left: Block, right: Block) -> Block:
    left.size += right.size
    left.following = right.following
    if left.following is not None:
        left.following.previous = left
    return left


def room(block: Block) -> int:
    """Bytes of a free block with the unmapped stretch behind it."""
    following = block.following
    return block.size + (following.size if following is not None and not following.mapped else 0)


def free_in_row(block: Block | None, size: int) -> bool:
    """Whether free and unmapped stretches from here on, without a break, hold the size."""
    total = 0
    while block is not None and block.free and total < size:
        total += block.size
        block = block.following
    return total >= size


def first_of(block: Block) -> Block:
    """Return the first block of the segment that a block is a piece of."""
    while block.previous is not None:
        block = block.previous
    return block


def inactive_split(block: Block | None) -> int:
    """Bytes of a free piece of a split segment; PyTorch counts none in expandable ones."""
    if block is None or not (block.free and block.split) or block.expandable:
        return 0
    return block.size
