"""What a token and a sequence cost, for people."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import Growth, PerToken, SequenceSize
from kvcalc.core.units import format_count, format_number_of
from kvcalc.report.blocks import Block, Formula, Grid, Heading
from kvcalc.report.cells import NONE, Size, layer_grid, maybe

__all__ = ["per_token_blocks"]


def per_token_blocks(results: Sequence[PerToken], size: Size) -> list[Block]:
    """Return one column a model, the layers of each, and the formulas."""
    blocks: list[Block] = []
    rows: list[tuple[str, ...]] = []

    def row(label: str, cells: Sequence[str]) -> None:
        if any(cell != NONE for cell in cells):
            rows.append((label, *cells))

    row("KV cache dtype", [r.kv_cache_dtype for r in results])
    row("bytes a token", [_growth(r.bytes_per_token, r.growth) for r in results])
    row("", [maybe(r.bytes_per_token, size) for r in results])
    row(
        "past windows",
        [
            _growth(r.bytes_per_token_past_windows, r.growth_past_windows)
            if r.growth_past_windows != r.growth
            else NONE
            for r in results
        ],
    )
    row(
        "on all GPUs",
        [maybe(r.bytes_per_token_all_ranks) if r.num_gpus > 1 else NONE for r in results],
    )
    row("state a sequence", [maybe(r.state_bytes or None) for r in results])
    row("", [maybe(r.state_bytes or None, size) for r in results])
    row("encoder a sequence", [maybe(r.encoder_bytes or None) for r in results])
    row(
        "block",
        [
            maybe(r.block_size, lambda n: format_number_of(n, "token")) if r.block_bytes else NONE
            for r in results
        ],
    )
    row(
        "  of the sequence",
        [
            maybe(r.sequence_tokens_per_block, lambda n: format_number_of(n, "token"))
            if r.block_bytes and r.sequence_tokens_per_block != r.block_size
            else NONE
            for r in results
        ],
    )
    row("bytes a block", [maybe(r.block_bytes) for r in results])
    for i, sequence in enumerate(results[0].sequences):
        label = format_number_of(sequence.tokens, "token")
        row(label, [format_count(r.sequences[i].bytes) for r in results])
        row("", [size(r.sequences[i].bytes) for r in results])
        reserved = "in whole blocks" if results[0].engine == "none" else "the engine reserves"
        row(f"  {reserved}", [_allocated(r.sequences[i]) for r in results])
    blocks.append(Grid(("", *(" ".join((r.model, *r.flags)) for r in results)), tuple(rows)))
    blocks.extend(
        layer_grid(r, named=len(results) > 1)
        for r in results
        if len(r.layers) > 1 or any(group.keeps != "every token" for group in r.layers)
    )
    for r in results:
        if r.explain:
            blocks.append(Heading(f"{' '.join((r.model, *r.flags))}: the formula"))
            blocks.append(Formula(r.explain))
    return blocks


def _allocated(sequence: SequenceSize) -> str:
    if sequence.allocated_bytes == sequence.bytes:
        return NONE
    return format_count(sequence.allocated_bytes)


def _growth(whole: int | None, growth: Growth) -> str:
    if whole is not None:
        return format_count(whole)
    return f"{format_count(growth.bytes)} in {growth.tokens}"
