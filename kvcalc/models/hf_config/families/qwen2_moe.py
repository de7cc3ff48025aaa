"""Qwen2-MoE: full layers; where the window is used, every other layer below a limit has it."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
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

_CLASS = "Qwen2MoeConfig"  # transformers 5.24 models/qwen2_moe/configuration_qwen2_moe.py


def read(f: Fields) -> Layers:
    """Return the layers; `max_window_layers` is where the windows end, not where they begin."""
    count = num_layers(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    limit = 0
    if tokens is not None and not f.has("layer_types"):
        limit = f.default_whole("max_window_layers", default=28, of=_CLASS, low=0, high=MAX_LAYERS)
    local = [has and i < limit for i, has in enumerate(every_nth_full(count, 2))]
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))
