"""The memory that ggml's graph allocator needs for a graph, to the byte.

llama.cpp b11434 ggml/src/ggml-alloc.c: inputs first; then node after node takes its parent's place
where the operation allows it, else the smallest free block that is large enough, else the end; what
nobody reads any more is free again. The buffer is as long as the furthest end ever was.
"""

from __future__ import annotations

from collections import Counter

from kvcalc.core.units import cdiv
from kvcalc.engines.llamacpp.ggml import Graph, Tensor

__all__ = ["peak_bytes"]

_ENDLESS = 2**63
_IN_PLACE = frozenset(
    (
        "ADD",
        "CLAMP",
        "DIV",
        "FILL",
        "MUL",
        "RMS_NORM",
        "ROPE",
        "SCALE",
        "SOFT_MAX",
        "SQR",
        "SUB",
        "UNARY",
    )
)
"""ggml_op_can_inplace, of the operations that the graphs here have."""


def peak_bytes(graph: Graph, alignment: int) -> int:
    """Return the bytes of the buffer that a graph is computed in.

    Args:
        graph: the whole graph.
        alignment: bytes that every tensor's size is rounded up to: 32 on a CPU
            (ggml-backend.cpp, TENSOR_ALIGNMENT), 128 with CUDA.
    """
    return _Allocator(alignment).run(graph)


class _Space:
    """Free blocks by address; the last one has no end."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = [(0, _ENDLESS)]
        self.peak = 0

    def take(self, size: int) -> int:
        """Return the address of `size` bytes: of the tightest block, of the later of equals."""
        best, last = -1, len(self.blocks) - 1
        for i in range(last):
            free = self.blocks[i][1]
            if free >= size and (best < 0 or free <= self.blocks[best][1]):
                best = i
        chosen = best if best >= 0 else last
        address, free = self.blocks[chosen]
        if free == size:
            del self.blocks[chosen]
        else:
            self.blocks[chosen] = (address + size, free - size)
        self.peak = max(self.peak, address + size)
        return address

    def give(self, address: int, size: int) -> None:
        """Take bytes back and join them with the free blocks beside them."""
        blocks = self.blocks
        at = 0
        while at < len(blocks) and blocks[at][0] < address:
            at += 1
        before = at > 0 and sum(blocks[at - 1]) == address
        after = at < len(blocks) and address + size == blocks[at][0]
        start = blocks[at - 1][0] if before else address
        end = sum(blocks[at]) if after else address + size
        blocks[at - before : at + after] = [(start, end - start)]


class _Allocator:
    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.space = _Space()
        self.address: dict[int, int] = {}
        self.owned: set[int] = set()
        self.readers: Counter[int] = Counter()
        self.views: Counter[int] = Counter()

    def run(self, graph: Graph) -> int:
        for leaf in graph.leafs:
            self.place(leaf)
        for node in graph.nodes:
            if node.base is not None:
                self.views[id(node.base)] += 1
            self.readers.update(id(parent) for parent in node.src)
        for node in graph.nodes:
            self.place(node)
            for parent in node.src:
                self.read(parent)
        return self.space.peak

    def size(self, tensor: Tensor) -> int:
        return cdiv(tensor.size, self.alignment) * self.alignment

    def place(self, node: Tensor) -> None:
        if node.base is not None or node.outside:
            return
        self.owned.add(id(node))
        if node.op in _IN_PLACE:
            for parent in node.src:
                if self.reuse(node, parent):
                    return
        self.address[id(node)] = self.space.take(self.size(node))

    def reuse(self, node: Tensor, parent: Tensor) -> bool:
        """Whether a node takes the place of a parent that nothing else reads.

        A view is nobody's to give: its memory is not its own.
        """
        if id(parent) not in self.owned or parent.output or parent.layout != node.layout:
            return False
        if self.readers[id(parent)] != 1 or self.views[id(parent)]:
            return False
        self.address[id(node)] = self.address[id(parent)]
        self.owned.discard(id(parent))
        return True

    def read(self, parent: Tensor) -> None:
        """Count a parent as read once more, and free what nobody will read again."""
        self.readers[id(parent)] -= 1
        if self.readers[id(parent)] or self.views[id(parent)]:
            return
        held = parent
        if parent.base is not None:
            held = parent.base
            self.views[id(held)] -= 1
            if self.views[id(held)] or self.readers[id(held)]:
                return
        if id(held) in self.owned and not held.output:
            self.space.give(self.address[id(held)], self.size(held))
            self.owned.discard(id(held))
