"""Jamba: Mamba layers with full attention in one of every period."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import Caches, Layers, head_dim, num_layers, runs
from kvcalc.models.hf_config.states import mamba1

__all__ = ["read"]

_CLASS = "JambaConfig"  # transformers 5.24 models/jamba/configuration_jamba.py


def read(f: Fields) -> Layers:
    """Return Mamba layers, and full attention where the index leaves the offset."""
    period = f.default_whole("attn_layer_period", default=8, of=_CLASS, high=MAX_LAYERS)
    offset = f.default_whole("attn_layer_offset", default=4, of=_CLASS, low=0, high=MAX_LAYERS)
    if offset >= period:
        raise f.fault("attn_layer_offset", offset, f"less than attn_layer_period {period}")
    attention: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    state: Caches = (mamba1(f, _CLASS, prefix="mamba_"),)
    return Layers(
        runs([attention if i % period == offset else state for i in range(num_layers(f))])
    )
