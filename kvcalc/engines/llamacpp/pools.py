"""From the tensors of a context to pools of cells: how many there are, and how sequences hold them.

llama.cpp b11434 src/llama-kv-cache-iswa.cpp, src/llama-kv-cache-dsv4.cpp, and
src/llama-memory-recurrent.cpp (one state a sequence, and one more for every snapshot).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from kvcalc.core.plan import Group, Pool
from kvcalc.core.rules import Chunk, Compressed, Grow, Rule, Slots, Whole, Window
from kvcalc.engines.llamacpp.cells import Cells, compressed, windowed
from kvcalc.engines.llamacpp.tensors import Kept

__all__ = ["Sizes", "pools_of"]

_ORDER = ("kv", "indexer", "csa", "hca", "lid", "swa", "state")
_TITLES = {
    "kv": "every token",
    "indexer": "indexer keys",
    "csa": "1 entry in 4",
    "hca": "1 entry in 128",
    "lid": "indexer keys, 1 in 4",
    "swa": "window",
    "state": "state",
}


class Sizes(NamedTuple):
    """What decides on the cells of a context's caches.

    Attributes:
        cells: of the context.
        window: tokens of the sliding window or chunk.
        window_pad: cells of the sliding layers are rounded up to this.
        swa_full: sliding layers keep as many cells as the others.
        states: states a sequence, the live one included.
        per_sequence: streams are a sequence's own even where the context is unified (DeepSeek-V4).
        names: what stands before the names of the pools ("draft ").
        dtype: what K and V are kept in, where it is not the model's own context's.
    """

    cells: Cells
    window: int
    window_pad: int
    swa_full: bool
    states: int
    per_sequence: bool
    names: str = ""
    dtype: str = ""


def pools_of(kept: Iterable[Kept], sizes: Sizes) -> tuple[Pool, ...]:
    """Return the pools of what some layers keep: those of one device."""
    by_cache: dict[str, list[Kept]] = defaultdict(list)
    for entry in kept:
        by_cache[entry.cache].append(entry)
    pools = []
    for cache in _ORDER:
        members = by_cache.get(cache, [])
        payload: dict[str, int] = {}
        for entry in members:
            for role, size in entry.payload.items():
                payload[role] = payload.get(role, 0) + size
        unit = sum(payload.values()) + sum(entry.widened for entry in members)
        if not unit:
            continue  # no layer, or layers without KV heads alone
        rule, units, reserved = _rule(cache, members[0], sizes)
        group = Group(
            name=_TITLES[cache],
            layers=len({entry.layer for entry in members}),
            rule=rule,
            payload=payload,
            unit_bytes=unit,
        )
        pools.append(
            Pool(
                name=sizes.names + cache,
                groups=(group,),
                unit_bytes=unit,
                units=units,
                reserved_units=reserved,
                dtype="" if cache == "state" else sizes.dtype,
            )
        )
    return tuple(pools)


def _rule(cache: str, entry: Kept, sizes: Sizes) -> tuple[Rule, int, int]:
    """Return how sequences hold a cache's cells, how many there are, and how many nobody gets."""
    cells = sizes.cells
    if cache == "state":
        return Slots(count=sizes.states), cells.sequences * sizes.states, 0
    own = sizes.per_sequence or not cells.unified
    streams = cells.sequences if own else 1
    # A sequence alone has the pool to itself.
    whole = own or cells.sequences == 1
    if cache == "swa":
        return _window(entry, sizes, own=own, whole=whole)
    if entry.ratio > 1:
        count = compressed(cells, entry.ratio)
        rule: Rule = Compressed(block_entries=1, ratio=entry.ratio)
        if whole:
            rule = Whole(slots=count, ratio=entry.ratio)
        return rule, count * streams, 0
    count = cells.per_sequence
    return Whole(slots=count) if whole else Grow(block_tokens=1), count * streams, 0


def _window(entry: Kept, sizes: Sizes, *, own: bool, whole: bool) -> tuple[Rule, int, int]:
    cells, limit = sizes.cells, sizes.window
    count = windowed(cells, limit, sizes.window_pad, unified=not own, full=sizes.swa_full)
    if whole:
        rule: Rule = Whole(slots=count, limit=limit, restarts=entry.chunk)
        return rule, count * (cells.sequences if own else 1), 0
    if sizes.swa_full:
        return Grow(block_tokens=1, limit=limit, restarts=entry.chunk), count, 0
    # What the windows of all sequences leave is room for the tokens of one step.
    reserved = max(0, count - limit * cells.sequences)
    if entry.chunk:
        return Chunk(block_tokens=1, chunk=limit, ring=True), count, reserved
    return Window(block_tokens=1, window=limit, ring=True), count, reserved
