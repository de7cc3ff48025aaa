"""The graph of models with selective scans (Mamba-2) and short convolutions.

llama.cpp b11434 src/models/mamba-base.cpp (build_mamba2_layer), mamba.cpp, granite-hybrid.cpp,
nemotron-h.cpp, lfm2.cpp.
"""

from __future__ import annotations

from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph_shapes import Conv, Family, LayerShape, Scan, Shape, Step
from kvcalc.engines.llamacpp.graph_states import StateDecoder

__all__ = ["scan_decoder"]


def scan_decoder(
    family: Family, shape: Shape, step: Step, sequences: int, *, single: bool
) -> Graph:
    """Return the graph of a step; `single`: a layer is a mixer, attention or an MLP, not two."""
    decoder = _SingleDecoder if single else _ScanDecoder
    return decoder(family, shape, step, sequences).build()


class _ScanDecoder(StateDecoder):
    def attention(self, layer: LayerShape, x: Tensor) -> Tensor:
        if isinstance(layer.mixer, Scan):
            return self.scan(layer.mixer, x)
        if isinstance(layer.mixer, Conv):
            return self.short(layer.mixer, x)
        return super().attention(layer, x)

    def scan(self, d: Scan, x: Tensor) -> Tensor:
        g, own, seqs = self.graph, self.own, self.sequences
        inner, extra = d.heads * d.head, d.groups * d.state
        channels = inner + 2 * extra
        size = d.state * inner
        before = g.reshape(self.state((d.kernel - 1) * channels), d.kernel - 1, channels, seqs)
        wide = 2 * inner + 2 * extra + d.heads
        joined = g.reshape(g.project(wide, x), wide, own, seqs)
        by_head = (d.head, d.heads, own, seqs)
        z = g.view(joined, by_head, (4 * d.head, *joined.nb[1:3]))
        fresh = self.by_channel(g.view(joined, (channels, own, seqs), joined.nb[1:3]))
        past = g.make("CONCAT", (d.kernel - 1 + own, channels, seqs), before, fresh)
        for _ in range(min(own, d.kept)):
            self.keep(g.view(past, (d.kernel - 1, channels, seqs), past.nb[1:3]))
        mixed = g.like("UNARY", g.make("SSM_CONV", (channels, own, seqs), past))
        values = g.view(mixed, by_head, (4 * d.head, *mixed.nb[1:3]))
        by_group = (d.state, d.groups, own, seqs)
        b = g.view(mixed, by_group, (4 * d.state, *mixed.nb[1:3]))
        c = g.view(mixed, by_group, (4 * d.state, *mixed.nb[1:3]))
        dt = g.view(joined, (d.heads, own, seqs), joined.nb[1:3])
        dt = g.like("ADD", g.make("CONT", dt.ne, dt))
        main = g.view(self.states, (seqs,))
        rows = inner * own * seqs
        found = g.make("SSM_SCAN", (rows + d.kept * size * seqs,), values, dt, b, c, main)
        g.expand(found)
        tail = g.view(self.states, (seqs - 1,))
        others = g.make("GET_ROWS", (size, seqs - 1), tail)
        self.keep(g.view(others, (size, 0)))
        self.keep(g.view(found, (size, seqs, min(own, d.kept)), (4 * size, 4 * size * seqs)))
        y = g.view(found, by_head)
        y = g.like("ADD", y, g.like("MUL", values))
        y = g.like("GLU", g.make("CONT", z.ne, z), y)
        if self.family.scan_norm:
            y = self.norm(g.reshape(y, inner // d.groups, d.groups, own, seqs))
        return g.project(self.shape.hidden, g.reshape(y, inner, own * seqs))

    def short(self, d: Conv, x: Tensor) -> Tensor:
        g, own, seqs = self.graph, self.own, self.sequences
        parts = g.project(3 * d.channels, g.reshape(x, x.ne[0], own, seqs))
        part = (d.channels, own, seqs)
        b, c, v = (g.view(parts, part, parts.nb[1:3]) for _ in range(3))
        fresh = self.by_channel(g.like("MUL", b, v))
        past = self.convolved(fresh, d.kernel, 1)
        found = g.like("MUL", c, g.make("SSM_CONV", part, past))
        return g.reshape(g.project(self.shape.hidden, found), self.shape.hidden, own * seqs)


class _SingleDecoder(_ScanDecoder):
    def layer(self, layer: LayerShape, stream: Tensor, *, crops: bool) -> Tensor:
        g = self.graph
        read = self.norm(stream)
        if layer.mixer is not None or layer.heads:
            found = self.attention(layer, read)
        else:
            found = self.experts(layer, read) if layer.experts else self.mlp(layer, read)
        if crops:
            found, stream = g.rows(found, self.out_ids), g.rows(stream, self.out_ids)
        return g.like("ADD", found, stream)
