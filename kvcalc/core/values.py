"""The base of every value in kvcalc, and the range checks that its constructors share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from kvcalc.core.errors import InvalidValueError

__all__ = [
    "MAX_DIMENSION",
    "MAX_RANKS",
    "MAX_STAGES",
    "NonNegative",
    "Positive",
    "Value",
    "require_range",
]

MAX_DIMENSION = 2**31 - 1
"""No dimension of a model, count of layers or block is larger; above it a number is a slip."""

MAX_RANKS, MAX_STAGES = 1_024, 256
"""No engine runs a replica over more tensor-parallel ranks, or pipeline stages."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSION)]
NonNegative = Annotated[int, msgspec.Meta(ge=0, le=MAX_DIMENSION)]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable value with named fields; unknown fields are refused when it is read."""


def require_range(
    owner: object, low: int, *names: str, high: int = MAX_DIMENSION, optional: bool = False
) -> None:
    """Check that fields of `owner` are ints between `low` and `high`.

    Meta annotations guard only what is decoded from a file; values built in Python pass here.

    Raises:
        InvalidValueError: naming the field and the value.
    """
    for name in names:
        value = getattr(owner, name)
        if optional and value is None:
            continue
        if type(value) is not int or not low <= value <= high:
            raise InvalidValueError(
                f"{name} is {value!r:.60}, not a whole number from {low} to {high}"
            )
