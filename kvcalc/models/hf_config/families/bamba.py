"""Bamba: Mamba-2 layers with full attention at the listed indices."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Caches, Layers, head_dim, num_layers, runs
from kvcalc.models.hf_config.states import mamba2

__all__ = ["read"]

_CLASS = "BambaConfig"  # transformers 5.24 models/bamba/configuration_bamba.py


def read(f: Fields) -> Layers:
    """Return Mamba-2 layers, and full attention at `attn_layer_indices`."""
    count = num_layers(f)
    indices = f.wholes("attn_layer_indices", high=count - 1)
    if indices is None:
        raise f.missing("attn_layer_indices")  # the class would have no attention at all
    attention: Caches = (
        FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f)),
    )
    state: Caches = (mamba2(f, _CLASS),)
    listed = frozenset(indices)
    return Layers(runs([attention if i in listed else state for i in range(count)]))
