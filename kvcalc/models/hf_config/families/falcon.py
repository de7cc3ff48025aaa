"""Falcon: one KV head in the old architecture, grouped heads in the new."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, heads, hidden_per_head, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers; `multi_query` counts in the old architecture only, and is its default.

    vLLM 0.33 transformers_utils/model_arch_config_convertor.py, FalconModelArchConfigConvertor.
    """
    if f.flag("new_decoder_architecture", default=False):
        groups = f.whole("num_kv_heads", "n_head_kv") or heads(f)
        f.notes.append("transformers keeps K and V once for every query head instead")
    else:
        # FalconConfig takes an explicit null at its word: not true.
        single = f.flag("multi_query", default=not f.is_null("multi_query"))
        groups = 1 if single else heads(f)
    return same(num_layers(f), FullAttention(num_kv_heads=groups, head_dim=hidden_per_head(f)))
