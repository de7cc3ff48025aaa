"""Qwen 2, 2.5 and 3 and what derives from them: a window only where `use_sliding_window` is true.

Their published files state a window and do not use it.
"""

from __future__ import annotations

from kvcalc.models.hf_config.fields import MAX_LAYERS, Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    drafts,
    full_attention,
    num_layers,
    runs,
    unmasked,
    window,
    windowed,
)

__all__ = ["read"]

_CLASS = "Qwen2Config"  # transformers 5.24 models/qwen2/configuration_qwen2.py


def read(f: Fields) -> Layers:
    """Return full layers, and window layers from `max_window_layers` on where they are used."""
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    first = count
    if tokens is not None and not f.has("layer_types"):
        first = f.default_whole("max_window_layers", default=28, of=_CLASS, low=0, high=MAX_LAYERS)
    layers = windowed(f, count, full, tokens, [i >= first for i in range(count)])
    return Layers(runs(layers), drafts(f, full))
