"""Holes and what fits into them, for people."""

from __future__ import annotations

from kvcalc.allocator.request import RequestFit
from kvcalc.allocator.segments import stream_name
from kvcalc.allocator.state import AllocatorState, HoleGroup
from kvcalc.answers.results import Fragmentation
from kvcalc.core.units import format_count, format_number_of, format_ratio, format_times
from kvcalc.report.blocks import Bar, Bars, Block, Grid, Heading, Text
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


# An allocator's own account of its holes, for people: groups, sizes, and one request.

_MOST_GROUPS = 40
_TOLD = {
    "snapshot": "PyTorch's allocator",
    "jax": "JAX's allocator",
    "bfc": "the BFC allocator",
}


def allocator_blocks(state: AllocatorState, size: Size) -> list[Block]:
    """Return the blocks of one device."""
    rows = [
        ("reserved", exact(state.reserved_bytes, size)),
        ("allocated", exact(state.allocated_bytes, size)),
    ]
    if state.awaiting_bytes:
        rows.append(("given back, awaited by a stream", exact(state.awaiting_bytes, size)))
    if state.requested_bytes is not None:
        rounding = state.allocated_bytes + state.awaiting_bytes - state.requested_bytes
        rows.append(("rounding of what is in use", exact(rounding, size)))
    if state.source == "snapshot":
        rows += [
            ("free, goes back when emptied", exact(state.releasable_bytes, size)),
            ("free in segments partly in use", exact(state.split_free_bytes, size)),
        ]
    if state.private_free_bytes:
        rows.append(("free in private pools", exact(state.private_free_bytes, size)))
    if state.request is not None:
        rows += _request(state.request, size)
    index = state.fragmentation_index
    if state.histogram or state.source == "snapshot":
        rows.append(
            ("fragmentation index (Linux)", "a hole fits" if index is None else f"{index:.3f}")
        )
    blocks: list[Block] = [
        Heading(f"device {state.device}, as {_TOLD[state.source]} tells it"),
        Grid(("", ""), tuple(rows)),
    ]
    if state.groups:
        blocks.append(_groups(state.groups, size))
    if state.histogram:
        blocks += [
            Text(("holes by size (full: those that serve the request)",)),
            Bars(
                tuple(
                    Bar(
                        label=f"from {size(entry.from_bytes)}",
                        used=entry.fitting_bytes,
                        wasted=entry.bytes - entry.fitting_bytes,
                        caption=f"{format_number_of(entry.holes, 'hole')}, {size(entry.bytes)}",
                    )
                    for entry in state.histogram
                )
            ),
        ]
    blocks += _remarks(state, size)
    return blocks


def _request(fit: RequestFit, size: Size) -> list[tuple[str, str]]:
    after = fit.fits_after_empty_cache
    rows = [
        ("largest hole for the request", exact(fit.largest_usable_bytes, size)),
        ("fits now", "yes" if fit.fits_now else "no"),
        (
            "fits after empty_cache",
            f"with {size(fit.device_free_needed_bytes)} free on the device"
            if after is None
            else ("yes" if after else "no"),
        ),
    ]
    if fit.requests_in_free > 1:
        taken = f"{format_count(fit.requests_in_holes)} of {format_count(fit.requests_in_free)}"
        rows.append(("such requests in the holes", f"{taken} by bytes"))
    return rows


def _groups(groups: tuple[HoleGroup, ...], size: Size) -> Grid:
    largest_first = sorted(groups, key=lambda group: -group.free_bytes)
    rows = tuple(
        (
            stream_name(group.stream),
            group.pool,
            group.size_class,
            format_count(group.segments),
            size(group.reserved_bytes),
            size(group.free_bytes),
            format_count(group.holes),
            size(group.largest_free_bytes),
            maybe(group.releasable_bytes or None, size),
        )
        for group in largest_first[:_MOST_GROUPS]
    )
    columns = (
        *("stream", "pool", "class", "segments", "reserved", "free", "holes", "largest"),
        "goes back",
    )
    return Grid(columns, rows, text_columns=frozenset({1, 2}))


def _remarks(state: AllocatorState, size: Size) -> list[Block]:
    lines = []
    if state.quadratic_ratio is not None:
        lines.append(f"fragmentation by squares: {format_ratio(state.quadratic_ratio)}")
    if len(state.groups) > _MOST_GROUPS:
        lines.append(f"{len(state.groups) - _MOST_GROUPS} further groups are in the JSON")
    if state.expandable_segments:
        lines.append(
            f"{format_number_of(state.expandable_segments, 'segment')} can grow in place"
            " (expandable_segments): a larger request takes only what is missing behind the last"
            " free block"
        )
    if state.oom_events:
        last = state.oom_events[-1]
        lines.append(
            f"the trace tells of {format_number_of(len(state.oom_events), 'failed allocation')}; at"
            f" the last, of {size(last.asked_bytes)}, the device had"
            f" {size(last.device_free_bytes)} free"
        )
    return [Text(tuple(lines))] if lines else []
