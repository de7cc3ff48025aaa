"""SmolLM3: full layers; a window, where it is used, belongs to the layers without rotary position.

transformers 5.24 models/smollm3/configuration_smollm3.py.
"""

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

_CLASS = "SmolLM3Config"


def read(f: Fields) -> Layers:
    """Return full layers, and window layers by `layer_types` or `no_rope_layers`."""
    count = num_layers(f)
    tokens = window(f) if f.flag("use_sliding_window", default=False) else None
    local = [False] * count
    if tokens is not None and not f.has("layer_types"):
        rotary = f.wholes("no_rope_layers", high=1, length=count)
        if rotary is None:
            period = f.default_whole("no_rope_layer_interval", default=4, of=_CLASS)
            rotary = [int(has) for has in every_nth_full(count, period)]
        local = [not has for has in rotary]
    return Layers(runs(windowed(f, count, full_attention(f), tokens, local)))
