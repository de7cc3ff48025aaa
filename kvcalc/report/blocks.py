"""The pieces that a report for people is made of; tables and Markdown draw the same pieces."""

from __future__ import annotations

from kvcalc.core.values import Value

__all__ = ["Bar", "Bars", "Block", "Code", "Formula", "Grid", "Heading", "Shell", "Text"]


class Heading(Value, frozen=True):
    """What the following blocks are about."""

    text: str


class Text(Value, frozen=True):
    """Lines of prose or formula; may be wrapped, never cut."""

    lines: tuple[str, ...]


class Code(Value, frozen=True):
    """Lines as they are: a log's, or a strip of letters; never wrapped."""

    lines: tuple[str, ...]


class Formula(Value, frozen=True):
    """Lines of arithmetic; may be wrapped between words, never cut."""

    lines: tuple[str, ...]


class Shell(Value, frozen=True):
    """Commands to be pasted, and comments on them; wrapped as a shell takes it."""

    comments: tuple[str, ...]
    commands: tuple[str, ...]


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


Block = Heading | Text | Code | Formula | Shell | Grid | Bars
