"""Olmo 3: three window layers to one full layer, unless the config says otherwise."""

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
    """Return the layers by `layer_types`, else every fourth full (transformers Olmo3Config)."""
    count = num_layers(f)
    local = every_nth_full(count, 4)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), local)))
