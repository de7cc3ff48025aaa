"""The widths of a served model, layer by layer, as its graph needs them."""

from __future__ import annotations

from kvcalc.core.attention import ChunkedAttention, FullAttention, Mla, SlidingWindow
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2, ShortConv
from kvcalc.core.size import ModelSize
from kvcalc.engines.llamacpp.families import SINGLE_PARTS
from kvcalc.engines.llamacpp.graph_latent import Latent
from kvcalc.engines.llamacpp.graph_shapes import Conv, Delta, Experts, LayerShape, Scan, Shape
from kvcalc.engines.llamacpp.served import Served

__all__ = ["expert_groups", "latent_of", "shape_of"]

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
