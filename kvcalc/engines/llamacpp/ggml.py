"""Tensors and graphs as ggml orders them, as far as the memory of a graph depends on it.

A graph here has what llama.cpp computes and the inputs it is given; weights and caches lie in
buffers of their own, so that they are left out. llama.cpp b11434: ggml/src/ggml.c (the shapes of
results, ggml_visit_parents_graph).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

__all__ = ["ELEMENT_BYTES", "Element", "Graph", "Tensor"]

Element = Literal["f32", "f16", "i32", "i64"]

ELEMENT_BYTES: dict[Element, int] = {"f32": 4, "f16": 2, "i32": 4, "i64": 8}


class Tensor:
    """A tensor of a graph.

    Attributes:
        op: ggml's operation; `NONE` for an input.
        element: type of the elements.
        ne: elements in each of the four dimensions.
        nb: bytes from one to the next in each dimension.
        src: what it is computed from, in ggml's order, weights and caches left out.
        base: what it is a view of; itself never a view.
        entry: an input, whose memory is taken before all others.
        output: kept until the graph is done.
        outside: it lies in another buffer (a cache).
    """

    __slots__ = ("base", "element", "entry", "nb", "ne", "op", "output", "outside", "src")

    def __init__(
        self,
        op: str,
        element: Element,
        ne: Sequence[int],
        src: Sequence[Tensor] = (),
        *,
        nb: Sequence[int] | None = None,
        base: Tensor | None = None,
        entry: bool = False,
        outside: bool = False,
    ) -> None:
        self.op = op
        self.element = element
        self.ne = (*ne, *(1,) * (4 - len(ne)))
        self.nb = _packed(element, self.ne) if nb is None else tuple(nb)
        self.src = tuple(src)
        self.base = base
        self.entry = entry
        self.output = False
        self.outside = outside

    @property
    def size(self) -> int:
        """Bytes that it takes, if it is no view."""
        return prod(self.ne) * ELEMENT_BYTES[self.element]

    @property
    def layout(self) -> tuple[Element, tuple[int, ...], tuple[int, ...]]:
        """What must be equal for one tensor to take the place of another."""
        return self.element, self.ne, self.nb

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie without gaps in their order."""
        return self.nb == _packed(self.element, self.ne)


def _packed(element: Element, ne: Sequence[int]) -> tuple[int, ...]:
    step = ELEMENT_BYTES[element]
    found = []
    for n in ne:
        found.append(step)
        step *= n
    return tuple(found)


class Graph:
    """A graph being built: nodes and leaves in the order in which ggml meets them."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self._seen: set[int] = set()

    def expand(self, *tensors: Tensor) -> None:
        """Add tensors and all they are computed from, parents first (ggml_build_forward_expand)."""
        for tensor in tensors:
            self._visit(tensor)

    def _visit(self, tensor: Tensor) -> None:
        if id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        for parent in tensor.src:
            self._visit(parent)
        (self.leafs if tensor.op == "NONE" else self.nodes).append(tensor)

    def entry(self, element: Element, *ne: int) -> Tensor:
        """Return an input."""
        return Tensor("NONE", element, ne, entry=True)

    def cache(self) -> Tensor:
        """Return what stands for a cache."""
        return Tensor("NONE", "f32", (0,), outside=True)

    def like(self, op: str, first: Tensor, *others: Tensor) -> Tensor:
        """Return the result of an operation whose shape is its first parent's."""
        return Tensor(op, first.element, first.ne, (first, *others))

    def make(self, op: str, ne: Sequence[int], *src: Tensor, element: Element = "f32") -> Tensor:
        """Return the result of an operation with a shape of its own."""
        return Tensor(op, element, ne, src)

    def project(self, rows: int, b: Tensor) -> Tensor:
        """Return a weight of `rows` rows times b."""
        return Tensor("MUL_MAT", "f32", (rows, *b.ne[1:]), (b,))

    def rows(self, of: Tensor, ids: Tensor) -> Tensor:
        """Return the rows of a tensor that ids name (ggml_get_rows)."""
        return Tensor("GET_ROWS", "f32", (of.ne[0], *ids.ne[:3]), (of, ids))

    def view(self, of: Tensor, ne: Sequence[int], nb: Sequence[int] | None = None) -> Tensor:
        """Return a view; `nb` are the bytes between neighbours in dimensions 1 to 3."""
        shape = (*ne, *(1,) * (4 - len(ne)))
        packed = list(_packed(of.element, shape))
        for i, step in enumerate(nb or (), 1):
            packed[i] = step
            for j in range(i + 1, 4):
                packed[j] = packed[j - 1] * shape[j - 1]
        return Tensor("VIEW", of.element, shape, (of,), nb=packed, base=of.base or of)

    def reshape(self, of: Tensor, *ne: int) -> Tensor:
        """Return the same elements in another shape."""
        return Tensor("RESHAPE", of.element, ne, (of,), base=of.base or of)

    def permute(self, of: Tensor, *axes: int) -> Tensor:
        """Return a view whose dimension axes[i] is the i-th of before."""
        ne, nb = [0] * 4, [0] * 4
        for i, axis in enumerate(axes):
            ne[axis], nb[axis] = of.ne[i], of.nb[i]
        return Tensor("PERMUTE", of.element, ne, (of,), nb=nb, base=of.base or of)

    def store(self, values: Tensor, ids: Tensor, into: Tensor) -> Tensor:
        """Return `into` with rows written (ggml_set_rows): a view of it."""
        return Tensor(
            "SET_ROWS", into.element, into.ne, (values, ids, into), base=into.base or into
        )
