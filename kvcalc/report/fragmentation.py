"""Holes and what fits into them, for people."""

from __future__ import annotations

from kvcalc.core.results import Fragmentation
from kvcalc.core.units import format_count, format_ratio, format_times
from kvcalc.report.allocator import allocator_blocks
from kvcalc.report.blocks import Block, Grid, Text
from kvcalc.report.cells import NONE, Size, exact, formula, maybe

__all__ = ["fragmentation_blocks"]


def fragmentation_blocks(result: Fragmentation, size: Size) -> list[Block]:
    """Return the blocks of one answer about holes."""
    of_max = result.sequences_of_max
    low, high = of_max.bounds
    in_holes = format_count(low) if low == high else f"{format_count(low)} to {format_count(high)}"
    least, most = result.unusable_bounds
    unusable = (
        format_ratio(least) if least == most else f"{format_ratio(least)} to {format_ratio(most)}"
    )
    ratio = result.external_fragmentation_ratio
    rows = [
        ("free", exact(result.free_bytes, size)),
        ("largest hole", exact(result.largest_free_bytes, size)),
        ("holes", maybe(result.holes)),
        ("request", exact(result.request_bytes, size)),
        ("fits in one piece", "yes" if result.fits_contiguous else "no"),
        ("fits in blocks", "yes" if result.fits_paged else "no"),
        ("free / request", f"{format_times(result.free_bytes, result.request_bytes)} x"),
        ("external fragmentation", NONE if ratio is None else format_ratio(ratio)),
        ("unusable for the request", unusable if result.free_bytes else NONE),
        (
            f"sequences of {format_count(of_max.max_model_len)} ({result.model})",
            f"{size(of_max.bytes)} each",
        ),
        ("  in the request", format_count(of_max.in_request)),
        ("  in the free memory", format_count(of_max.in_free)),
        ("  in its holes, contiguous", in_holes),
    ]
    told: list[Block] = []
    if result.allocator is not None:
        told = allocator_blocks(result.allocator, size)
    return [
        Text((result.verdict,)),
        Grid(("", ""), tuple(rows)),
        *told,
        Text((f"assumed: {result.assumes}",)),
        *formula(result.explain),
    ]
