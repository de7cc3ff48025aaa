"""The compute buffer: the memory that a context computes its largest step in.

llama.cpp b11434 src/llama-context.cpp (llama_context::sched_reserve): the graph of a step of
n_ubatch tokens, with as many outputs as the context may be asked for, is laid out once and its
buffer kept. Only builds from b11434 on were measured; older ones had other graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2, ShortConv
from kvcalc.core.size import ModelSize
from kvcalc.core.units import cdiv
from kvcalc.engines.llamacpp.allocator import peak_bytes
from kvcalc.engines.llamacpp.cells import padded, windowed
from kvcalc.engines.llamacpp.contexts import Context, contexts_of
from kvcalc.engines.llamacpp.families import SCALED_EXPERTS, SINGLE_PARTS, families
from kvcalc.engines.llamacpp.ggml import Graph, Tensor
from kvcalc.engines.llamacpp.graph import decoder
from kvcalc.engines.llamacpp.graph_latent import Latent, StateDecoder, latent_decoder
from kvcalc.engines.llamacpp.graph_shapes import (
    Conv,
    Delta,
    Experts,
    Family,
    LayerShape,
    Scan,
    Shape,
    Step,
    shortened,
)
from kvcalc.engines.llamacpp.served import Served
from kvcalc.engines.llamacpp.settings import Settings
from kvcalc.engines.llamacpp.types import quantized

__all__ = ["CPU_ALIGNMENT", "Interval", "buffer_of", "compute_buffer", "step_of"]


CPU_ALIGNMENT = 32
"""Bytes that a tensor's size is rounded up to: ggml-backend.cpp, TENSOR_ALIGNMENT."""
_MEASURED_FROM = 11434


class Interval(NamedTuple):
    """Bytes that lie between two bounds; equal where the number is exact.

    Attributes:
        low: at least so many.
        high: at most so many.
        reason: why it is no one number; empty where it is.
    """

    low: int
    high: int
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high


def compute_buffer(
    model: ModelSpec, settings: Settings, *, gpu: bool = False, outputs: int | None = None
) -> Interval | None:
    """Return the bytes of the compute buffer of the model's own context.

    Args:
        model: with its widths (`size`).
        settings: as resolved.
        gpu: on a GPU that computes all layers, of which there are as many as settings.placing has
            shares; else on a CPU.
        outputs: tokens of a step whose logits can be asked for; None for the server's.

    Returns:
        The interval; None where the model's widths are not known, kvcalc does not know the graph of
        its architecture, or the build is older than those that were measured.

    Raises:
        UnsupportedError: what llama.cpp refuses, or kvcalc does not model.
    """
    main = contexts_of(model, settings, [])[0]
    return buffer_of(main, settings, gpu=gpu, outputs=outputs)


def buffer_of(
    main: Context,
    settings: Settings,
    *,
    gpu: bool = False,
    outputs: int | None = None,
    every_tensor: bool = False,
    every_layer: bool = False,
) -> Interval | None:
    """Return the bytes of the compute buffer of a context; see `compute_buffer`.

    `every_tensor`: the model has every tensor that llama.cpp can use, as one from key-values alone.
    `every_layer`: repeats of equal layers are laid out too, which changes no byte.
    """
    if settings.build.number < _MEASURED_FROM or settings.method == "mtp":
        return None
    devices = len(settings.placing.shares) if gpu else 0
    found = [
        _laid_out(built, devices)
        for step in _steps(main, settings, outputs)
        for built in _graphs(main, settings, step, every_tensor, every_layer)
    ]
    if not found:
        return None
    low, high = min(low for low, _ in found), max(high for _, high in found)
    return Interval(low, high, _reason(gpu=gpu, exact=low == high))


def _reason(*, gpu: bool, exact: bool) -> str:
    if gpu:
        return "a GPU's backend lays the graph out in its own way"
    return "" if exact else "the file or the speculation decides what is left open here"


def _steps(main: Context, settings: Settings, outputs: int | None) -> list[Step]:
    """Return the largest step; with speculation those with the fewest and the most outputs.

    tools/server (server_output_limits): a slot asks for one output, and for one more for every
    token proposed.
    """
    first = step_of(main, settings, outputs)
    if settings.method is None or outputs is not None:
        return [first]
    return [first, first._replace(outputs=min(settings.cells.total, settings.cells.ubatch))]


def step_of(main: Context, settings: Settings, outputs: int | None) -> Step:
    """Return the largest step of a context."""
    cells, sizes, types = settings.cells, main.sizes, settings.types
    tokens = min(cells.total, cells.ubatch)
    window = windowed(
        cells, sizes.window, sizes.window_pad, unified=cells.unified, full=sizes.swa_full
    )
    return Step(
        tokens=padded(tokens, cells.sequences),
        outputs=min(tokens, cells.sequences if outputs is None else outputs),
        streams=cells.streams,
        cells=cells.per_sequence,
        window_cells=window,
        flash=main.flash,
        k_packed=quantized(types.k),
        v_packed=quantized(types.v),
        k_cast=types.k.name == "float32",
        v_cast=types.v.name == "float32",
    )


class _Built(NamedTuple):
    """All that a graph is built from."""

    family: Family
    shape: Shape
    step: Step
    sequences: int
    arch: str | None
    latent: Latent | None
    k_type: str
    scored: bool


def _graphs(
    main: Context, settings: Settings, step: Step, every_tensor: bool, every_layer: bool
) -> Iterator[_Built]:
    """Yield what each graph that the context can have is built from."""
    served, arch = main.served, main.served.arch
    for groups in expert_groups(served):
        scaled = every_tensor and arch in SCALED_EXPERTS
        shape = shape_of(served, groups, main.sizes.states, scaled=scaled)
        if shape is None:
            return
        if not every_layer:
            shape = shape._replace(layers=shortened(shape.layers))
        for family in families(arch):
            yield _Built(
                family,
                shape,
                step,
                settings.cells.sequences,
                arch,
                latent_of(served),
                settings.types.k.name,
                scored=every_tensor and arch == "qwen35",
            )


@lru_cache(maxsize=512)
def _laid_out(built: _Built, devices: int) -> tuple[int, int]:
    """Return the bytes of a graph: of `devices` GPUs, or of a CPU for 0."""
    graph = _graph(built)
    if devices:
        return bounds(graph, built.shape, built.step, devices=devices)
    found = peak_bytes(graph, CPU_ALIGNMENT)
    return found, found


def _graph(built: _Built) -> Graph:
    family, shape, step, sequences, arch, latent, k_type, scored = built
    mixer = next((layer.mixer for layer in shape.layers if layer.mixer is not None), None)
    if isinstance(mixer, (Scan, Conv)):
        return scan_decoder(family, shape, step, sequences, single=arch in SINGLE_PARTS)
    if mixer is not None:
        joined = arch == "qwen3next"
        return delta_decoder(family, shape, step, sequences, joined=joined, scored=scored)
    if latent is None:
        return decoder(family, shape, step)
    return latent_decoder(family, shape, step, latent, k_type)


# The compute buffer on a GPU: bounds, as every backend lays a graph out in its own way.
#
# llama.cpp b11434: ggml/src/ggml-backend.cpp (inputs lie on the host and are copied; several GPUs
# hold 4 copies of them, GGML_SCHED_MAX_COPIES), ggml/src/ggml-cuda/fattn.cu
# (ggml_cuda_flash_attn_ext_get_alloc_size: a packed cache is unpacked to f16 first) and
# ggml_backend_cuda_graph_optimize (operations that are done at once keep their parents longer).

GPU_ALIGNMENT = 256
"""No backend rounds a tensor's size up to more: CUDA 128, Vulkan and Metal up to 256."""
_COPIES = 4
_F16 = 2
_KEPT = 3
"""Large tensors that operations done at once keep longer than the graph needs them."""


def bounds(graph: Graph, shape: Shape, step: Step, *, devices: int) -> tuple[int, int]:
    """Return the least and the most bytes that a graph takes on a GPU that computes all of it.

    The least is the largest operation with what it reads; of several GPUs only one computes the
    logits, so that they do not count. The most is the graph as on a CPU, inputs
    included, with what a backend can add: alignment, the unpacked cache, tensors kept longer, and
    copies of the inputs where there are several GPUs.
    """
    low = max(
        _least(node)
        for node in graph.nodes
        if not _on_host(node) and not (node.output and devices > 1)
    )
    high = peak_bytes(graph, GPU_ALIGNMENT)
    high += max(_unpacked(layer, step) for layer in shape.layers)
    inner = [node for node in graph.nodes if node.base is None and not node.output]
    high += _KEPT * max(_rounded(node.size) for node in inner)
    if devices > 1:
        high += (_COPIES - 1) * sum(_rounded(leaf.size) for leaf in graph.leafs if leaf.entry)
    return low, high


def _rounded(size: int) -> int:
    return cdiv(size, GPU_ALIGNMENT) * GPU_ALIGNMENT


def _on_host(node: Tensor) -> bool:
    """Whether a node is of the embedding, which llama.cpp looks up on the host."""
    return node.op in ("GET_ROWS", "DUP") and all(parent.entry for parent in node.src)


def _least(node: Tensor) -> int:
    """Bytes that are there at once: what a node reads, and the node if it cannot take its place."""
    read = {id(p.base or p): (p.base or p).size for p in node.src if not (p.base or p).outside}
    own = 0 if node.base is not None else node.size
    return max(own, sum(read.values()))


def _unpacked(layer: LayerShape, step: Step) -> int:
    cells = (step.window_cells if layer.windowed else step.cells) * step.streams
    k = layer.head_k if step.k_packed else 0
    v = layer.head_v if step.v_packed else 0
    return _F16 * (k + v) * layer.kv_heads * cells if step.flash else 0


# The graph of models with selective scans (Mamba-2) and short convolutions.
#
# llama.cpp b11434 src/models/mamba-base.cpp (build_mamba2_layer), mamba.cpp, granite-hybrid.cpp,
# nemotron-h.cpp, lfm2.cpp.


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


# The graph of models with gated delta nets.
#
# llama.cpp b11434 src/models/qwen35.cpp, qwen3next.cpp and delta-net-base.cpp (build_conv_state,
# build_recurrent_attn).


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


# The widths of a served model, layer by layer, as its graph needs them.

_GROUPS = ((1, 1), (8, 4), (8, 3))
"""Groups of experts, and how many a token chooses: those of published models."""


def expert_groups(served: Served) -> tuple[tuple[int, int], ...]:
    """Return what a model's groups of experts can be, which configs kvcalc reads do not tell."""
    size = served.model.size
    grouped = served.arch in ("deepseek2", "deepseek32", "glm-dsa", "bailingmoe2", "dots1")
    if size is None or size.num_experts is None or not grouped:
        return _GROUPS[:1]
    count = size.num_experts
    return tuple(g for g in _GROUPS if not count % g[0] and count // g[0] > 1)


def latent_of(served: Served) -> Latent | None:
    """Return the widths of latent attention; None without it, or where they are not known."""
    size = served.model.size
    caches = [cache for run in served.layers for cache in run.caches]
    mla = next((c for c in caches if isinstance(c, Mla)), None)
    if size is None or size.qk_nope_head_dim is None or size.v_head_dim is None:
        return None
    if mla is not None:
        return Latent(
            q_rank=size.q_lora_rank or 0,
            kv_rank=mla.kv_lora_rank,
            rope=mla.qk_rope_head_dim,
            plain=size.qk_nope_head_dim,
            head_v=size.v_head_dim,
        )
    whole = next((c for c in caches if isinstance(c, FullAttention)), None)
    if whole is None or size.kv_lora_rank is None:
        return None
    return Latent(
        q_rank=size.q_lora_rank or 0,
        kv_rank=size.kv_lora_rank,
        rope=whole.head_dim - size.qk_nope_head_dim,
        plain=size.qk_nope_head_dim,
        head_v=size.v_head_dim,
        absorbed=False,
    )


def shape_of(served: Served, groups: tuple[int, int], states: int, *, scaled: bool) -> Shape | None:
    """Return the widths of a model, whose states are kept `states` times; None if not known."""
    size = served.model.size
    if size is None or size.hidden_size is None or size.vocab_size is None:
        return None
    first = size.first_moe_layer or 0
    if size.num_moe_layers is not None and size.num_moe_layers != served.main - first:
        return None  # experts in every other layer: which ones is not known
    layers = [_layer(i, run, served, size, states) for i, run in served.numbered]
    known = tuple(layer for layer in layers if layer is not None)
    experts = _experts(size, groups, scaled=scaled)
    if len(known) != len(layers) or (any(la.experts for la in known) and experts is None):
        return None
    return Shape(size.hidden_size, size.vocab_size, known, experts)


def _layer(
    number: int, run: LayerRun, served: Served, size: ModelSize, states: int
) -> LayerShape | None:
    heads = served.model.num_attention_heads or 0
    if size.layer_heads:
        heads = size.layer_heads[number] if number < len(size.layer_heads) else 0
    inner = size.intermediate_size
    if size.layer_inner:
        inner = size.layer_inner[number] if number < len(size.layer_inner) else None
    if served.arch == "gemma4" and size.num_experts is not None:
        return None  # its experts stand beside a dense MLP
    experts = size.num_experts is not None and number >= (size.first_moe_layer or 0)
    if len(run.caches) > 1:
        return None
    width = inner or 0
    if not run.caches:
        # A layer without K and V of its own that borrows them has attention, and is not known.
        borrows = heads > 0 and served.arch not in SINGLE_PARTS
        return None if borrows else LayerShape(0, 0, 0, 0, width, experts=experts)
    cache = run.caches[0]
    if (mixer := _mixer(cache, states)) is not None:
        return LayerShape(0, 0, 0, 0, width, experts=experts, mixer=mixer)
    if isinstance(cache, Mla):
        row = cache.kv_lora_rank + cache.qk_rope_head_dim
        return LayerShape(heads, 1, row, cache.kv_lora_rank, width, experts=experts)
    if not isinstance(cache, (FullAttention, SlidingWindow, ChunkedAttention)):
        return None
    value = cache.head_dim if cache.v_head_dim is None else cache.v_head_dim
    return LayerShape(
        heads,
        cache.num_kv_heads,
        cache.head_dim,
        value,
        width,
        windowed=not isinstance(cache, FullAttention),
        experts=experts,
    )


def _experts(size: ModelSize, groups: tuple[int, int], *, scaled: bool) -> Experts | None:
    needed = (size.num_experts, size.num_experts_per_tok, size.moe_intermediate_size)
    count, used, inner = needed
    if count is None or used is None or inner is None:
        return None
    return Experts(
        count,
        used,
        inner,
        size.shared_intermediate_size or 0,
        scaled=scaled,
        groups=groups[0],
        groups_used=groups[1],
    )


def _mixer(cache: Cache, states: int) -> Delta | Scan | Conv | None:
    """Return what a layer with a state does; None for attention, and for mixers not known here."""
    if isinstance(cache, GatedDeltaNet):
        return Delta(
            cache.num_k_heads,
            cache.num_v_heads,
            cache.head_k_dim,
            cache.head_v_dim,
            cache.conv_kernel,
            states,
        )
    if isinstance(cache, Mamba2):
        return Scan(
            cache.num_heads,
            cache.head_dim,
            cache.state_size,
            cache.n_groups,
            cache.conv_kernel,
            states,
        )
    return Conv(cache.hidden_size, cache.conv_kernel) if isinstance(cache, ShortConv) else None
