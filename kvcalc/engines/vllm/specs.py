"""Layers as vLLM describes them to its cache planner: one spec a cache, with its page bytes.

vLLM 0.33 v1/kv_cache_interface.py (AttentionSpec, MLAAttentionSpec, SlidingWindowSpec,
ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec) and the layers' get_kv_cache_spec.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.units import round_up

__all__ = ["Kind", "Placed", "Spec"]

Kind = Literal["full", "mla", "window", "window_mla", "chunk", "cross", "state"]


class Spec(NamedTuple):
    """One cache of one layer, on one rank.

    Attributes:
        kind: which rule hands out its blocks.
        block: tokens a block.
        entry: bytes of one stored entry, all heads of the rank (a state: all of it).
        payload: the entry's bytes by role, in order; proposed rows of a state are left out.
        limit: window or chunk, in tokens; 0 for none.
        ratio: tokens an entry.
        page: bytes of a block, padding included.
        slots: blocks that a request keeps of a state; `every` so many tokens one more.
        encoder: rows of an encoder that a cross-attention layer really keeps.
        shape: what else tells layers apart that vLLM would not put into one group.
        keeps_all: a window or chunk that is given blocks for every token all the same.
    """

    kind: Kind
    block: int
    entry: int
    payload: tuple[tuple[str, int], ...]
    shape: tuple[object, ...]
    page: int
    limit: int = 0
    ratio: int = 1
    slots: int = 0
    every: int = 0
    encoder: int = 0
    keeps_all: bool = False

    @property
    def content(self) -> int:
        """Bytes of a block without padding."""
        return self.entry if self.kind == "state" else self.block // self.ratio * self.entry

    @property
    def family(self) -> tuple[object, ...]:
        """Layers of one family and block size need the same number of blocks (uniform type).

        v1/kv_cache_interface.py, is_uniform_with_collection of each class.
        """
        if self.kind in ("full", "mla") or self.keeps_all:
            return ("full", self.block)
        if self.kind == "state":
            return ("state", self.block, self.slots, self.every, self.page)
        return (self.kind, self.block, self.limit)

    @property
    def one_group(self) -> tuple[object, ...]:
        """Layers with an equal value are one spec to vLLM, and can share a group."""
        kind = "full" if self.keeps_all else self.kind
        return (kind, self.block, self.page, self.shape, 0 if self.keeps_all else self.limit)

    def with_block(self, block: int) -> Spec:
        """Return the spec in blocks of another size, without padding."""
        return self._replace(block=block, page=block // self.ratio * self.entry)

    def aligned(self, alignment: int) -> Spec:
        """Return the spec with its page rounded up to a multiple of `alignment` bytes."""
        return self._replace(page=round_up(self.content, alignment))


class Placed(NamedTuple):
    """A spec and the layers that have it, draft layers counted on from the model's own."""

    spec: Spec
    layers: list[int]
    proposed_bytes: int = 0
