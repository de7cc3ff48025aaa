"""What the NVIDIA driver counts on each card, as probe results."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kvcalc.core.probed import MeasuredBytes, ProbeResult
from kvcalc.core.units import format_bytes
from kvcalc.measure.probe.nvml import Card, cards

__all__ = ["driver_results"]


def driver_results() -> Iterator[ProbeResult]:
    """Yield one result a card.

    Raises:
        UnavailableError: no NVIDIA driver.
    """
    for card in cards():
        yield _result(card)


def _result(card: Card) -> ProbeResult:
    own = next((used for pid, used in card.processes if pid == os.getpid()), None)
    told = [used for _, used in card.processes if used is not None]
    return ProbeResult(
        backend="nvml",
        device=f"{card.number}: {card.name}",
        kind="cuda",
        model=None,
        engine=None,
        kv_cache_dtype=None,
        block_size=None,
        max_model_len=None,
        versions={"driver": card.driver},
        measured=MeasuredBytes(process_bytes=own, device_bytes=card.used),
        engine_says={
            "total": card.total,
            "reserved by the driver": card.reserved,
            "used": card.used,
            "free": card.free,
            "of processes that are told": sum(told),
        },
        verdict=(
            f"{format_bytes(card.free)} of {format_bytes(card.total)} are free; the driver keeps"
            f" {format_bytes(card.reserved)}, compute processes hold {format_bytes(sum(told))}"
            f" ({len(card.processes)})."
        ),
    )
