"""The layers of a model: the union of all cache kinds, and runs of equal layers.

A decoder layer keeps any number of caches: none (it borrows another layer's, or has no attention),
one (most), or several (MLA with its indexer; attention and a recurrent state at once; two
attention blocks in one layer).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
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
from kvcalc.core.values import Positive, Value, require_range

__all__ = ["CACHE_KINDS", "MAX_LAYERS", "Cache", "LayerRun", "merge_runs"]

MAX_LAYERS = 10_000
"""In one model; above it a number is a slip, and a pattern would unfold into too much."""

Cache = (
    FullAttention
    | SlidingWindow
    | ChunkedAttention
    | CrossAttention
    | Mla
    | SlidingMla
    | CompressedAttention
    | Indexer
    | SharedKv
    | Mamba1
    | Mamba2
    | GatedDeltaNet
    | KimiDeltaAttention
    | LightningAttention
    | RgLru
    | ShortConv
    | Rwkv
)
"""Every kind; a test compares this list with the classes above."""

CACHE_KINDS: dict[str, type[Cache]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Cache)
}
"""Kind name -> class, for readers of presets and for messages."""


class LayerRun(Value, frozen=True, kw_only=True):
    """`count` consecutive layers that keep the same caches.

    Attributes:
        count: number of layers.
        caches: what each of them keeps; empty for a layer that keeps nothing of its own.
        note: why, where the caches alone do not tell ("borrows the K and V of layer 18").
    """

    count: Positive
    caches: tuple[Cache, ...]
    note: str = ""

    def __post_init__(self) -> None:
        require_range(self, 1, "count")

    @property
    def label(self) -> str:
        """The kinds kept, joined: `mla+indexer`; `none` where nothing is kept."""
        return "+".join(cache.kind for cache in self.caches) or "none"

    @property
    def shape(self) -> str:
        """The shapes kept, joined; the note where nothing is kept."""
        return " + ".join(cache.describe() for cache in self.caches) or self.note


def merge_runs(runs: Iterable[LayerRun]) -> tuple[LayerRun, ...]:
    """Join neighbours that keep the same for the same reason."""
    merged: list[LayerRun] = []
    for run in runs:
        last = merged[-1] if merged else None
        if last is not None and (last.caches, last.note) == (run.caches, run.note):
            merged[-1] = LayerRun(count=last.count + run.count, caches=run.caches, note=run.note)
        else:
            merged.append(run)
    return tuple(merged)
