"""How LMDeploy packs K and V of one layer: bytes of a row, and of its scales.

LMDeploy 0.18 pytorch/engine/cache_engine/schema.py (build_k_cache_desc, build_v_cache_desc,
build_quant_cache_descs); TurboMind kernels/attention/block.h, Layout.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.errors import UnsupportedError

__all__ = ["Tensor", "tensors_of"]


class Tensor(NamedTuple):
    """What one layer keeps for one token: `rows` rows of `row_bytes`, all heads."""

    role: str
    token_bytes: int


_PARTS = {"none": None, "int4": (2, 2), "int8": (1, 1), "turbo_quant": (2, 4)}
"""Policy -> elements of K and of V in a byte."""
_PARAMETERS = {"int4": (2, 2), "int8": (2, 2), "turbo_quant": (2, 1)}
"""Policy -> numbers in the model dtype beside each head's K and V: scale and zero point."""


def tensors_of(heads: int, k: int, v: int, policy: str, model_dtype: str) -> tuple[Tensor, ...]:
    """Return the tensors of one layer: K, V, and the parameters of each where there are any.

    Args:
        heads: KV heads on the rank.
        k: elements of a head's K.
        v: elements of a head's V; 0 where it is part of K.
        policy: how they are packed.
        model_dtype: of parameters, and of K and V that are not packed.

    Raises:
        UnsupportedError: a head that does not fill whole bytes.
    """
    size = element_bytes(model_dtype)
    if policy in ("fp8", "fp8_e5m2"):
        return Tensor("k", heads * k), Tensor("v", heads * v)
    parts = _PARTS[policy]
    if parts is None:
        return Tensor("k", heads * k * size), Tensor("v", heads * v * size)
    for width, in_a_byte in zip((k, v), parts, strict=True):
        if width % in_a_byte:
            raise UnsupportedError(
                f"{policy} packs {in_a_byte} elements a byte and a head has {width}",
                hint="choose another quant_policy",
            )
    k_numbers, v_numbers = _PARAMETERS[policy]
    return (
        Tensor("k", heads * k // parts[0]),
        Tensor("v", heads * v // parts[1]),
        Tensor("k_scale", heads * k_numbers * size),
        Tensor("v_scale", heads * v_numbers * size),
    )
