"""Gemma 3: five window layers to one full layer, unless the config says otherwise."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    unmasked,
    window,
    windowed,
)

__all__ = ["read"]

_CLASS = "Gemma3TextConfig"  # transformers 5.24 models/gemma3/configuration_gemma3.py


def read(f: Fields) -> Layers:
    """Return window and full layers, by `layer_types` or by the pattern's length."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    local = [False] * count
    if not f.has("layer_types"):
        names = ("sliding_window_pattern", "_sliding_window_pattern")
        local = every_nth_full(count, f.default_whole(*names, default=6, of=_CLASS))
    tokens = window(f)
    if tokens and f.flag("use_bidirectional_attention", default=False):
        tokens = tokens // 2 + 1  # as Gemma3TextConfig has it: so far to either side
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))
