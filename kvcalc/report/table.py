"""Blocks as a table for a terminal or a pipe: no number is ever cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD, Box
from rich.table import Table
from rich.text import Text as RichText

from kvcalc.report.blocks import Bars, Block, Grid, Heading, Text

__all__ = ["ASCII_HEAD", "UNLIMITED", "render"]

UNLIMITED = 10_000
"""Width of an output that wraps nothing (a pipe or a file)."""

ASCII_HEAD = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_BAR_WIDTH = 40
_PADDING = 2  # cells between columns


def render(blocks: Sequence[Block], *, width: int, ascii_only: bool) -> Iterator[RichText | Table]:
    """Yield what a rich Console prints for each block.

    Args:
        blocks: what to show.
        width: columns there are; grids that need more are drawn in several parts.
        ascii_only: the output cannot show block characters.
    """
    for i, block in enumerate(blocks):
        if i and not isinstance(block, Grid):
            yield RichText("")
        match block:
            case Heading(text=text):
                yield RichText(text, style="bold")
            case Text(lines=lines):
                for line in lines:
                    yield RichText(line)
            case Bars():
                yield from _bars(block, width, ascii_only=ascii_only)
            case Grid():
                yield from _grid(block, width, ascii_only=ascii_only)


def _bars(block: Bars, width: int, *, ascii_only: bool) -> Iterator[RichText]:
    longest = max((bar.used + bar.wasted for bar in block.bars), default=0)
    label = max(len(bar.label) for bar in block.bars)
    caption = max(len(bar.caption) for bar in block.bars)
    room = max(10, min(_BAR_WIDTH, width - label - caption - 4))
    used_mark, wasted_mark = ("#", ".") if ascii_only else ("█", "░")
    for bar in block.bars:
        used = _cells(bar.used, longest, room)
        whole = max(_cells(bar.used + bar.wasted, longest, room), used)
        line = RichText(f"{bar.label:<{label}}  ")
        line.append(used_mark * used, style="green")
        line.append(wasted_mark * (whole - used), style="red")
        line.append(" " * (room - whole))
        line.append(f"  {bar.caption} wasted")
        yield line


def _cells(part: int, longest: int, room: int) -> int:
    """Return part / longest of the room in whole cells; something is never drawn as nothing."""
    if not part:
        return 0
    return max(1, (2 * part * room + longest) // (2 * longest))


def _grid(grid: Grid, width: int, *, ascii_only: bool) -> Iterator[Table]:
    text = {0, *grid.text_columns}
    sizes = [
        max(len(name), *(len(row[i]) for row in grid.rows)) if grid.rows else len(name)
        for i, name in enumerate(grid.columns)
    ]
    for part in _parts(grid, sizes, width):
        table = Table(
            box=ASCII_HEAD if ascii_only else SIMPLE_HEAD,
            show_header=any(grid.columns[i] for i in part),
            pad_edge=False,
            padding=(0, _PADDING, 0, 0),
            header_style="bold",
        )
        for i in part:
            # Numbers are never broken; a text column may be, where a terminal is narrow.
            wraps = i in grid.text_columns and sum(sizes) > width
            table.add_column(
                RichText(grid.columns[i]),
                justify="left" if i in text else "right",
                no_wrap=not wraps,
                min_width=min(sizes[i], 12) if wraps else sizes[i],
            )
        for row in grid.rows:
            table.add_row(*(RichText(row[i]) for i in part))
        yield table


def _parts(grid: Grid, sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """Split the columns into parts that fit, each with the first column."""
    if grid.text_columns:  # text can be wrapped instead
        yield list(range(len(sizes)))
        return
    part = [0]
    for i in range(1, len(sizes)):
        if len(part) > 1 and sum(sizes[j] + _PADDING for j in [*part, i]) > width:
            yield part
            part = [0]
        part.append(i)
    yield part
