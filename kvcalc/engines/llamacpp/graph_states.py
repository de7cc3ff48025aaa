"""The graph of models whose layers keep states: what they all do with them.

llama.cpp b11434 src/llama-graph.cpp (build_rs): the states of the step's sequences are gathered,
and the new ones are copied back into the cache.
"""

from __future__ import annotations

from kvcalc.engines.llamacpp.ggml import Tensor
from kvcalc.engines.llamacpp.graph import Decoder
from kvcalc.engines.llamacpp.graph_shapes import Family, Shape, Step

__all__ = ["StateDecoder"]


class StateDecoder(Decoder):
    """Builds graphs with states, one a sequence."""

    def __init__(self, family: Family, shape: Shape, step: Step, sequences: int) -> None:
        super().__init__(family, shape, step)
        self.sequences = sequences
        self.own = step.tokens // sequences
        self.states = self.graph.entry("i32", sequences)

    def _turn(self, heads: list[int], *, grows: bool) -> Tensor | None:
        """Return what turns a packed cache: nothing beside states, where there are windows.

        build_inp_mem_hybrid_iswa gives its two caches none.
        """
        if any(layer.windowed for layer in self.shape.layers):
            return None
        return super()._turn(heads, grows=grows)

    def state(self, width: int) -> Tensor:
        """Return the states of the step's sequences, gathered from the cache (build_rs)."""
        g = self.graph
        rows = g.make("GET_ROWS", (width, self.sequences), self.states)
        found = g.view(rows, (width, self.sequences))
        g.expand(found)
        self.keep(g.view(rows, (width, 0)))
        return found

    def keep(self, values: Tensor) -> None:
        """Copy values into the cache."""
        into = self.graph.cache()
        self.graph.expand(Tensor("CPY", "f32", values.ne, (values, into), base=into))

    def convolved(self, fresh: Tensor, kernel: int, kept: int) -> Tensor:
        """Return tokens, by channel, behind those that the convolution still remembers."""
        g, past, channels = self.graph, kernel - 1, fresh.ne[1]
        before = g.reshape(self.state(past * channels), past, channels, self.sequences)
        ne = (past + self.own, channels, self.sequences)
        found = g.make("CONCAT", ne, before, fresh)
        for _ in range(kept):
            self.keep(g.view(found, (past, channels, self.sequences), found.nb[1:3]))
        return found

    def by_channel(self, x: Tensor) -> Tensor:
        """Return a tensor of rows of tokens turned, so that tokens lie side by side."""
        return self.graph.permute(x, 1, 0, 2, 3)
