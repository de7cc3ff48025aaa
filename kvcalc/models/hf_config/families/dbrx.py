"""DBRX: the KV heads stand in `attn_config`."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, hidden_per_head, num_layers, same

__all__ = ["read"]

_CLASS = "DbrxAttentionConfig"  # transformers 5.24 models/dbrx/configuration_dbrx.py


def read(f: Fields) -> Layers:
    """Return equal layers of grouped-query attention."""
    attention = f.section("attn_config")
    if attention is None:
        raise f.missing("attn_config")
    groups = attention.default_whole("kv_n_heads", default=1, of=_CLASS)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))
