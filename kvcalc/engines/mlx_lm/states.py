"""What mlx-lm's ArraysCache holds of a recurrent or convolution layer: bytes by role.

Asked of mlx-lm 0.32.2 for every kind but RWKV and lightning attention, which were read (rwkv7.py,
bailing_moe_linear.py).
"""

from __future__ import annotations

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import NotModelledError
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)

__all__ = ["IN_FLOAT32", "state_bytes"]

IN_FLOAT32 = (GatedDeltaNet, KimiDeltaAttention, Mamba2)
"""Kinds whose recurrent state is in float32 (gated_delta.py, ssm.py)."""
_IN_MODEL_DTYPE = (Mamba1, RgLru, Rwkv, ShortConv, LightningAttention)


def state_bytes(cache: Cache, model: ModelSpec) -> tuple[tuple[str, int], ...]:
    """Return the bytes of each state of one layer and sequence.

    A convolution keeps the kernel - 1 newest columns in the model dtype.

    Raises:
        UnsupportedError: a kind of state that is not modelled.
    """
    if not isinstance(cache, (*IN_FLOAT32, *_IN_MODEL_DTYPE)):
        raise NotModelledError(
            f"how mlx-lm keeps {cache.kind} states is not modelled",
            hint="use --engine none to see what the layers are",
        )
    found = []
    for state in cache.states():
        wide = state.role == "recurrent" and isinstance(cache, IN_FLOAT32)
        size = element_bytes("float32" if wide else model.dtype)
        found.append((state.role, state.elements * size))
    return tuple(found)
