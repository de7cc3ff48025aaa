"""Llama 4: chunked attention where a layer has rotary position, full attention where it has not."""

from __future__ import annotations

from kvcalc.core.attention import ChunkedAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
)

__all__ = ["read"]

_CLASS = "Llama4TextConfig"  # transformers 5.24 models/llama4/configuration_llama4.py


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types` or `no_rope_layers`, else every fourth full."""
    count = num_layers(f)
    full = full_attention(f)
    local: Caches = (full,)
    size = f.whole("attention_chunk_size", low=0)
    if size:
        local = (
            ChunkedAttention(
                num_kv_heads=full.num_kv_heads, head_dim=full.head_dim, attention_chunk_size=size
            ),
        )
    layers = by_type(f, count, {"full_attention": (full,), "chunked_attention": local})
    if layers is None:
        # An empty list is none: the class fills it, as it does a missing one.
        rotary = f.wholes("no_rope_layers", high=1) or []
        if not rotary:
            period = f.default_whole("no_rope_layer_interval", default=4, of=_CLASS)
            rotary = [int(has) for has in every_nth_full(count, period)]
        if len(rotary) != count:
            raise f.fault(
                "no_rope_layers", f"{len(rotary)} entries", f"one for each of {count} layers"
            )
        layers = [local if has else (full,) for has in rotary]
    return Layers(runs(layers))
