"""The graph of latent attention (MLA): llama.cpp b11434 src/models/deepseek2.cpp."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.engines.llamacpp.ggml import Element, Graph, Tensor
from kvcalc.engines.llamacpp.graph import Decoder
from kvcalc.engines.llamacpp.graph_shapes import Family, LayerShape, Shape, Step

__all__ = ["Latent", "StateDecoder", "latent_decoder"]


class Latent(NamedTuple):
    """The widths of latent attention.

    Attributes:
        q_rank: of the queries' own latent; 0 where they have none.
        kv_rank: of the latent that is cached.
        rope: of the part of a head that is turned; `plain` of the other part.
        head_v: of a head's values once they are made from the latent.
        absorbed: the latent is cached; else K and V are made from it and cached whole, as files of
            before May 2025 make llama.cpp do.
    """

    q_rank: int
    kv_rank: int
    rope: int
    plain: int
    head_v: int
    absorbed: bool = True


def latent_decoder(family: Family, shape: Shape, step: Step, latent: Latent, k_type: str) -> Graph:
    """Return the graph of a step; `k_type` is the cache type as ggml names it."""
    return _LatentDecoder(family, shape, step, latent, k_type).build()


class _LatentDecoder(Decoder):
    def __init__(
        self, family: Family, shape: Shape, step: Step, latent: Latent, k_type: str
    ) -> None:
        super().__init__(family, shape, step)
        self.latent, self.k_type = latent, k_type

    def attention(self, layer: LayerShape, x: Tensor) -> Tensor:
        g, la, tokens = self.graph, self.latent, self.step.tokens
        heads, width = layer.heads, la.plain + la.rope
        low = self.norm(g.project(la.q_rank, x)) if la.q_rank else x
        q = g.reshape(g.project(heads * width, low), width, heads, tokens)
        both = g.project(la.kv_rank + la.rope, x)
        row = both.nb[1]
        compressed = self.norm(g.view(both, (la.kv_rank, tokens), (row,)))
        turned = g.like("ROPE", g.view(both, (la.rope, 1, tokens), (row, row)), self.positions)
        if not la.absorbed:
            return self.made(layer, q, compressed, turned)
        plain = g.permute(g.view(q, (la.plain, heads, tokens), q.nb[1:3]), 0, 2, 1, 3)
        q_turned = g.like("ROPE", g.view(q, (la.rope, heads, tokens), q.nb[1:3]), self.positions)
        absorbed = g.permute(g.make("MUL_MAT", (la.kv_rank, tokens, heads), plain), 0, 2, 1, 3)
        joined = la.kv_rank + la.rope
        query = g.make("CONCAT", (joined, heads, tokens), absorbed, q_turned)
        v = g.reshape(compressed, la.kv_rank, 1, tokens)
        k = g.make("CONCAT", (joined, 1, tokens), v, turned)
        g.expand(query, v, k)
        given = self.inputs[layer.windowed]
        flat = g.view(k, (joined, tokens), (k.nb[2],))
        g.expand(g.store(flat, given.k_ids, g.cache()))
        found = self.read(layer, query, given.mask)
        g.expand(found)
        return g.project(self.shape.hidden, found)

    def made(self, layer: LayerShape, q: Tensor, compressed: Tensor, turned: Tensor) -> Tensor:
        """Return attention over K and V that are made from the latent and cached whole."""
        g, la, tokens, heads = self.graph, self.latent, self.step.tokens, layer.heads
        part = la.plain + la.head_v
        kv = g.project(heads * part, compressed)
        steps = (4 * part, 4 * part * heads)
        plain = g.view(kv, (la.plain, heads, tokens), steps)
        v = g.view(kv, (la.head_v, heads, tokens), steps)
        v = g.make("CONT", v.ne, v)
        query = g.like("ROPE", q, self.positions)
        spread = g.make("REPEAT", (la.rope, heads, tokens), turned)
        k = g.make("CONCAT", (la.plain + la.rope, heads, tokens), plain, spread)
        return self.attend(layer, query, k, v)

    def read(self, layer: LayerShape, q: Tensor, mask: Tensor) -> Tensor:
        """Return what the queries read: latents, then made into values (build_attn_mha, v_mla)."""
        g, step, la = self.graph, self.step, self.latent
        own, heads = step.tokens // step.streams, layer.heads
        q = g.view(q, (*q.ne[:2], own, step.streams), (q.nb[1], q.nb[2], q.nb[2] * own))
        q = g.permute(q, 0, 2, 1, 3)
        cells = mask.ne[0]
        if step.flash:
            read = [q]
            if step.k_cast:
                shape = (la.kv_rank + la.rope, cells, 1, step.streams)
                read.append(g.make("CPY", shape, element="f16"))
                read.append(g.make("CPY", (la.kv_rank, *shape[1:]), element="f16"))
            ne = (la.kv_rank, heads, own, step.streams)
            latents = g.make("FLASH_ATTN_EXT", ne, *read, mask)
            values = g.make(
                "MUL_MAT", (la.head_v, own, heads, step.streams), g.permute(latents, 0, 2, 1, 3)
            )
            back = g.permute(values, 0, 2, 1, 3)
            return g.reshape(g.make("CONT", back.ne, back), la.head_v * heads, step.tokens)
        weights = g.make("MUL_MAT", (cells, own, heads, step.streams), q)
        weights = g.like("SOFT_MAX", weights, mask)
        element: Element = "f32" if self.k_type == "f32" else "f16"
        turned = g.make("CONT", (cells, la.kv_rank, 1, step.streams), element=element)
        latents = g.make("MUL_MAT", (la.kv_rank, own, heads, step.streams), turned, weights)
        values = g.make("MUL_MAT", (la.head_v, own, heads, step.streams), latents)
        return g.make("CONT", (la.head_v * heads, step.tokens), g.permute(values, 0, 2, 1, 3))


# The graph of models whose layers keep states: what they all do with them.
#
# llama.cpp b11434 src/llama-graph.cpp (build_rs): the states of the step's sequences are gathered,
# and the new ones are copied back into the cache.


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
