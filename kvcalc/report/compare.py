"""Paged against contiguous, for people: a table and bars."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import Comparison
from kvcalc.core.units import format_count, format_number_of, format_ratio
from kvcalc.core.waste import WASTE_NAMES
from kvcalc.report.blocks import Bar, Bars, Block, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size, exact, formula

__all__ = ["paging_blocks"]


def paging_blocks(results: Sequence[Comparison], size: Size) -> list[Block]:
    """Show one table a model and maximum, with a paged column for every block size."""
    blocks: list[Block] = []
    group: list[Comparison] = []
    for result in results:
        # Blocks of one model follow one another; its first block again is another model.
        same = group and (result.model, result.max_model_len, result.flags) == (
            group[0].model,
            group[0].max_model_len,
            group[0].flags,
        )
        if not same or result.block_size in {c.block_size for c in group}:
            blocks.extend(_comparison(group, size) if group else [])
            group = []
        group.append(result)
    blocks.extend(_comparison(group, size) if group else [])
    return blocks


def _comparison(group: Sequence[Comparison], size: Size) -> list[Block]:
    one = group[0]
    load = one.workload
    requests = format_number_of(load.requests, "request")
    apart = f" ({' '.join(one.flags)})" if one.flags else ""
    heading = (
        f"{one.model}, {one.kv_cache_dtype}, engine {one.engine}{apart}: {requests}"
        f" ({load.name}), maximum {format_count(one.max_model_len)} tokens"
    )
    lengths = (
        f"lengths: mean {load.mean_tokens:,.1f}, p50 {format_count(load.p50_tokens)},"
        f" p95 {format_count(load.p95_tokens)}, longest {format_count(load.longest_tokens)}"
    )
    if load.over_requests:
        done = {"clip": "cut to the maximum", "exclude": "left out", "keep": "kept as they are"}
        lengths += f"; {format_count(load.over_requests)} over the maximum, {done[load.over]}"
    paged = tuple(
        "paged" if c.block_size is None else f"paged, block {c.block_size}" for c in group
    )
    totals = [one.contiguous_total, *(c.paged_total for c in group)]
    turns = [c.at_once for c in group]
    rows: list[tuple[str, ...]] = [
        (
            "reserved in turn" if any(turns) else "reserved",
            *(size(t.reserved_bytes) for t in totals),
        ),
        ("used", *(size(t.used_bytes) for t in totals)),
        ("wasted", *(size(t.waste_bytes) for t in totals)),
    ]
    for name in WASTE_NAMES:
        parts = [getattr(t.waste, f"{name}_bytes") for t in totals]
        if any(parts):
            label = "  " + name.replace("_", " ")
            rows.append((label, *(size(p) if p else NONE for p in parts)))
    rows.append(("waste", *(format_ratio(t.waste_ratio) for t in totals)))
    gains = [NONE if c.reserved_gain is None else f"{c.reserved_gain:.2f} x" for c in group]
    rows.append(("contiguous / paged", "", *gains))
    if any(turns):
        at_once = (NONE if turn is None else size(turn.allocated_bytes) for turn in turns)
        rows.append(("allocated at once", NONE, *at_once))
    if one.concurrency is not None:
        fits = [c.concurrency for c in group if c.concurrency is not None]
        memory = size(one.concurrency.kv_cache_bytes)
        rows.append(
            (
                f"fit in {memory}",
                format_count(one.concurrency.contiguous),
                *(format_count(f.paged) for f in fits),
            )
        )
    names = ("contiguous", *paged)
    bars = tuple(
        Bar(name, t.used_bytes, t.waste_bytes, f"{format_ratio(t.waste_ratio)} wasted")
        for name, t in zip(names, totals, strict=True)
    )
    return [
        Heading(heading),
        Text((lengths,)),
        Bars(bars),
        Grid(("", *names), tuple(rows)),
        _bounds(group, size),
        *formula(one.explain),
    ]


def _bounds(group: Sequence[Comparison], size: Size) -> Text:
    one = group[0]
    lines = []
    if one.bytes_per_token is not None:
        lines.append(f"a token: {exact(one.bytes_per_token, size)}")
    if one.state_bytes:
        lines.append(f"state a sequence, in both: {exact(one.state_bytes, size)}")
    reserved = one.contiguous.reserved_bytes_per_request
    lines.append(f"contiguous reserves a request: {exact(reserved, size)}")
    for c in group:
        if c.paged.block_bytes is None or c.block_size is None:
            continue
        lines.append(f"a block of {format_count(c.block_size)}: {exact(c.paged.block_bytes, size)}")
        tokens = c.paged.max_tail_tokens
        # Windows and compressed caches have blocks, and tails, of their own.
        whole = c.paged.max_tail_bytes * c.block_size == tokens * c.paged.block_bytes
        lines.append(
            f"  worst tail: {format_number_of(tokens, 'token')}"
            f"{'' if whole else ' in a block of every group'} ="
            f" {exact(c.paged.max_tail_bytes, size)};"
            f" here {size(c.paged.mean_tail_bytes)} on average"
        )
    lines.extend(
        f"{format_count(turn.requests)} of the {format_number_of(one.workload.requests, 'request')}"
        f" run at once, in the {size(turn.allocated_bytes)} that {one.engine} allocates; the others"
        " take their places in turn"
        for turn in dict.fromkeys(c.at_once for c in group)
        if turn is not None
    )
    if one.all_ranks.num_gpus > 1:
        lines.append(
            f"on all {one.all_ranks.num_gpus} GPUs: contiguous"
            f" {size(one.all_ranks.contiguous_reserved_bytes)}, paged"
            f" {' / '.join(size(c.all_ranks.paged_reserved_bytes) for c in group)}, used"
            f" {size(one.all_ranks.used_bytes)} (the table shows the fullest GPU)"
        )
    if one.concurrency is not None:
        gains = [
            f"{c.concurrency.gain:.2f} x" if c.concurrency and c.concurrency.gain else NONE
            for c in group
        ]
        lines.append(
            f"requests at once in {size(one.concurrency.kv_cache_bytes)},"
            " each at its own full length:"
            f" {' / '.join(f'{c.concurrency.paged_mean:,.1f}' for c in group if c.concurrency)}"
            f" paged against {format_count(one.concurrency.contiguous)} ({' / '.join(gains)})"
        )
        places = one.concurrency.max_sequences
        if places is not None and one.concurrency.paged >= places:
            lines.append(
                f"  {one.engine} has {format_number_of(places, 'place')} for sequences, however"
                " many the cache has room for"
            )
    return Text(tuple(lines))
