"""The graph of one step of a decoder of attention and MLPs, as llama.cpp builds it.

Only what takes memory is there: an operation that always takes its parent's place, such as a bias
that is added, changes nothing and is left out. llama.cpp b11434: src/llama-graph.cpp
(build_inp_embd, build_qkv, build_attn, build_attn_mha, build_ffn, build_moe_ffn) and src/models/.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.errors import NotModelledError
from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph_shapes import Experts, Family, LayerShape, Shape, Step

__all__ = ["Decoder", "decoder"]


def decoder(family: Family, shape: Shape, step: Step) -> Graph:
    """Return the graph of a step."""
    return Decoder(family, shape, step).build()


class _Inputs(NamedTuple):
    """What a kind of layer (with or without a window) is told: where to write, what to see."""

    k_ids: Tensor
    v_ids: Tensor
    mask: Tensor
    k_turn: Tensor | None
    v_turn: Tensor | None


class Decoder:
    """Builds the graph; what an architecture does otherwise, its own class says."""

    def __init__(self, family: Family, shape: Shape, step: Step) -> None:
        self.family, self.shape, self.step = family, shape, step
        self.graph = Graph()
        self.positions = self.graph.entry("i32", step.tokens * family.axes)
        self.temper = self.graph.entry("f32", 1, 1, step.tokens)
        self.out_ids = self.graph.entry("i32", step.outputs)
        self.inputs = {windowed: self._inputs(windowed) for windowed in (False, True)}

    def _inputs(self, windowed: bool) -> _Inputs:
        g, step = self.graph, self.step
        cells = step.window_cells if windowed else step.cells
        here = [la for la in self.shape.layers if la.windowed is windowed and la.kv_heads]
        wide = max(la.kv_heads * la.head_v for la in self.shape.layers)
        return _Inputs(
            k_ids=g.entry("i64", step.tokens),
            v_ids=g.entry("i64", step.tokens * (1 if step.flash else wide)),
            mask=g.entry(
                "f16" if step.flash else "f32", cells, step.tokens // step.streams, 1, step.streams
            ),
            k_turn=self._turn([la.head_k for la in here], grows=True) if step.k_packed else None,
            v_turn=self._turn([la.head_v for la in here], grows=False) if step.v_packed else None,
        )

    def _turn(self, heads: list[int], *, grows: bool) -> Tensor | None:
        """Return the Hadamard matrix that packed K or V is turned by (llama_kv_cache).

        Of 64 columns; for K of the largest power of 2 that divides a head. There is none where
        heads differ or do not divide by 64.
        """
        if len(set(heads)) != 1 or heads[0] % 64:
            return None
        width = 64
        while grows and heads[0] % (2 * width) == 0:
            width *= 2
        return self.graph.entry("f32", width, width)

    def build(self) -> Graph:
        g = self.graph
        stream = self.embedding()
        last = len(self.shape.layers) - 1
        for i, layer in enumerate(self.shape.layers):
            stream = self.layer(layer, stream, crops=i == last)
        found = self.norm(stream)
        found.output = True
        self.beside(found)
        logits = g.project(self.shape.vocab, found)
        logits.output = True
        g.expand(logits)
        return g

    def beside(self, found: Tensor) -> None:
        """Add what is computed from the result beside the logits; most graphs have nothing."""

    def embedding(self) -> Tensor:
        """Return the stream's start; batches of embeddings and of both kinds have their inputs."""
        g, tokens, hidden = self.graph, self.step.tokens, self.shape.hidden
        chosen = Tensor("GET_ROWS", "f32", (hidden, tokens), (g.entry("i32", tokens),))
        mixed = Tensor("GET_ROWS", "f32", (hidden, tokens), (g.entry("i32", tokens),))
        g.expand(chosen, mixed, g.entry("f32", hidden, tokens))
        ids, given = g.entry("i64", tokens), g.entry("f32", hidden, tokens)
        g.expand(g.store(mixed, ids, g.like("DUP", given)))
        if self.family.embedding == "by_token":
            chosen = g.like("MUL", chosen, g.entry("f32", 1, tokens))
        g.expand(chosen)
        return g.like("SCALE", chosen) if self.family.embedding == "scaled" else chosen

    def norm(self, x: Tensor) -> Tensor:
        g = self.graph
        return g.like("MUL", g.like(self.family.norm, x))

    def layer(self, layer: LayerShape, stream: Tensor, *, crops: bool) -> Tensor:
        family, g = self.family, self.graph
        kept = stream
        read = self.norm(stream) if family.before else stream
        found = self.attention(layer, read)
        if crops:
            found, kept = g.rows(found, self.out_ids), g.rows(kept, self.out_ids)
            read = g.rows(read, self.out_ids) if family.parallel else read
        if family.parallel:
            parts = {"mlp": self.mlp(layer, read), "attention": found, "stream": kept}
            first, second, third = (parts[name] for name in family.parallel)
            return g.like("ADD", g.like("ADD", first, second), third)
        if family.after:
            found = self.norm(found)
        middle = self.added("attention", found, kept)
        read = self.norm(middle) if family.before else middle
        found = self.experts(layer, read) if layer.experts else self.mlp(layer, read)
        if family.after:
            found = self.norm(found)
        return self.added("mlp", found, middle)

    def added(self, part: Literal["attention", "mlp"], found: Tensor, kept: Tensor) -> Tensor:
        pair = (kept, found) if part in self.family.residual_first else (found, kept)
        return self.graph.like("ADD", *pair)

    def projections(self, layer: LayerShape, x: Tensor) -> list[Tensor]:
        g, tokens = self.graph, self.step.tokens
        heads = (layer.heads, layer.kv_heads, layer.kv_heads)
        dims = (layer.head_k, layer.head_k, layer.head_v)
        if self.family.fused:
            joined = g.project(sum(h * d for h, d in zip(heads, dims, strict=True)), x)
            return [
                g.view(joined, (d, h, tokens), (4 * d, joined.nb[1]))
                for h, d in zip(heads, dims, strict=True)
            ]
        found = [g.project(h * d, x) for h, d in zip(heads, dims, strict=True)]
        if self.family.v_is_k and not layer.windowed:
            found[2] = found[1]
        if self.family.qk_norm == "rows":
            found[:2] = [self.norm(part) for part in found[:2]]
        return [
            g.reshape(part, d, h, tokens) for part, h, d in zip(found, heads, dims, strict=True)
        ]

    def attention(self, layer: LayerShape, x: Tensor) -> Tensor:
        family, g = self.family, self.graph
        q, k, v = self.projections(layer, x)
        if family.qk_norm == "heads":
            q, k = self.norm(q), self.norm(k)
        if family.v_norm:
            v = g.like("RMS_NORM", v)
        if family.rope == "all" or (family.rope == "windowed" and layer.windowed):
            q, k = g.like("ROPE", q, self.positions), g.like("ROPE", k, self.positions)
        elif family.tempered:
            q = g.like("MUL", q, self.temper)
        if family.q_scaled:
            q = g.like("SCALE", q)
        return self.attend(layer, q, k, v)

    def attend(self, layer: LayerShape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write K and V, and return what the queries read, projected (build_attn)."""
        return self.graph.project(self.shape.hidden, self.look(layer, q, k, v))

    def look(self, layer: LayerShape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write K and V, and return what the queries read."""
        g = self.graph
        given = self.inputs[layer.windowed]
        if given.k_turn is not None:
            q, k = self.turned(q, given.k_turn), self.turned(k, given.k_turn)
        if given.v_turn is not None:
            v = self.turned(v, given.v_turn)
        # Models with windows expand K before V, others V before K (two overloads of build_attn).
        g.expand(q, *((k, v) if any(la.windowed for la in self.shape.layers) else (v, k)))
        self.store(layer, k, v, given)
        found = self.scores(layer, q, given)
        g.expand(found)
        if given.v_turn is not None:
            found = self.turned(found, given.v_turn)
        return found

    def turned(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return rows times a Hadamard matrix (llama_mul_mat_hadamard)."""
        g, n = self.graph, matrix.ne[0]
        count = x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3] // n
        flat = g.reshape(x, n, count) if x.contiguous else g.make("CONT", (n, count), x)
        return g.reshape(g.make("MUL_MAT", (n, count), matrix, flat), *x.ne)

    def store(self, layer: LayerShape, k: Tensor, v: Tensor, given: _Inputs) -> None:
        """Write K and V into the cache; without flash attention V lies turned, by elements."""
        g, tokens = self.graph, self.step.tokens
        flat = g.view(k, (layer.kv_heads * layer.head_k, tokens), (k.nb[2],))
        g.expand(g.store(flat, given.k_ids, g.cache()))
        row = layer.kv_heads * layer.head_v
        if self.step.flash:
            flat = g.view(v, (row, tokens), (v.nb[2],))
        else:
            flat = g.reshape(v, row, tokens) if v.contiguous else g.make("CONT", (row, tokens), v)
            widest = given.v_ids.ne[0] // tokens
            if row < widest:
                flat = g.make("PAD", (widest, tokens), flat)
            flat = g.reshape(flat, 1, widest * tokens)
        g.expand(g.store(flat, given.v_ids, g.cache()))

    def scores(self, layer: LayerShape, q: Tensor, given: _Inputs) -> Tensor:
        """Return what the queries read from the cache (build_attn_mha)."""
        g, step = self.graph, self.step
        own = step.tokens // step.streams
        q = g.view(q, (*q.ne[:2], own, step.streams), (q.nb[1], q.nb[2], q.nb[2] * own))
        q = g.permute(q, 0, 2, 1, 3)
        width = layer.head_v * layer.heads
        if step.flash:
            ne = (layer.head_v, layer.heads, own, step.streams)
            cells = given.mask.ne[0]
            parents = [q]
            for cast, head in ((step.k_cast, layer.head_k), (step.v_cast, layer.head_v)):
                if cast:
                    whole = (head, cells, layer.kv_heads, step.streams)
                    parents.append(g.make("CPY", whole, element="f16"))
            found = g.make("FLASH_ATTN_EXT", ne, *parents, given.mask)
            return g.reshape(found, width, step.tokens)
        weights = g.make("MUL_MAT", (given.mask.ne[0], own, layer.heads, step.streams), q)
        if self.family.capped:
            weights = g.like("SCALE", g.like("UNARY", g.like("SCALE", weights)))
        weights = g.like("SOFT_MAX", weights, given.mask)
        read = g.make("MUL_MAT", (layer.head_v, own, layer.heads, step.streams), weights)
        return g.make("CONT", (width, step.tokens), g.permute(read, 0, 2, 1, 3))

    def mlp(self, layer: LayerShape, x: Tensor, inner: int | None = None) -> Tensor:
        g, width = self.graph, layer.inner if inner is None else inner
        if self.family.mlp == "gated":
            gate, up = g.project(width, x), g.project(width, x)
            return g.project(self.shape.hidden, g.like("GLU", gate, up))
        if self.family.mlp == "joined":
            both = g.project(2 * width, x)
            half = g.make("GLU", (width, *both.ne[1:]), both)
            return g.project(self.shape.hidden, half)
        half = g.like("UNARY", g.project(width, x))
        if self.family.mlp == "squared":
            half = g.like("SQR", half)
        return g.project(self.shape.hidden, half)

    def experts(self, layer: LayerShape, x: Tensor) -> Tensor:
        """Return what the experts of a layer give, the shared one included."""
        experts = self.shape.experts
        if experts is None:
            raise NotModelledError(
                "a layer has experts of which no sizes are known", hint="use a file that tells them"
            )
        found = Routing(self.graph, self.family, experts).routed(x)
        if not experts.shared:
            return found
        return self.graph.like("ADD", found, self.shared(layer, x, experts.shared))

    def shared(self, layer: LayerShape, x: Tensor, inner: int) -> Tensor:
        g, gate = self.graph, self.family.shared_gate
        found = self.mlp(layer, x, inner)
        if gate == "none":
            return found
        raw = g.project(1, x)
        weight = g.like("UNARY", raw)
        return g.like("MUL", found, g.like("DIV", weight, raw) if gate == "silu" else weight)


# The graph of routed experts: llama.cpp b11434 src/llama-graph.cpp (build_moe_ffn).


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
