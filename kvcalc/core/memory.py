"""What of a card an engine takes, and what of that is left for the cache: intervals with sources.

Weights that a file states are exact; activations, graphs and contexts are not known before a start,
so that every term is an interval, and so is what is left.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.values import NonNegative, Positive, Value

__all__ = [
    "TERM_NAMES",
    "End",
    "HostBudget",
    "HostPart",
    "MemoryBudget",
    "Term",
    "TermName",
    "gib_term",
    "processes",
    "require_ranks",
    "summed",
]

_GIB = 2**30
_SERVER, _WORKER = (_GIB, 4 * _GIB), (_GIB, 6 * _GIB)
_ENDLESS = 2**60
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=_ENDLESS)]

End = Literal["low", "middle", "high"]
"""Of what may be left for the cache: the least is sure, the most is possible."""

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
    """Host memory that an engine takes for one thing.

    Attributes:
        name: what it is.
        low_bytes: what it takes from the start.
        high_bytes: what it may grow to; None where it has no limit.
        source: the setting or rule.
        setting: the setting that bounds it, as the engine's own command calls it; empty for none.
        unit_bytes: bytes of one unit of that setting.
        is_default: nobody asked for that bound: it is the engine's own.
        per_cache: (numerator, denominator): so many bytes more for each byte of the GPUs' caches,
            where it grows with them.
        pinned: the kernel cannot take the pages back. False for mapped files (weights under mmap):
            they are read again from the disk when memory runs short, and no limit kills for them.
    """

    name: str
    low_bytes: _Bytes
    high_bytes: _Bytes | None
    source: str
    setting: str = ""
    unit_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1
    is_default: bool = False
    per_cache: tuple[NonNegative, Positive] = (0, 1)
    pinned: bool = True

    def with_cache(self, low_bytes: int, high_bytes: int) -> HostPart:
        """Return the part beside GPU caches of so many bytes, low and high."""
        part, whole = self.per_cache
        if not part:
            return self
        return msgspec.structs.replace(
            self,
            low_bytes=self.low_bytes + low_bytes * part // whole,
            high_bytes=None
            if self.high_bytes is None
            else self.high_bytes + high_bytes * part // whole,
            per_cache=(0, 1),
        )


def processes(gpus: int) -> HostPart:
    """Return the host memory of a Python server's processes, one of them for each of its GPUs."""
    return HostPart(
        name="processes",
        low_bytes=_SERVER[0] + gpus * _WORKER[0],
        high_bytes=_SERVER[1] + gpus * _WORKER[1],
        source="Python, torch and CUDA in the server's processes and in one for each of"
        f" {gpus} GPUs: a wide bound, not measured",
    )


class HostBudget(Value, frozen=True, kw_only=True):
    """Host memory of one server: all that it takes, against what it may have.

    Attributes:
        parts: what is taken.
        limit_bytes: the container's limit, or the host's memory; None where nobody says.
        limit_source: where the limit stands.
    """

    parts: tuple[HostPart, ...]
    limit_bytes: _Bytes | None = None
    limit_source: str = ""

    @property
    def low_bytes(self) -> int:
        """What is taken from the start, mapped files apart."""
        return sum(part.low_bytes for part in self.parts if part.pinned)

    @property
    def high_bytes(self) -> int | None:
        """What all parts may grow to, mapped files apart; None where one has no limit."""
        highs = [part.high_bytes for part in self.parts if part.pinned]
        known = [size for size in highs if size is not None]
        return sum(known) if len(known) == len(highs) else None

    @property
    def bounded_bytes(self) -> int | None:
        """What is taken where every part with a setting grows to it; None: one has no limit.

        Of what no setting bounds, what it takes from the start: its upper bound is not measured.
        """
        sizes = [p.high_bytes if p.setting else p.low_bytes for p in self.parts if p.pinned]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def fits(self) -> bool | None:
        """Whether all that settings allow has room; None where no limit is known."""
        if self.limit_bytes is None:
            return None
        return self.bounded_bytes is not None and self.bounded_bytes <= self.limit_bytes

    @property
    def may_fit(self) -> bool | None:
        """Whether what is taken from the start has room; None where no limit is known."""
        return None if self.limit_bytes is None else self.low_bytes <= self.limit_bytes


class Term(Value, frozen=True, kw_only=True):
    """One thing that takes memory of a GPU beside the cache.

    Attributes:
        name: which of TERM_NAMES.
        low_bytes, high_bytes: what it takes at least and at most; equal where it is exact.
        source: where this is known from: a file, an engine's rule (file, symbol), measured starts.
        label: what it is called where a budget has several of a name; empty: its name.
    """

    name: TermName
    low_bytes: int
    high_bytes: int
    source: str
    label: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.low_bytes <= self.high_bytes:
            raise InvalidValueError(
                f"{self.name}: {self.low_bytes} to {self.high_bytes} B is no interval"
            )

    @property
    def exact(self) -> bool:
        """Whether the term is one number."""
        return self.low_bytes == self.high_bytes


def gib_term(name: TermName, low: float, high: float, source: str, label: str = "") -> Term:
    """Return a term given in GiB."""
    low_bytes, high_bytes = int(low * _GIB), int(high * _GIB)
    return Term(name=name, low_bytes=low_bytes, high_bytes=high_bytes, source=source, label=label)


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

    At an end every term takes its most (`low`: what is left is the least), its least (`high`), or
    what lies between.

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
        free_bytes: what is free before the server starts, where all that it takes must be; None
            where others hold nothing, or the share is of what is free.
        before: what the process has taken beside the share before the engine asks what is free.
        checks_share: the engine refuses to start where its share is not free by then, whatever its
            cache takes.
        given_bytes: of the cache, where its size is set and not what the share leaves.
        servers: of this kind on the card, all of which it must hold.
    """

    total_bytes: int
    share_bytes: tuple[int, int]
    share_source: str
    terms: tuple[Term, ...]
    outside: tuple[Term, ...] = ()
    cache_part: tuple[Positive, Positive] = (1, 1)
    seen_bytes: tuple[int, int] | None = None
    free_bytes: int | None = None
    before: tuple[Term, ...] = ()
    checks_share: bool = False
    given_bytes: int | None = None
    servers: Positive = 1

    def __post_init__(self) -> None:
        low, high = self.share_bytes
        if not 0 <= low <= high:
            raise InvalidValueError(f"a share of {low} to {high} B is no interval")
        if self.cache_part[0] > self.cache_part[1]:
            raise InvalidValueError(f"the cache cannot get {self.cache_part} of what is left")

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """The cache at least and at most; below 0 where the terms take more than the share."""
        if self.given_bytes is not None:
            return self.given_bytes, self.given_bytes
        part, whole = self.cache_part
        low, high = (left * part // whole for left in self._shared)
        return low, high

    @property
    def left_bytes(self) -> tuple[int, int]:
        """What of the share neither terms nor cache take: terms + cache + this are the share.

        Below 0 where a cache that is given goes beyond the share.
        """
        (low, high), (least, most) = self._shared, self.cache_bytes
        return low - least, high - most

    @property
    def beside_bytes(self) -> tuple[int, int]:
        """What of the card is not the share's, at its most and at its least."""
        return self.total_bytes - self.share_bytes[0], self.total_bytes - self.share_bytes[1]

    @property
    def _shared(self) -> tuple[int, int]:
        """What the terms leave of the share, least and most."""
        return (
            self.share_bytes[0] - summed(self.terms, "low"),
            self.share_bytes[1] - summed(self.terms, "high"),
        )

    @property
    def room_bytes(self) -> tuple[int, int] | None:
        """What of the card is there for the servers, least and most; None: not known."""
        if self.seen_bytes is None:
            return None
        free = self.free_bytes
        low, high = (seen if free is None else min(seen, free) for seen in self.seen_bytes)
        return low, high

    def shortfall(self, end: End) -> int:
        """Return what the card lacks for all that is taken of it at an end; 0 or less: it has room.

        Whether the cache is large enough is another question. The share is one of what is seen:
        both are small, or both are large.
        """
        room = self.room_bytes
        if room is None:
            return 0
        found = [
            self._lack(end, share, there)
            for share, there in zip(self.share_bytes, room, strict=True)
        ]
        return max(found) if end == "low" else min(found) if end == "high" else sum(found) // 2

    def _lack(self, end: End, share: int, room: int) -> int:
        before, beside = summed(self.before, end), summed(self.outside, end)
        each = self.taken(end, share) + before + beside
        lack = each * self.servers - room
        if self.checks_share:  # the last of several asks for its share when the others have theirs
            lack = max(lack, each * (self.servers - 1) + before + share - room)
        return lack

    def taken(self, end: End, share: int) -> int:
        """Return what of a share the terms and the cache take."""
        terms = summed(self.terms, end)
        if self.given_bytes is not None:
            return terms + self.given_bytes
        part, whole = self.cache_part
        left = max(0, share - terms)
        return share - (left - left * part // whole)


def summed(terms: tuple[Term, ...], end: End) -> int:
    """Return what terms take together at an end: their most at `low`, their least at `high`."""
    low, high = sum(t.low_bytes for t in terms), sum(t.high_bytes for t in terms)
    return high if end == "low" else low if end == "high" else (low + high) // 2
