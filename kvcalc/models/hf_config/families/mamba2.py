"""Mamba-2: a state in every layer, and a convolution over x, B and C; no attention."""

from __future__ import annotations

from kvcalc.core.recurrent import Mamba2
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers, num_layers, same

__all__ = ["read"]

_CLASS = "Mamba2Config"  # transformers 5.24 models/mamba2/configuration_mamba2.py


def read(f: Fields) -> Layers:
    """Return equal layers of Mamba-2."""
    state = Mamba2(
        num_heads=f.default_whole("num_heads", default=128, of=_CLASS),
        head_dim=f.default_whole("head_dim", default=64, of=_CLASS),
        state_size=f.default_whole("state_size", default=128, of=_CLASS),
        n_groups=f.default_whole("n_groups", default=8, of=_CLASS),
        conv_kernel=f.default_whole("conv_kernel", default=4, of=_CLASS),
    )
    inner = f.default_whole("expand", default=2, of=_CLASS) * f.need("hidden_size")
    if state.num_heads * state.head_dim != inner:
        raise f.fault("num_heads", state.num_heads, f"heads of {state.head_dim} that fill {inner}")
    return same(num_layers(f), state)
