"""OpenELM: KV heads by layer."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, num_layers, runs

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return layers of `num_kv_heads` heads each."""
    count = num_layers(f, "num_transformer_layers")
    groups = f.wholes("num_kv_heads", low=1, length=count)
    if groups is None:
        raise f.missing("num_kv_heads")
    size = f.need("head_dim")
    return Layers(runs([(FullAttention(num_kv_heads=n, head_dim=size),) for n in groups]))
