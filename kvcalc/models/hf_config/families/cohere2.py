"""Command R7B and A: three window layers to one full layer."""

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

_CLASS = "Cohere2Config"  # transformers 5.24 models/cohere2/configuration_cohere2.py


def read(f: Fields) -> Layers:
    """Return window and full layers, by `layer_types` or by the pattern's length."""
    count = num_layers(f)
    local = [False] * count
    if not f.has("layer_types"):
        period = f.default_whole("sliding_window_pattern", default=4, of=_CLASS)
        local = every_nth_full(count, period)
    return Layers(runs(windowed(f, count, full_attention(f), window(f), local)))
