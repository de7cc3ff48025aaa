"""Granite 4 hybrid: Mamba-2 layers with full attention where `layer_types` says so."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, by_type, full_attention, num_layers, runs
from kvcalc.models.hf_config.states import mamba2, words

__all__ = ["read"]

_CLASS = "GraniteMoeHybridConfig"
# transformers 5.24 models/granitemoehybrid/configuration_granitemoehybrid.py


def read(f: Fields) -> Layers:
    """Return the layers that the config lists (the class alone would have Mamba-2 only)."""
    kinds = words(
        {"linear_attention": (mamba2(f, _CLASS),), "full_attention": (full_attention(f),)}
    )
    layers = by_type(f, num_layers(f), kinds)
    if layers is None:
        raise f.missing("layer_types")
    return Layers(runs(layers))
