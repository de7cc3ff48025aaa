"""The weights of a model, tensor by tensor, as its file holds them."""

from __future__ import annotations

from kvcalc.core.values import NonNegative, Positive, Value

__all__ = ["WeightTensor"]


class WeightTensor(Value, frozen=True, kw_only=True):
    """One tensor of a model's weights.

    Attributes:
        name: as in the file, such as `blk.7.ffn_up.weight`.
        bytes: of its data.
        row: elements of its innermost dimension.
        block: elements that its type packs together; 1 where it packs none.
        block_bytes: bytes that they become.
    """

    name: str
    bytes: NonNegative
    row: NonNegative
    block: Positive
    block_bytes: Positive
