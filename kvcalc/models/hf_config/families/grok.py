"""Grok 1 and 2: full attention; a window is switched off in what is published."""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, full_attention, num_layers, same, window

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers; `sliding_window_size` -1 is no window."""
    if window(f, "sliding_window_size") is not None:
        raise NotModelledError(
            f"{f.name('sliding_window', 'sliding_window_size')} is set: which of Grok's layers"
            " have a window is not known",
            hint="no published Grok model uses one",
            where=f.where,
        )
    return same(num_layers(f), full_attention(f))
