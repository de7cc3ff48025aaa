"""Plain decoders: every layer keeps K and V of every token."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, full_attention, num_layers, same

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return equal layers of full attention."""
    return same(num_layers(f), full_attention(f))
