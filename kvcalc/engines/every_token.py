"""Blocks that all layers share and that keep every token, however few of them a layer reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvcalc.core.attention import ChunkedAttention, SlidingWindow
from kvcalc.core.layers import Cache
from kvcalc.core.plan import Group, Rows
from kvcalc.core.rules import Grow

__all__ = ["Span", "kept_group", "span_of", "spans_of"]


class Span(NamedTuple):
    """Layers that read alike.

    Attributes:
        layers: how many.
        limit: the most tokens that are read; None where all are.
        restarts: the limit is a chunk's.
    """

    layers: int
    limit: int | None
    restarts: bool


def span_of(layers: int, cache: Cache) -> Span:
    """Return how many tokens layers of such a cache read."""
    match cache:
        case SlidingWindow():
            return Span(layers, cache.sliding_window, restarts=False)
        case ChunkedAttention():
            return Span(layers, cache.attention_chunk_size, restarts=True)
    return Span(layers, None, restarts=False)


def spans_of(caches: Iterable[tuple[int, Cache]]) -> tuple[Span, ...]:
    """Return the spans of layers, those that read alike put together."""
    found: dict[tuple[int | None, bool], int] = {}
    for count, cache in caches:
        _, limit, restarts = span_of(count, cache)
        found[limit, restarts] = found.get((limit, restarts), 0) + count
    return tuple(Span(count, limit, restarts) for (limit, restarts), count in found.items())


def kept_group(spans: Sequence[Span], payload: Mapping[str, int], block: int, page: int) -> Group:
    """Return the group of all layers: one id stands for a block of each of them.

    Windows and chunks save nothing, and what no token to come reads is held all the same.

    Args:
        spans: the layers by what they read.
        payload: bytes of one token of one layer, by role.
        block: tokens a block.
        page: bytes of a block of one layer, padding included.
    """
    parts = []
    for count, limit, restarts in spans:
        rule = Grow(block_tokens=block, limit=limit, restarts=restarts)
        parts.append(Rows(rule=rule, payload={role: count * b for role, b in payload.items()}))
    layers = sum(count for count, _, _ in spans)
    parts.sort(key=lambda rows: rows.rule.most_used(10**9), reverse=True)
    first, *others = parts
    return Group(
        name="blocks",
        layers=layers,
        rule=first.rule,
        payload=first.payload,
        unit_bytes=layers * page,
        also=tuple(others),
        block_size=block,
    )
