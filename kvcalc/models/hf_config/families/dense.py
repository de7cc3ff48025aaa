"""Plain decoders: every layer keeps K and V of every token, or all of them of one window."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
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


def read(f: Fields) -> Layers:
    """Return equal layers, with the window that the config puts in force.

    A window is every layer's in vLLM 0.33 (engine/arg_utils.py, `sliding_window`) and in
    transformers 5.24 (cache_utils.py, `get_layer_types_and_kwargs`), unless `layer_types` differ.
    """
    if encoder := unmasked(f):
        return encoder
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f)
    layers = windowed(f, count, full, tokens, [tokens is not None] * count)
    return Layers(runs(layers), drafts(f, full))
