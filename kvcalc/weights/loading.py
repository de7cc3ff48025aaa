"""What an engine makes of a checkpoint as it loads it: the dtype, padding, what it leaves out.

A matrix that is stored in plain floats becomes the dtype that the model runs in: parameters are
made in it and the checkpoint's are copied into them (vLLM 0.33 utils/torch_utils.py,
set_default_torch_dtype; model_loader/weight_utils.py, default_weight_loader; SGLang the same).
Packed matrices and their scales stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import msgspec

from kvcalc.core.dtypes import element_bytes
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize, WeightPart
from kvcalc.core.units import cdiv, round_up
from kvcalc.weights.formats import WIDTHS
from kvcalc.weights.split import Stages

__all__ = ["AS_PUBLISHED", "Loading", "Tile", "as_loaded", "cast", "padding"]

_SINGLE = "float32"


class Loading(NamedTuple):
    """What an engine makes of a checkpoint.

    Attributes:
        dtype: that plain floats are run in; None: as they are stored.
        table_bytes: of a number in tables of rotary positions; None: of the dtype.
        experts: by how much padding makes routed experts larger, at least and at most.
        copied_bytes: of what a kernel keeps a second time, at most.
        towers: the pipeline stages that load encoders of images and sound; each that may be.
        note: what a reader of the weights should know, with its source.
    """

    dtype: str | None = None
    table_bytes: int | None = None
    experts: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1))
    copied_bytes: int = 0
    towers: tuple[Stages, ...] = ("first",)
    note: str = ""


Tile = tuple[int, int]
"""What a kernel rounds an expert up to: its inner width on a rank, and the width it works at."""


def padding(model: ModelSpec, divided_by: int, tiles: Sequence[Tile]) -> tuple[Fraction, Fraction]:
    """Return by how much tiles make routed experts larger, at least and at most.

    Args:
        model: with its sizes.
        divided_by: ranks that share the inner width of one expert.
        tiles: of each kernel that may be taken.
    """
    size = model.size or ModelSize()
    inner, width = size.moe_intermediate_size, size.expert_hidden_size or size.hidden_size
    if inner is None or width is None or not tiles:
        return Fraction(1), Fraction(1)
    factors = [
        Fraction(
            round_up(cdiv(inner, divided_by), one) * divided_by * round_up(width, other),
            inner * width,
        )
        for one, other in tiles
    ]
    return min(factors), max(factors)


AS_PUBLISHED = Loading()
"""Nothing is made of it."""


def as_loaded(model: ModelSpec, loading: Loading) -> ModelSpec:
    """Return a model whose plain weights are in the dtype that they are run in.

    What a checkpoint of another dtype has in float32 (routers, decay rates) stays so marked in its
    parts: engines keep some of it and cast the rest (`cast` casts all).
    """
    dtype = loading.dtype
    if dtype is None or dtype not in WIDTHS:
        return model
    size = model.size or ModelSize()
    stored = size.weights_dtype or model.dtype
    if stored in WIDTHS:
        size = _in_dtype(size, stored, dtype)
    size = msgspec.structs.replace(size, parts=cast(size.parts, dtype, single=stored == _SINGLE))
    return msgspec.structs.replace(model, dtype=dtype, size=size)


def _in_dtype(size: ModelSize, stored: str, dtype: str) -> ModelSize:
    """Return sizes whose totals are those of another plain dtype."""
    if element_bytes(stored) == element_bytes(dtype):
        return msgspec.structs.replace(size, weights_dtype=dtype)
    up, down = element_bytes(dtype), element_bytes(stored)
    totals = {
        name: -(-value * up // down)
        for name in ("weights_bytes", "weights_error_bytes", "encoder_bytes")
        if (value := getattr(size, name)) is not None
    }
    source = None
    if size.weights_source is not None:
        source = f"{size.weights_source}; stored in {stored}, run in {dtype}"
    return msgspec.structs.replace(size, weights_dtype=dtype, weights_source=source, **totals)


def cast(parts: Iterable[WeightPart], dtype: str, *, single: bool = True) -> tuple[WeightPart, ...]:
    """Return parts in another dtype, those of packed weights as they are.

    Args:
        parts: of a checkpoint.
        dtype: that plain floats become.
        single: those in float32 as well.
    """
    return tuple(
        part
        if not part.stored or (part.stored == _SINGLE and not single)
        else _part_in(part, dtype)
        for part in parts
    )


def _part_in(part: WeightPart, dtype: str) -> WeightPart:
    up, down = element_bytes(dtype), element_bytes(part.stored)
    return msgspec.structs.replace(
        part,
        stored=dtype,
        divided_bytes=part.divided_bytes * up // down,
        whole_bytes=part.whole_bytes * up // down,
    )
