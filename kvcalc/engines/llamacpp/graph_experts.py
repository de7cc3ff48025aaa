"""The graph of routed experts: llama.cpp b11434 src/llama-graph.cpp (build_moe_ffn)."""

from __future__ import annotations

from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph_shapes import Experts, Family

__all__ = ["Routing"]


class Routing:
    """Sends the tokens of a layer through their experts."""

    def __init__(self, graph: Graph, family: Family, sizes: Experts) -> None:
        self.graph, self.family, self.sizes = graph, family, sizes

    def chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return which experts the tokens go through, and their weights."""
        family, g, e, tokens = self.family, self.graph, self.sizes, x.ne[1]
        raw = scores = g.project(e.number, x)
        if family.gating == "softmax":
            scores = g.like("SOFT_MAX", scores)
        elif family.gating == "sigmoid":
            scores = g.like("UNARY", scores)
        ranked = g.like("ADD", scores) if family.gate_bias else scores
        if family.gate_first:
            ranked = raw
        if e.groups > 1:
            ranked = self.grouped(ranked)
        sorted_ = g.make("ARGSORT", ranked.ne, ranked, element="i32")
        chosen = g.view(sorted_, (e.used, tokens), (sorted_.nb[1],))
        weights = g.rows(g.reshape(scores, 1, e.number, tokens), chosen)
        if family.gating == "chosen":
            flat = g.reshape(weights, e.used, tokens)
            weights = g.reshape(g.like("SOFT_MAX", flat), 1, e.used, tokens)
        if family.gate_norm:
            flat = g.reshape(weights, e.used, tokens)
            total = g.like("CLAMP", g.make("SUM_ROWS", (1, tokens), flat))
            weights = g.reshape(g.like("DIV", flat, total), 1, e.used, tokens)
        if family.gate_scale:
            weights = g.like("SCALE", weights)
        g.expand(weights)
        return chosen, weights

    def grouped(self, scores: Tensor) -> Tensor:
        """Return the scores with those of groups that were not chosen taken away."""
        g, e, tokens = self.graph, self.sizes, scores.ne[1]
        own = e.number // e.groups
        groups = g.reshape(scores, own, e.groups, tokens)
        order = g.make("ARGSORT", groups.ne, groups, element="i32")
        best = g.view(order, (2, e.groups, tokens), order.nb[1:3])
        top = g.rows(g.reshape(groups, 1, own, e.groups, tokens), best)
        sums = g.make("SUM_ROWS", (1, e.groups, tokens), g.reshape(top, 2, e.groups, tokens))
        order = g.make(
            "ARGSORT", (e.groups, tokens), g.reshape(sums, e.groups, tokens), element="i32"
        )
        kept = g.view(order, (e.groups_used, tokens), (order.nb[1],))
        rows = g.rows(groups, kept)
        filled = g.like("FILL", groups)
        return g.reshape(g.store(rows, kept, filled), e.number, tokens)

    def routed(self, x: Tensor) -> Tensor:
        """Return the sum of what the chosen experts give (build_moe_ffn)."""
        family, g, e = self.family, self.graph, self.sizes
        hidden, tokens = x.ne[0], x.ne[1]
        chosen, weights = self.chosen(x)
        each = g.reshape(x, hidden, 1, tokens)
        if family.gate_first:
            each = g.like("MUL", g.make("REPEAT", (hidden, e.used, tokens), each), weights)
        up = self.by_expert(e.inner, each, chosen)
        gate = self.by_expert(e.inner, each, chosen)
        found = self.by_expert(hidden, g.like("GLU", gate, up), chosen)
        if not family.gate_first:
            found = g.like("MUL", found, weights)
        g.expand(found)
        parts = [g.view(found, (hidden, tokens), (found.nb[2],)) for _ in range(e.used)]
        g.expand(*parts)
        total = parts[0]
        for part in parts[1:]:
            total = g.like("ADD", total, part)
            g.expand(total)
        return total if e.used > 1 else g.like("CONT", total)

    def by_expert(self, rows: int, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the product with the chosen experts' matrices (build_lora_mm_id)."""
        g, e, tokens = self.graph, self.sizes, x.ne[2]
        found = g.make("MUL_MAT_ID", (rows, e.used, tokens), x, chosen)
        if not e.scaled:
            return found
        spread = g.make("REPEAT", (1, e.number, tokens))
        return g.like("MUL", found, g.rows(spread, chosen))
