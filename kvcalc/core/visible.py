"""How much of a card's memory a runtime sees: less than the driver reports, by card.

A fraction such as gpu_memory_utilization is of what the runtime sees: cudaMemGetInfo's total, which
leaves out what the driver and error correction keep. Start-up logs print it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import NotModelledError
from kvcalc.core.memory import MemoryBudget, Term, gib_term
from kvcalc.core.units import format_bytes

__all__ = [
    "DRIVER_CONTEXT",
    "Visible",
    "context_term",
    "driver_context",
    "left_free",
    "named_card",
    "visible",
    "whole_card",
]

_GIB = 2**30

_MEASURED = {
    "a10": (22.05, 22.08),
    "a10g": (22.05, 22.08),
    "a100-40gb": (39.38, 39.57),
    "a100-80gb": (79.13, 79.26),
    "a100-80gb-pcie": (79.13, 79.26),
    "b200": (178.34, 178.37),
    "dgx-spark": (119.60, 121.70),
    "gb200": (184.30, 184.33),
    "gb300": (276.60, 276.64),
    "h100-80gb": (79.09, 79.26),
    "h100-pcie": (79.09, 79.26),
    "h200": (139.79, 139.82),
    "l4": (22.02, 22.07),
    "l40": (44.38, 44.53),
    "l40s": (44.38, 44.53),
    "mi300x": (191.68, 191.70),
    "rtx-3090": (23.55, 23.70),
    "rtx-3090-ti": (23.51, 23.70),
    "rtx-4090": (23.51, 23.66),
    "rtx-5080": (15.50, 15.53),
    "rtx-5090": (31.35, 31.40),
    "rtx-6000-ada": (47.40, 47.54),
    "rtx-a6000": (47.40, 47.54),
    "rtx-pro-6000": (94.96, 95.02),
    "t4": (14.55, 14.76),
    "v100-16gb": (15.76, 15.79),
    "v100-32gb": (31.73, 31.75),
}
"""GiB that the runtime sees, least and most, as public start-up logs and out-of-memory texts print
them (`Free memory on device (free/total GiB)`, `total_gpu_memory`, `total capacity`)."""

_KEPT = ((0.25, 0.002), (0.45, 0.006))
"""What the driver keeps of other cards, least and most: GiB, and a part of the memory."""

_KEPT_BY_HIP = 0.5

DRIVER_CONTEXT = (0.25, 1.05)
"""GiB that a process has taken of a CUDA card before it loads anything: the driver's context, as
starts of SGLang and vLLM in public logs print what is free by then (`avail mem`, `Free memory on
device`): 0.41 to 0.55 of an H100, an L40S or a 24 GB card, 0.8 to 1.0 of the largest ones, and 0.94
of 24 GB under WSL."""

_CONTEXT_PARTS = (0.01, 0.045)
"""Parts of a small card that it does not exceed, at its least and at its most: such cards have
fewer multiprocessors to keep local memory for. One report of 14.70 GiB names no card."""


class Visible(NamedTuple):
    """The memory that counts.

    Attributes:
        low_bytes, high_bytes: what the runtime sees at least and at most.
        what: which memory it is, and where that is known from.
    """

    low_bytes: int
    high_bytes: int
    what: str


def named_card(deployment: Deployment) -> GpuSpec:
    """Return the card that a deployment names.

    Raises:
        UnsupportedError: it names none.
    """
    gpu = deployment.gpu
    if not isinstance(gpu, GpuSpec):
        raise NotModelledError(
            "what a card leaves for the cache cannot be told without the card",
            hint="name it: --gpu (kvcalc gpus lists them)",
        )
    return gpu


def visible(gpu: GpuSpec) -> Visible:
    """Return the memory of a GPU, or of a slice of one, that its runtime sees.

    Memory shared with the host counts whole: what the host itself holds is not known here. Apple's
    figure is the working set that Metal recommends, and is taken as it is.
    """
    total = gpu.memory_bytes
    if gpu.memory_kind == "unified":
        shared = "memory that the host shares, all of it"
        if gpu.name in _MEASURED:
            return _measured(gpu, f"{shared}, as start-up logs print it for")
        return Visible(total, total, f"{shared}, as {gpu.name}'s preset states it")
    if gpu.name in _MEASURED:
        return _measured(gpu, "what the runtime sees, as start-up logs print it for")
    if gpu.compute_capability is None:
        low = max(0, total - int(_KEPT_BY_HIP * _GIB))
        return Visible(low, total, f"what the driver of {gpu.name} reports, less at most 0.5 GiB")
    low, high = (
        max(0, total - int((fixed + part * total / _GIB) * _GIB)) for fixed, part in reversed(_KEPT)
    )
    return Visible(
        low,
        high,
        f"what the driver of {gpu.name} reports, less what CUDA keeps of cards of that size",
    )


def _measured(gpu: GpuSpec, what: str) -> Visible:
    low, high = (int(gib * _GIB) for gib in _MEASURED[gpu.name])
    if gpu.memory_kind == "dedicated":
        # A slice of a card that goes by the card's name sees no more than it has.
        low, high = min(low, gpu.memory_bytes), min(high, gpu.memory_bytes)
    return Visible(low, high, f"{what} {gpu.name}")


def left_free(gpu: GpuSpec, free_bytes: int | None) -> Visible:
    """Return what a server finds free of a card: all that is seen, or what others leave of it.

    Args:
        gpu: the card.
        free_bytes: what is free before the server starts; None where it is alone.
    """
    seen = visible(gpu)
    if free_bytes is None:
        return seen
    low, high = min(seen.low_bytes, free_bytes), min(seen.high_bytes, free_bytes)
    return Visible(low, high, f"the {format_bytes(free_bytes)} that others leave free")


def whole_card(
    gpu: GpuSpec,
    said: str,
    terms: tuple[Term, ...],
    *,
    free_bytes: int | None = None,
    outside: tuple[Term, ...] = (),
    part: Fraction = Fraction(1),
) -> MemoryBudget:
    """Return the budget of an engine that may have all of what is free.

    Args:
        gpu: the card.
        said: what of it the cache gets, in words, behind the name of the memory.
        terms: what is taken before the cache.
        free_bytes: what is free before the server starts; None where it is alone.
        outside: what is taken beside.
        part: what the cache gets of the rest.
    """
    seen = left_free(gpu, free_bytes)
    return MemoryBudget(
        total_bytes=gpu.memory_bytes,
        share_bytes=(seen.low_bytes, seen.high_bytes),
        share_source=f"all of {seen.what}{said}",
        terms=terms,
        outside=outside,
        cache_part=(part.numerator, part.denominator),
        seen_bytes=(seen.low_bytes, seen.high_bytes),
    )


def driver_context(gpu: GpuSpec) -> tuple[float, float]:
    """Return the GiB that a process takes of a CUDA card before it loads anything."""
    if gpu.memory_kind == "unified":
        return 0.0, 0.0
    card = gpu.memory_bytes / _GIB
    low, high = (
        min(most, card * part) for most, part in zip(DRIVER_CONTEXT, _CONTEXT_PARTS, strict=True)
    )
    return low, high


def context_term(gpu: GpuSpec, dedicated: tuple[float, float], shared: tuple[float, float]) -> Term:
    """Return what the driver's context and kernels take, in GiB, by whose memory it is."""
    span = shared if gpu.memory_kind == "unified" else dedicated
    return gib_term("context", *span, "the driver's context and kernels: not measured")
