"""A model's sizes with what the headers of its checkpoint say."""

from __future__ import annotations

import msgspec

from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.core.weight_dtypes import QUANTISED
from kvcalc.models.weights.summary import Weights

__all__ = ["with_weights"]

_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ENCODERS = ("vision", "audio")


def with_weights(spec: ModelSpec, weights: Weights, source: str) -> ModelSpec:
    """Return a model that knows its checkpoint's tensors.

    Elements are counted as parameters where every tensor is of plain floats: packed formats keep
    several in one, and scales count as elements too.

    Args:
        spec: as its config describes it.
        weights: of its checkpoint.
        source: where they were read, in words.
    """
    size = spec.size or ModelSize()
    plain = set(weights.by_dtype) <= set(_FLOATS)
    size = msgspec.structs.replace(
        size,
        parameters=weights.parameters if plain else size.parameters,
        weights_bytes=weights.total_bytes,
        weights_error_bytes=None,
        weights_dtype=_format(weights, size.weights_dtype),
        encoder_bytes=sum(weights.by_class.get(kind, 0) for kind in _ENCODERS),
        weights_source=source,
        parts=weights.parts,
    )
    return msgspec.structs.replace(spec, size=size)


def _format(weights: Weights, said: str | None) -> str | None:
    """Return what most weights are stored in: by their dtype, or as the config says it."""
    if not weights.by_dtype:
        return said
    most = max(weights.by_dtype, key=lambda name: weights.by_dtype[name])
    if most in ("F32", "F16", "BF16"):
        return _FLOATS[most]
    if said in QUANTISED:
        return said
    # A config may leave its quantisation to a file of its own (hf_quant_config.json).
    return "fp8" if most.startswith("F8_E") and most != "F8_E8M0" else None
