"""The figures of an out-of-memory text, and the verdict on them, as values.

A text prints two decimals of a binary unit, so each figure is a range of 0.005 units to either
side of what is printed.
"""

from __future__ import annotations

from typing import Literal

from kvcalc.core.values import Value

__all__ = [
    "Amount",
    "Classification",
    "OomText",
    "OutOfMemory",
    "ProcessMemory",
    "Verdict",
    "free_at_most",
    "own_pool",
    "reserved_bytes",
]

Verdict = Literal[
    "fragmentation_possible",
    "mixed",
    "shortage",
    "other_process",
    "fraction_limit",
    "impossible",
    "shared_memory_spill",
    "free_is_enough",
    "unknown",
]
"""The cause that the figures point to, the most telling one."""

Classification = Literal[
    "fragmentation-possible", "true exhaustion", "free alone is enough on paper", "unknown"
]
"""The request against free memory and cached memory, nothing else considered."""


class Amount(Value, frozen=True, kw_only=True):
    """Bytes as a text prints them: the figure, and the range that prints so."""

    text: str
    bytes: int
    low: int
    high: int


class ProcessMemory(Value, frozen=True, kw_only=True):
    """What a process holds of the device; `own` where it is the one that failed."""

    name: str
    memory: Amount
    own: bool


class OomText(Value, frozen=True, kw_only=True):
    """The figures of one out-of-memory text; None where it has none.

    Attributes:
        wording: which text it is: pytorch-1.4, pytorch-2.2, mps, vllm, ggml, xla, bfc, ...
        backend: cuda, hip, npu, xpu, mps, vulkan, tpu, ...
        device: as the text numbers or names it.
        what: what could not be had, where the text or its surroundings tell (KV cache, ...).
        asked: what was asked for.
        capacity: all of the device.
        free: what the device had free.
        allocated: what the allocator had handed out.
        reserved: what the allocator had taken, handed out or not.
        unallocated: of that, what it had not handed out.
        largest: the largest hole of it.
        private_pools: what is bound in private pools (CUDA graphs).
        allowed: what this process may take (a fraction limit).
        process: all that this process holds.
        other_allocations: what this process holds beside its allocator.
    """

    wording: str
    backend: str
    device: str | None = None
    what: str | None = None
    asked: Amount | None = None
    capacity: Amount | None = None
    free: Amount | None = None
    allocated: Amount | None = None
    reserved: Amount | None = None
    unallocated: Amount | None = None
    largest: Amount | None = None
    private_pools: Amount | None = None
    allowed: Amount | None = None
    process: Amount | None = None
    other_allocations: Amount | None = None
    processes: tuple[ProcessMemory, ...] = ()


class OutOfMemory(Value, frozen=True, kw_only=True):
    """An out-of-memory text and the verdict on it.

    Attributes:
        classification: the request against free and cached memory alone.
        certain: the ranges of the printed figures allow no other classification.
        shortfall_bytes: what is missing though all cached memory were one piece: least and most
            that the rounding allows; None where nothing is missing, or it cannot be told.
        other_processes_bytes: what other processes hold, as listed or by subtraction.
        expandable_segments: whether PyTorch's setting can help; None where it does not apply.
        arithmetic: the comparison, one line each.
        advice: what to change, the first thing first.
    """

    text: OomText
    verdict: Verdict
    classification: Classification
    certain: bool
    shortfall_bytes: tuple[int, int] | None
    other_processes_bytes: int | None
    expandable_segments: bool | None
    summary: str
    arithmetic: tuple[str, ...]
    advice: tuple[str, ...]


def reserved_bytes(text: OomText) -> int | None:
    """Return what the allocator had taken, as told or added up; None where it is not known."""
    if text.reserved is not None:
        return text.reserved.bytes
    if text.allocated is None or text.unallocated is None:
        return None
    return text.allocated.bytes + text.unallocated.bytes


def own_pool(text: OomText) -> bool:
    """Whether an allocator failed that took its memory once, whatever the device has free."""
    return text.wording in ("xla", "bfc")


def free_at_most(text: OomText) -> Amount | None:
    """Return what the device had free at most, where the text does not tell what it had.

    That is all of the device but what this allocator had taken; None where that is not known, or
    the text tells what was free.
    """
    if text.free is not None or text.capacity is None or own_pool(text):
        return None
    parts = [text.reserved] if text.reserved else [text.allocated, text.unallocated]
    taken = [part for part in parts if part is not None]
    if not taken:
        return None
    capacity = text.capacity
    return Amount(
        text=" - ".join((capacity.text, *(part.text.replace(" + ", " - ") for part in taken))),
        bytes=max(0, capacity.bytes - sum(part.bytes for part in taken)),
        low=max(0, capacity.low - sum(part.high for part in taken)),
        high=max(0, capacity.high - sum(part.low for part in taken)),
    )
