"""GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM and Persimmon: K and V for every query head.

Their modelling code looks at no `num_key_value_heads` and no `head_dim`.
"""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, heads, hidden_per_head, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers of multi-head attention."""
    return same(num_layers(f), FullAttention(num_kv_heads=heads(f), head_dim=hidden_per_head(f)))
