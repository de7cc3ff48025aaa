"""The pieces that a report for people is made of; tables and Markdown draw the same pieces."""

from __future__ import annotations

from kvcalc.core.values import Value

__all__ = ["Bar", "Bars", "Block", "Code", "Grid", "Heading", "Text"]


class Heading(Value, frozen=True):
    """What the following blocks are about."""

    text: str


class Text(Value, frozen=True):
    """Lines of prose or formula; may be wrapped, never cut."""

    lines: tuple[str, ...]


class Code(Value, frozen=True):
    """Lines whose columns matter (a strip of letters) or that are formulas."""

    lines: tuple[str, ...]


class Grid(Value, frozen=True):
    """Rows of cells under column names.

    The first column is text; `text_columns` names further ones that are. All others are numbers:
    right-aligned and never broken. Where the columns do not fit the width, the grid is drawn in
    several parts that repeat the first column.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int] = frozenset()


class Bar(Value, frozen=True):
    """One bar: `used` and `wasted` parts of a whole, with a caption behind it."""

    label: str
    used: int
    wasted: int
    caption: str


class Bars(Value, frozen=True):
    """Bars on one scale, the longest of them filling the width."""

    bars: tuple[Bar, ...]


Block = Heading | Text | Code | Grid | Bars
