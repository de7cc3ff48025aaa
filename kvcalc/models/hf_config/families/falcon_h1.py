"""Falcon-H1: attention and a Mamba-2 state side by side in every layer."""

from __future__ import annotations

from kvcalc.core.attention import FullAttention
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, head_dim, num_layers, same
from kvcalc.models.hf_config.states import mamba2

__all__ = ["read"]

_CLASS = "FalconH1Config"  # transformers 5.24 models/falcon_h1/configuration_falcon_h1.py


def read(f: Fields) -> Layers:
    """Return equal layers that keep K, V and a state."""
    attention = FullAttention(num_kv_heads=f.need("num_key_value_heads"), head_dim=head_dim(f))
    return same(num_layers(f), attention, mamba2(f, _CLASS, inner=f.need("mamba_d_ssm")))
