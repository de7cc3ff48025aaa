"""The weights of a model, tensor by tensor, as its file holds them."""

from __future__ import annotations

from kvcalc.core.values import NonNegative, Positive, Value

__all__ = ["WeightTensor"]


class WeightTensor(Value, frozen=True, kw_only=True):
    """One tensor of a model's weights.

    Attributes:
        name: as in the file, such as `blk.7.ffn_up.weight`.
        bytes: of its data; at least, where no file tells them.
        row: elements of its innermost dimension.
        block: elements that its type packs together; 1 where it packs none.
        block_bytes: bytes that they become.
        more_bytes: what it may take beyond `bytes`; 0 where a file tells it.
    """

    name: str
    bytes: NonNegative
    row: NonNegative
    block: Positive
    block_bytes: Positive
    more_bytes: NonNegative = 0
