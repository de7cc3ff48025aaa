"""What of a card an engine takes, and what of that is left for the cache: intervals with sources.

Weights that a file states are exact; activations, graphs and contexts are not known before a start,
so that every term is an interval, and so is what is left.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.units import cdiv
from kvcalc.core.values import Positive, Value

__all__ = [
    "TERM_NAMES",
    "HostPart",
    "MemoryBudget",
    "Term",
    "TermName",
    "gib_term",
    "require_ranks",
]

_GIB = 2**30
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**60)]

TermName = Literal["weights", "activation", "graphs", "communication", "context", "other"]

TERM_NAMES: dict[TermName, str] = {
    "weights": "the model's weights, a draft's included",
    "activation": "the peak of a step beyond weights and cache",
    "graphs": "captured CUDA graphs",
    "communication": "buffers between GPUs",
    "context": "the driver's context and kernels",
    "other": "encoder caches, adapters, tables",
}
"""The terms, in the order they are printed, and what each is."""


class HostPart(Value, frozen=True, kw_only=True):
    """What an engine takes of the host's memory beside its weights and caches there.

    Attributes:
        name: what it is.
        low_bytes: what it takes from the start.
        high_bytes: what it may come to; None where it has no limit.
        source: the setting or rule.
    """

    name: str
    low_bytes: _Bytes
    high_bytes: _Bytes | None
    source: str


class Term(Value, frozen=True, kw_only=True):
    """One thing that takes memory of a GPU beside the cache.

    Attributes:
        name: which of TERM_NAMES.
        low_bytes, high_bytes: what it takes at least and at most; equal where it is exact.
        source: where this is known from: a file, an engine's rule (file, symbol), measured starts.
    """

    name: TermName
    low_bytes: int
    high_bytes: int
    source: str

    def __post_init__(self) -> None:
        if not 0 <= self.low_bytes <= self.high_bytes:
            raise InvalidValueError(
                f"{self.name}: {self.low_bytes} to {self.high_bytes} B is no interval"
            )

    @property
    def exact(self) -> bool:
        """Whether the term is one number."""
        return self.low_bytes == self.high_bytes


def gib_term(name: TermName, low: float, high: float, source: str) -> Term:
    """Return a term given in GiB."""
    return Term(name=name, low_bytes=int(low * _GIB), high_bytes=int(high * _GIB), source=source)


def require_ranks(weights: tuple[Term, ...], ranks: int) -> None:
    """Check that there is one term of weights for each rank.

    Raises:
        InvalidValueError: another number.
    """
    if len(weights) != ranks:
        raise InvalidValueError(
            f"{len(weights)} terms of weights for {ranks} ranks", hint="give one for each"
        )


class MemoryBudget(Value, frozen=True, kw_only=True):
    """The memory of one GPU as an engine shares it out.

    Attributes:
        total_bytes: memory of the card that counts, as the driver or the runtime reports it.
        share_bytes: (least, most) that the engine lets itself have of it for everything.
        share_source: the rule: which fraction of what.
        terms: what is taken before the cache, within the share.
        outside: what is taken beside the share (CUDA graphs of engines that do not count them).
        cache_part: (numerator, denominator) of what is left that the cache gets, where an engine
            takes a part of the free memory and not of the card.
        seen_bytes: (least, most) that is there for the share and for what lies beside it; None
            where nothing is known of the rest.
        free_bytes: what is free before the server starts, where all that it takes must be: a check
            of its own, or an allocation that fails. None where the share is of what is free.
    """

    total_bytes: int
    share_bytes: tuple[int, int]
    share_source: str
    terms: tuple[Term, ...]
    outside: tuple[Term, ...] = ()
    cache_part: tuple[Positive, Positive] = (1, 1)
    seen_bytes: tuple[int, int] | None = None
    free_bytes: int | None = None

    def __post_init__(self) -> None:
        low, high = self.share_bytes
        if not 0 <= low <= high:
            raise InvalidValueError(f"a share of {low} to {high} B is no interval")
        if self.cache_part[0] > self.cache_part[1]:
            raise InvalidValueError(f"the cache cannot get {self.cache_part} of what is left")

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """What is left for the cache at least and at most; below 0 where it does not fit."""
        part, whole = self.cache_part
        low, high = (left * part // whole for left in self._left)
        if self.free_bytes is None:
            return low, high
        least, most = self.taken_bytes
        # What is not free cannot be taken: the server does not start.
        return (
            low if most <= self.free_bytes else min(low, self.free_bytes - most),
            high if least <= self.free_bytes else min(high, self.free_bytes - least),
        )

    @property
    def _left(self) -> tuple[int, int]:
        """What the terms leave of the share, least and most."""
        return (
            self.share_bytes[0] - sum(term.high_bytes for term in self.terms),
            self.share_bytes[1] - sum(term.low_bytes for term in self.terms),
        )

    @property
    def _kept(self) -> tuple[int, int]:
        """What of that the cache does not get, least and most."""
        part, whole = self.cache_part
        low, high = (max(0, left) for left in self._left)
        return low - low * part // whole, high - high * part // whole

    @property
    def taken_bytes(self) -> tuple[int, int]:
        """What the server takes with its cache, least and most."""
        low, high = self.share_bytes
        part, whole = self.cache_part
        least = sum(term.low_bytes for term in self.terms) * (whole - part)
        most = sum(term.high_bytes for term in self.terms) * (whole - part)
        return (low * part + least) // whole, cdiv(high * part + most, whole)

    @property
    def room_bytes(self) -> tuple[int, int] | None:
        """What stays free beside the cache, least and most; None where that is not known."""
        if self.seen_bytes is None:
            return None
        kept = self._kept
        # The share is one of what is seen: both are small, or both are large.
        return (
            self.seen_bytes[0] - self.share_bytes[0] + kept[0],
            self.seen_bytes[1] - self.share_bytes[1] + kept[1],
        )

    def leaves_room(self, *, sure: bool) -> bool:
        """Whether what lies beside the share has room, at its most (`sure`) or at its least."""
        room = self.room_bytes
        if room is None:
            return True
        if sure:
            return sum(term.high_bytes for term in self.outside) <= min(room)
        return sum(term.low_bytes for term in self.outside) <= max(room)
