"""A model's sizes with what the headers of its checkpoint say."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize
from kvcalc.models.weights.summary import Weights
from kvcalc.weights.formats import UNKNOWN_FORMAT, WIDTHS
from kvcalc.weights.parameters import count_parts, total

__all__ = ["with_stated", "with_weights"]

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
    against = (*spec.contradictions, *_contradictions(spec, weights, plain=plain))
    return msgspec.structs.replace(
        spec, size=size, contradictions=against, notes=(*spec.notes, *weights.notes)
    )


def with_stated(spec: ModelSpec, size_bytes: int, source: str) -> ModelSpec:
    """Return a model that knows what an index says its tensors take together.

    Args:
        spec: as its config describes it.
        size_bytes: of all tensors.
        source: where they were read, in words.
    """
    size = msgspec.structs.replace(
        spec.size or ModelSize(), weights_bytes=size_bytes, weights_error_bytes=None
    )
    size = msgspec.structs.replace(size, weights_source=source)
    return msgspec.structs.replace(spec, size=size)


_OFF = 1.02
"""How far a sum of tensors may be from the counted bounds before it is another model's."""


def _contradictions(spec: ModelSpec, weights: Weights, *, plain: bool) -> Iterator[str]:
    """Yield what a checkpoint's tensors say against its config."""
    layers, drafts = spec.num_hidden_layers, sum(run.count for run in spec.draft_layers)
    held = max(weights.by_layer, default=-1) + 1
    if held and not layers <= held <= layers + drafts:
        yield f"the tensors are of {held} layers, the config says {layers}"
    said = None if spec.size is None else spec.size.weights_dtype
    packed = sum(n for name, n in weights.by_dtype.items() if name not in _FLOATS)
    if _is_packed(said) and plain:
        yield f"the config says that weights are in {said}, and no tensor is packed"
    elif said in WIDTHS and 2 * packed > weights.total_bytes:
        yield f"most tensors are packed, and the config says nothing of a quantisation ({said})"
    if weights.stated_bytes not in (None, weights.total_bytes):
        yield f"the index says {weights.stated_bytes} B, the tensors take {weights.total_bytes} B"
    if not plain:
        return
    try:
        low, high = total(count_parts(spec))
    except UnsupportedError:
        return  # the config does not say how wide everything is
    if not low / _OFF <= weights.parameters <= high * _OFF:
        counted = f"{low:,} to {high:,}" if low != high else f"{low:,}"
        yield f"the tensors have {weights.parameters:,} elements, the config comes to {counted}"


def _is_packed(said: str | None) -> bool:
    return said is not None and said != UNKNOWN_FORMAT and said not in WIDTHS


def _format(weights: Weights, said: str | None) -> str | None:
    """Return what most weights are stored in: by their dtype, or as the config says it."""
    if not weights.by_dtype:
        return said
    most = max(weights.by_dtype, key=lambda name: weights.by_dtype[name])
    if most in ("F32", "F16", "BF16"):
        return _FLOATS[most]
    if _is_packed(said):
        return said
    # A config may leave its quantisation to a file of its own (hf_quant_config.json).
    return "fp8" if most.startswith("F8_E") and most != "F8_E8M0" else None
