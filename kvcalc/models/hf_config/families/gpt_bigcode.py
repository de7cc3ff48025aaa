"""StarCoder and its kin: one KV head, unless `multi_query` is false."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, heads, hidden_per_head, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers; multi-query is the class's default (transformers GPTBigCodeConfig)."""
    groups = 1 if f.flag("multi_query", default=True) else heads(f)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))
