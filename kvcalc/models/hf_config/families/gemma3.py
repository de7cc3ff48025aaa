"""Gemma 3: five window layers to one full layer, unless the config says otherwise."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Caches,
    Layers,
    by_type,
    full_attention,
    num_layers,
    repeat,
    runs,
    sliding,
)

__all__ = ["read"]

_CLASS = "Gemma3TextConfig"  # transformers 5.24 models/gemma3/configuration_gemma3.py


def read(f: Fields) -> Layers:
    """Return window and full layers, by `layer_types` or by the pattern's length."""
    count = num_layers(f)
    full = full_attention(f)
    window = sliding(full, f.default_whole("sliding_window", default=4096, of=_CLASS))
    kinds: dict[str, Caches] = {"full_attention": (full,), "sliding_attention": (window,)}
    layers = by_type(f, count, kinds)
    if layers is None:
        period = f.default_whole(
            "sliding_window_pattern", "_sliding_window_pattern", default=6, of=_CLASS
        )
        layers = repeat([(window,)] * (period - 1) + [(full,)], count)
    return Layers(runs(layers))
