"""MiniMax-Text-01 and M1: lightning attention with full attention every eighth layer."""

from __future__ import annotations

from kvcalc.core.recurrent import LightningAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, by_type, head_dim, heads, num_layers, runs
from kvcalc.models.hf_config.states import need_attention

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `attn_type_list` (1 is full attention) or by `layer_types`."""
    count = num_layers(f)
    full: Caches = (need_attention(f),)
    state: Caches = (LightningAttention(num_heads=heads(f), head_dim=head_dim(f)),)
    types = f.wholes("attn_type_list", high=1)
    if types is None:
        layers = by_type(f, count, {"linear_attention": state, "full_attention": full})
        if layers is None:
            raise f.missing("attn_type_list", "layer_types")
        return Layers(runs(layers))
    if len(types) < count:
        raise f.fault("attn_type_list", f"{len(types)} entries", f"one for each of {count} layers")
    return Layers(runs([full if kind else state for kind in types[:count]]))
