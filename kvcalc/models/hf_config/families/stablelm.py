"""StableLM: KV heads of their own, and no `head_dim`: the modelling code divides."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, hidden_per_head, kv_heads, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers of grouped-query attention."""
    return same(num_layers(f), FullAttention(num_kv_heads=kv_heads(f), head_dim=hidden_per_head(f)))
