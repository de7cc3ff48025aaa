"""MPT: attention of three types, told apart in `attn_config`."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.core.errors import UnknownNameError
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, heads, hidden_per_head, num_layers, same

__all__ = ["read"]

_MULTI_HEAD, _MULTI_QUERY, _GROUPED = (
    "multihead_attention",
    "multiquery_attention",
    "grouped_query_attention",
)


def read(f: Fields) -> Layers:
    """Return equal layers; llm-foundry models/layers/attention.py has the three types."""
    attention = f.section("attn_config")
    kind = (attention and attention.text("attn_type")) or _MULTI_HEAD
    match kind:
        case "multihead_attention":
            groups = heads(f)
        case "multiquery_attention":
            groups = 1
        case "grouped_query_attention" if attention is not None:
            groups = attention.need("kv_n_heads")
        case _:
            known = (_MULTI_HEAD, _MULTI_QUERY, _GROUPED)
            raise UnknownNameError("attn_config.attn_type", kind[:60], known, where=f.where)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))
