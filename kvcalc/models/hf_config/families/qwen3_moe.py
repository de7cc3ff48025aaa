"""Qwen3-MoE: as dense, with the window of every layer off unless `use_sliding_window` is true."""

from __future__ import annotations

from kvcalc.models.hf_config.families import dense
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, full_attention, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers; transformers 5.24 Qwen3MoeConfig drops the window without the flag."""
    if f.flag("use_sliding_window", default=False):
        return dense.read(f)
    return same(num_layers(f), full_attention(f))
