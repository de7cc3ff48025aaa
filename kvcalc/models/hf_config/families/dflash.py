"""DFlash and DSpark drafts of the Qwen 3 kind: a few layers with K and V by head.

vLLM 0.33 models/qwen3_dflash.py (_resolve_layer_attention) and qwen3_dspark.py.
"""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    full_attention,
    num_layers,
    runs,
    window,
    windowed,
)

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return full layers, and window layers where `layer_types` or `use_swa` say so."""
    count = num_layers(f)
    own = f.section("dflash_config")
    slides = own is not None and own.flag("use_swa", default=False)
    tokens = own.whole("swa_window_size") if own is not None else None
    if tokens is None and (slides or f.has("layer_types")):
        tokens = window(f)
    layers = windowed(f, count, full_attention(f), tokens, [slides] * count)
    return Layers(runs(layers))
