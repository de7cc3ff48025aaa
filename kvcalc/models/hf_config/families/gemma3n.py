"""Gemma 3n: four window layers to one full layer; the last layers read what earlier ones keep."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    shared_tail,
    window,
    windowed,
)

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else every fifth full (Gemma3nTextConfig)."""
    count = num_layers(f)
    local = every_nth_full(count, 5)
    layers = windowed(f, count, full_attention(f), window(f), local)
    return Layers(runs(shared_tail(f, layers)))
