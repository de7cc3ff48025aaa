"""EXAONE 4: window layers by an int or by letters ("LLLG"); none where there is no window."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import (
    Layers,
    drafts,
    every_nth_full,
    full_attention,
    num_layers,
    runs,
    window,
    windowed,
)

__all__ = ["read"]

_CLASS = "Exaone4Config"  # transformers 5.24 models/exaone4/configuration_exaone4.py


def read(f: Fields) -> Layers:
    """Return the layers by `layer_types`, else by `sliding_window_pattern`."""
    count = num_layers(f)
    full = full_attention(f)
    tokens = window(f)
    local = [False] * count
    if tokens is not None and not f.has("layer_types"):
        local = _pattern(f, count)
    return Layers(runs(windowed(f, count, full, tokens, local)), drafts(f, full))


def _pattern(f: Fields, count: int) -> list[bool]:
    letters = f.get("sliding_window_pattern")
    if not isinstance(letters, str):
        return every_nth_full(
            count, f.default_whole("sliding_window_pattern", default=4, of=_CLASS)
        )
    if not letters or set(letters) - set("LG"):
        raise f.fault("sliding_window_pattern", letters, "an int, or letters L and G")
    # TensorRT-LLM models/modeling_exaone4.py, check_is_sliding: the last layer is full.
    return [letters[i % len(letters)] == "L" and i != count - 1 for i in range(count)]
