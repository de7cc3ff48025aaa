"""The graph of models with gated delta nets.

llama.cpp b11434 src/models/qwen35.cpp, qwen3next.cpp and delta-net-base.cpp (build_conv_state,
build_recurrent_attn).
"""

from __future__ import annotations

from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph_shapes import Delta, Family, LayerShape, Shape, Step
from kvcalc.engines.llamacpp.graph_states import StateDecoder

__all__ = ["delta_decoder"]


def delta_decoder(
    family: Family, shape: Shape, step: Step, sequences: int, *, joined: bool, scored: bool
) -> Graph:
    """Return the graph of a step.

    Args:
        family: how the architecture differs.
        shape: the model's widths.
        step: the step.
        sequences: at once; each has a state.
        joined: alpha and beta come from one projection, and keys are repeated for every value
            head (Qwen3-Next).
        scored: a second output beside the logits, which models from key-values alone have.
    """
    return _DeltaDecoder(family, shape, step, sequences, joined=joined, scored=scored).build()


class _DeltaDecoder(StateDecoder):
    def __init__(
        self,
        family: Family,
        shape: Shape,
        step: Step,
        sequences: int,
        *,
        joined: bool,
        scored: bool,
    ) -> None:
        super().__init__(family, shape, step, sequences)
        self.joined, self.scored = joined, scored

    def beside(self, found: Tensor) -> None:
        if self.scored:
            scores = self.graph.project(self.shape.hidden, found)
            scores.output = True
            self.graph.expand(scores)

    def attention(self, layer: LayerShape, x: Tensor) -> Tensor:
        self.graph.expand(x)
        if isinstance(layer.mixer, Delta):
            return self.mixer(layer.mixer, x)
        g, tokens = self.graph, self.step.tokens
        heads, width = layer.heads, layer.head_k
        full = g.project(2 * heads * width, x)
        k = g.reshape(g.project(layer.kv_heads * width, x), width, layer.kv_heads, tokens)
        v = g.project(layer.kv_heads * layer.head_v, x)
        v = g.reshape(v, layer.head_v, layer.kv_heads, tokens)
        steps = (8 * width, 8 * width * heads)
        q = self.norm(g.view(full, (width, heads, tokens), steps))
        gate = g.make("CONT", (width * heads, tokens), g.view(full, (width, heads, tokens), steps))
        q = g.like("ROPE", q, self.positions)
        k = g.like("ROPE", self.norm(k), self.positions)
        found = self.look(layer, q, k, v)
        found = g.like("MUL", found, g.like("UNARY", gate))
        return g.project(self.shape.hidden, found)

    def mixer(self, d: Delta, x: Tensor) -> Tensor:
        g, seqs = self.graph, self.sequences
        own = self.own
        inner, keys = d.v_heads * d.head_v, d.k_heads * d.head_k
        channels = inner + 2 * keys
        fresh = self.by_channel(g.reshape(g.project(channels, x), channels, own, seqs))
        convolved = self.convolved(fresh, d.kernel, d.kept)
        state = self.state(d.head_v * d.head_k * d.v_heads)
        mixed = g.like("UNARY", g.make("SSM_CONV", (channels, own, seqs), convolved))
        row = 4 * channels
        by_key = (d.head_k, d.k_heads, own, seqs)
        by_value = (d.head_v, d.v_heads, own, seqs)
        q = self.key(d, g.view(mixed, by_key, (4 * d.head_k, row, row * own)))
        k = self.key(d, g.view(mixed, by_key, (4 * d.head_k, row, row * own)))
        v = g.view(mixed, by_value, (4 * d.head_v, row, row * own))
        gate, beta = self.gates(d, x)
        live = g.reshape(state, d.head_k, d.head_v, d.v_heads, seqs)
        rows = own * seqs + d.head_v * seqs * d.kept
        found = g.make("GATED_DELTA_NET", (inner, rows), q, k, v, gate, beta, live)
        if d.kept == 1:
            self.keep(g.view(found, (d.head_k, d.head_v, d.v_heads, seqs)))
        else:
            self.keep(g.view(found, (d.head_k * d.head_v * d.v_heads, seqs, min(own, d.kept))))
        normed = self.norm(g.view(found, by_value, (4 * d.head_v, 4 * inner, 4 * inner * own)))
        z = g.reshape(g.project(inner, x), *by_value)
        joined = g.reshape(g.like("MUL", normed, g.like("UNARY", z)), inner, own, seqs)
        return g.reshape(g.project(self.shape.hidden, joined), self.shape.hidden, own * seqs)

    def key(self, d: Delta, part: Tensor) -> Tensor:
        """Return queries or keys made unit vectors, once for every value head if need be."""
        g = self.graph
        found = g.like("SCALE", g.like("RMS_NORM", part))
        if not self.joined or d.k_heads == d.v_heads:
            return found
        own, seqs = part.ne[2], part.ne[3]
        apart = g.reshape(found, d.head_k, 1, d.k_heads, own * seqs)
        times = d.v_heads // d.k_heads
        many = g.make("REPEAT", (d.head_k, times, d.k_heads, own * seqs), apart)
        return g.reshape(many, d.head_k, d.v_heads, own, seqs)

    def gates(self, d: Delta, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return how much of the state is kept, and how much is written (alpha and beta)."""
        g, seqs, own = self.graph, self.sequences, self.own
        flat = (1, d.v_heads, own, seqs)
        if self.joined:
            times = d.v_heads // d.k_heads
            both = g.reshape(g.project(2 * d.v_heads, x), 2 * times, d.k_heads, own, seqs)
            half = (times, d.k_heads, own, seqs)
            alpha = g.make("CONT", (d.v_heads, own, seqs), g.view(both, half, both.nb[1:]))
            beta = g.like("UNARY", g.make("CONT", half, g.view(both, half, both.nb[1:])))
            beta = g.reshape(beta, *flat)
        else:
            alpha = g.reshape(g.project(d.v_heads, x), d.v_heads, own, seqs)
            beta = g.like("UNARY", g.reshape(g.project(d.v_heads, x), *flat))
        gate = g.like("MUL", g.like("UNARY", g.like("ADD", alpha)))
        return g.reshape(gate, *flat), beta
