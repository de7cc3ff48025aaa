"""How figures stand in tables, whatever the result: one spelling of each."""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.answers.results import PerToken, PresetDetail
from kvcalc.core.units import format_count
from kvcalc.report.blocks import Block, Formula, Grid, Heading

__all__ = ["NONE", "Size", "exact", "formula", "layer_grid", "maybe"]

Size = Callable[[int], str]
"""How a number of bytes is written."""

NONE = "-"
"""What is not there."""


def exact(value: int, size: Size) -> str:
    """Return every digit, and the size in its unit where that says more."""
    short = size(value)
    digits = f"{format_count(value)} B"
    return digits if short == digits else f"{digits} ({short})"


def maybe(value: int | None, text: Callable[[int], str] = format_count) -> str:
    """Return a figure, or that there is none."""
    return NONE if value is None else text(value)


def layer_grid(result: PerToken | PresetDetail, *, named: bool) -> Grid:
    """Show which layers there are and what each keeps."""
    first = "layers"
    if named and isinstance(result, PerToken):
        first = f"layers of {result.model}, {result.kv_cache_dtype}"
    rows = tuple(
        (
            f"{group.count} x {group.kind}",
            group.shape,
            group.keeps,
            maybe(group.bytes_per_token or None),
            maybe(group.state_bytes or None),
        )
        for group in result.layers
    )
    columns = (first, "shape of each", "keeps", "B a token", "B of state")
    return Grid(columns, rows, text_columns=frozenset({1, 2}))


def formula(lines: tuple[str, ...]) -> list[Block]:
    """Show a formula with its numbers; nothing where there is none."""
    return [Heading("the formula"), Formula(lines)] if lines else []
