"""Gemma 2: window and full layers in turn, a window layer first."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    window,
    windowed,
)

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else in turn (transformers 5.24 Gemma2Config)."""
    count = num_layers(f)
    in_turn = every_nth_full(count, 2)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), in_turn)))
