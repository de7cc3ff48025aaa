"""Blocks that all layers share: one id stands for a block of every layer, however few it reads."""

from __future__ import annotations

from kvcalc.core.plan import Group, Rows
from kvcalc.core.rules import Grow
from kvcalc.engines.lmdeploy.layers import Shape
from kvcalc.engines.lmdeploy.packing import Tensor

__all__ = ["block_group"]


def block_group(shape: Shape, tensors: tuple[Tensor, ...], block: int, page: int) -> Group:
    """Return the group of all layers; `page` is one layer's bytes of a block.

    Every layer keeps every token: windows and chunks save nothing, and what no token to come reads
    is held all the same.
    """
    parts = []
    for count, limit, restarts in shape.spans:
        rule = Grow(block_tokens=block, limit=limit, restarts=restarts)
        parts.append(Rows(rule=rule, payload={t.role: count * t.token_bytes for t in tensors}))
    parts.sort(key=lambda rows: rows.rule.most_used(10**9), reverse=True)
    first, *others = parts
    return Group(
        name="blocks",
        layers=shape.layers,
        rule=first.rule,
        payload=first.payload,
        unit_bytes=shape.layers * page,
        also=tuple(others),
        block_size=block,
    )
