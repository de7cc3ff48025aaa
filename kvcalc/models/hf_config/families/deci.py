"""Nemotron-NAS and DeciLM: KV heads, or nothing at all, layer by layer."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import NotModelledError
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, head_dim, heads, num_layers, runs

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `block_configs`, else by `num_key_value_heads_per_layer`."""
    count = num_layers(f)
    size = head_dim(f)
    blocks = f.sections("block_configs", length=count)
    if blocks is None:
        groups = f.wholes("num_key_value_heads_per_layer", low=1, length=count)
        if groups is None:
            raise f.missing("block_configs", "num_key_value_heads_per_layer")
        return Layers(runs([(FullAttention(num_kv_heads=n, head_dim=size),) for n in groups]))
    layers = [_attention(block, heads(f), size) for block in blocks]
    notes = {i: "attention is left out" for i, caches in enumerate(layers) if not caches}
    return Layers(runs(layers, notes))


def _attention(block: Fields, query_heads: int, size: int) -> Caches:
    """Return what a block keeps; vLLM 0.33 models/nemotron_nas.py, DeciLMDecoderLayer."""
    attention = block.section("attention")
    if attention is None:
        raise block.missing("attention")
    if attention.flag("no_op", default=False) or attention.flag(
        "replace_with_linear", default=False
    ):
        return ()
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        if attention.get(key):
            raise NotModelledError(
                f"{attention.name(key)} is set: attention to some tokens only is not modelled",
                hint="no published model of this architecture uses it",
                where=block.where,
            )
    group = attention.need("n_heads_in_group", high=MAX_LAYERS)
    if query_heads % group:
        raise attention.fault("n_heads_in_group", group, f"a divisor of {query_heads} heads")
    return (FullAttention(num_kv_heads=query_heads // group, head_dim=size),)
