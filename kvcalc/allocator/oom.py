"""What an out-of-memory text says, and what follows from it: arithmetic on printed figures.

A text prints two decimals of a binary unit, so each figure is a range of 0.005 units to either
side. The verdict rests on the figures as printed; where the ranges allow another, that is said.
"""

from __future__ import annotations

from kvcalc.allocator import oom_words as words
from kvcalc.allocator.oom_values import (
    Amount,
    Classification,
    OomText,
    OutOfMemory,
    Verdict,
    free_at_most,
    own_pool,
    reserved_bytes,
)
from kvcalc.core.units import UnitSystem

__all__ = ["judge"]

_DRIVER = 2**30  # of firmware, driver contexts and libraries, at most about this much
_FULL = 50  # a fiftieth of the card: holes smaller than that are not what fills it


def judge(text: OomText, *, units: UnitSystem = "binary") -> OutOfMemory:
    """Say what an out-of-memory text means.

    Args:
        text: its figures.
        units: how sizes are printed.
    """
    classification, certain = _classified(text)
    others = _others(text)
    verdict = _verdict(text, classification, others)
    shortfall = _shortfall(text)
    return OutOfMemory(
        text=text,
        verdict=verdict,
        classification=classification,
        certain=certain,
        shortfall_bytes=shortfall,
        other_processes_bytes=others,
        expandable_segments=_expandable(text, verdict),
        summary=words.summary(text, verdict, shortfall, units),
        arithmetic=tuple(words.arithmetic(text, others, certain=certain, units=units)),
        advice=tuple(words.advice(text, verdict, full=_nearly_full(text))),
    )


def _classified(text: OomText) -> tuple[Classification, bool]:
    """Compare what was asked for with what was free and cached, nominally and at the ranges."""
    asked, free, cached = text.asked, text.free, text.unallocated
    if asked is None or (free is None and cached is None):
        return "unknown", False
    if free is None and not own_pool(text):
        return _without_free(text, asked)
    found = {
        _compared(
            getattr(asked, one),
            getattr(free, other) if free else 0,
            getattr(cached, other) if cached else 0,
        )
        for one, other in (("bytes", "bytes"), ("low", "high"), ("high", "low"))
    }
    nominal = _compared(asked.bytes, free.bytes if free else 0, cached.bytes if cached else 0)
    return nominal, len(found) == 1


def _without_free(text: OomText, asked: Amount) -> tuple[Classification, bool]:
    """Compare where the text does not tell what the device had free: that may be 0 or all else.

    Only what holds either way is said.
    """
    cached, most = text.unallocated, free_at_most(text)
    if cached is None:
        return "unknown", False
    if most is not None and most.bytes + cached.bytes < asked.bytes:
        return "true exhaustion", most.high + cached.high < asked.low
    if cached.bytes >= asked.bytes:
        return "fragmentation-possible", cached.low >= asked.high
    return "unknown", False


def _compared(asked: int, free: int, cached: int) -> Classification:
    if free >= asked:
        return "free alone is enough on paper"
    return "fragmentation-possible" if free + cached >= asked else "true exhaustion"


def _verdict(text: OomText, classification: Classification, others: int | None) -> Verdict:
    asked, capacity, allocated = text.asked, text.capacity, text.allocated
    if capacity and allocated and allocated.low > capacity.high:
        return "shared_memory_spill"
    if asked and capacity and asked.low > capacity.high:
        return "impossible"
    if asked is None or classification == "unknown":
        return "unknown"
    if text.allowed and _over_allowed(text, asked):
        return "fraction_limit"
    if classification == "free alone is enough on paper":
        # Figures are taken after the failure: who holds most of the device may have let some go.
        held = others is not None and text.free is not None and others > text.free.bytes
        return "other_process" if held else "free_is_enough"
    if classification == "fragmentation-possible":
        enough = text.unallocated is not None and text.unallocated.bytes >= asked.bytes
        return "fragmentation_possible" if enough else "mixed"
    missing = _shortfall(text)
    if others is not None and missing is not None and others >= missing[0]:
        return "other_process"
    return "shortage"


def _over_allowed(text: OomText, asked: Amount) -> bool:
    """Whether the process may not take so much more, whatever the device has free."""
    if text.allowed is None:
        return False
    taken = text.reserved
    if taken is not None:
        return taken.high + asked.high > text.allowed.low
    if text.allocated is None:
        return True
    cached = text.unallocated.high if text.unallocated else 0
    beside = text.other_allocations.high if text.other_allocations else 0
    return text.allocated.high + cached + beside + asked.high > text.allowed.low


def _shortfall(text: OomText) -> tuple[int, int] | None:
    """Return what is missing at least and at most, were everything free in one piece.

    Where the text does not tell what was free, all that this allocator had not taken counts as
    free: so much is missing even then.
    """
    if text.asked is None or (text.free is None and text.unallocated is None):
        return None
    free = text.free or free_at_most(text)
    if free is None and not own_pool(text):
        return None
    parts = [part for part in (free, text.unallocated) if part is not None]
    most = text.asked.high - sum(part.low for part in parts)
    least = text.asked.low - sum(part.high for part in parts)
    nominal = text.asked.bytes - sum(part.bytes for part in parts)
    return (max(0, least), most) if nominal > 0 else None


def _others(text: OomText) -> int | None:
    """Return what other processes hold: as listed, else what nothing else accounts for.

    Of a remainder, a GiB is taken for the driver's.
    """
    listed = [process.memory.bytes for process in text.processes if not process.own]
    if listed:
        return sum(listed)
    if text.capacity is None or text.free is None or text.backend == "mps":
        return None
    own = text.process or next((p.memory for p in text.processes if p.own), None)
    taken = reserved_bytes(text) if own is None else own.bytes
    if taken is None:
        return None
    return max(0, text.capacity.bytes - text.free.bytes - taken - _DRIVER)


def _nearly_full(text: OomText) -> bool:
    """Whether the cached memory is so small a part of the device that the device is full."""
    if text.capacity is None or text.unallocated is None:
        return False
    spare = text.unallocated.bytes + (text.free.bytes if text.free else 0)
    return spare * _FULL < text.capacity.bytes


def _expandable(text: OomText, verdict: Verdict) -> bool | None:
    if text.backend not in words.SETTINGS or not text.wording.startswith("pytorch"):
        return None
    if verdict in ("unknown", "free_is_enough") or text.unallocated is None:
        return None
    return verdict in ("fragmentation_possible", "mixed")
