"""Mamba and FalconMamba: a convolution window and a state in every layer, no attention."""

from __future__ import annotations

from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, num_layers, same
from kvcalc.models.hf_config.states import mamba1

__all__ = ["read"]

_CLASS = "MambaConfig"  # transformers 5.24 models/mamba/configuration_mamba.py; FalconMamba equal


def read(f: Fields) -> Layers:
    """Return equal layers of Mamba."""
    return same(num_layers(f), mamba1(f, _CLASS))
