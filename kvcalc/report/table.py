"""Blocks as lines for a terminal or a pipe: no number is ever cut.

The layout is our own and a line is plain text with styled parts, so that a pipe needs no more than
to join them; a terminal gets them printed by rich (`kvcalc.report.terminal`). Importing and
running rich's tables would double the time of a short command.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from unicodedata import east_asian_width

from kvcalc.report.blocks import Bars, Block, Code, Formula, Grid, Heading, Shell, Text

__all__ = ["UNLIMITED", "Line", "plain", "render"]

UNLIMITED = 10_000
"""Width of an output that wraps nothing (a pipe or a file)."""

Line = list[tuple[str, str]]
"""Parts of a line: text and the name of its style ("" for none)."""

_BAR_WIDTH = 40
_GAP = 3  # cells between columns
_LEAST_TEXT = 12  # a text column is not made narrower than this


def plain(lines: Sequence[Line]) -> str:
    """Return the lines without styles, one a line, without spaces at their ends."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def render(blocks: Sequence[Block], *, width: int, ascii_only: bool) -> list[Line]:
    """Return the lines that show the blocks.

    Args:
        blocks: what to show.
        width: columns there are; grids that need more are drawn in several parts.
        ascii_only: the output cannot show block characters.
    """
    lines: list[Line] = []
    for i, block in enumerate(blocks):
        if i:
            lines.append([])
        match block:
            case Heading(text=text):
                lines += [[(part, "bold")] for part in _wrapped(text, width)]
            case Code(lines=texts):
                lines += [[(text, "")] for text in texts]
            case Shell():
                lines += [[(line, "")] for line in _shell(block, width)]
            case Text(lines=texts) | Formula(lines=texts):
                for text in texts:
                    indent = " " * (len(text) - len(text.lstrip()) + 2)
                    lines += [[(part, "")] for part in _wrapped(text, width, indent)]
            case Bars():
                lines += _bars(block, width, ascii_only=ascii_only)
            case Grid():
                lines += _grid(block, width, ascii_only=ascii_only)
    return lines


def _shell(block: Shell, width: int) -> Iterator[str]:
    """Yield comments and commands, each of their lines one that a shell takes."""
    for comment in block.comments:
        first, *others = _wrapped(f"# {comment}", width) or [""]
        yield first
        for line in others:
            yield from (f"#   {part}" for part in _wrapped(line, max(1, width - 4)))
    for command in block.commands:
        yield from _command(command, width)


def _command(command: str, width: int) -> Iterator[str]:
    """Yield a command in lines that end in a backslash; a flag keeps its value beside it."""
    if _cells(command) <= width:
        yield command
        return
    parts: list[str] = []
    for word in (shlex.quote(word) for word in shlex.split(command)):
        if parts and not word.startswith("-") and parts[-1].startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    line = parts[0]
    for part in parts[1:]:
        if _cells(line) + _cells(part) + len(_CONTINUED) + 1 <= width:
            line += f" {part}"
        else:
            yield line + _CONTINUED
            line = f"  {part}"
    yield line


_CONTINUED = " \\"
_UNIT = re.compile(r"(?<=\d) (?=[KMGTPk]?i?B\b|tokens?\b|%)")
_GLUE = "\x00"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Break a text between words; a number stays with its unit, a name in one piece."""
    if _cells(text) <= width:
        return [text]
    lines = textwrap.wrap(
        _UNIT.sub(_GLUE, text),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines] or [""]


def _cells(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _cells(text))
    return space + text if right else text + space


def _bars(block: Bars, width: int, *, ascii_only: bool) -> Iterator[Line]:
    longest = max((bar.used + bar.wasted for bar in block.bars), default=0)
    label = max(_cells(bar.label) for bar in block.bars)
    caption = max(_cells(bar.caption) for bar in block.bars)
    room = max(10, min(_BAR_WIDTH, width - label - caption - 4))
    used_mark, wasted_mark = ("#", ".") if ascii_only else ("█", "░")
    for bar in block.bars:
        used = _share(bar.used, longest, room)
        whole = max(_share(bar.used + bar.wasted, longest, room), used)
        yield [
            (_padded(bar.label, label, right=False) + "  ", ""),
            (used_mark * used, "green"),
            (wasted_mark * (whole - used), "red"),
            (" " * (room - whole) + "  " + bar.caption, ""),
        ]


def _share(part: int, longest: int, room: int) -> int:
    """Return part / longest of the room in whole cells; something is never drawn as nothing."""
    if not part:
        return 0
    return max(1, (2 * part * room + longest) // (2 * longest))


def _grid(grid: Grid, width: int, *, ascii_only: bool) -> Iterator[Line]:
    sizes = [
        max(_cells(cell) for cell in (name, *(row[i] for row in grid.rows)))
        for i, name in enumerate(grid.columns)
    ]
    _narrow_text(grid, sizes, width)
    for number, part in enumerate(_parts(sizes, width)):
        if number:
            yield []
        if any(grid.columns[i] for i in part):
            yield from _row(grid, grid.columns, part, sizes, "bold")
            rule = sum(sizes[i] for i in part) + _GAP * (len(part) - 1)
            yield [(("-" if ascii_only else "─") * rule, "dim")]
        for row in grid.rows:
            yield from _row(grid, row, part, sizes, "")


def _narrow_text(grid: Grid, sizes: list[int], width: int) -> None:
    """Take from the widest text columns what the grid is wider than the output."""
    over = sum(sizes) + _GAP * (len(sizes) - 1) - width
    for i in sorted(grid.text_columns, key=lambda i: -sizes[i]):
        if over <= 0:
            return
        longest_word = max(
            (_cells(word) for row in (grid.columns, *grid.rows) for word in row[i].split()),
            default=0,
        )
        least = min(sizes[i], max(_LEAST_TEXT, longest_word))
        taken = min(over, sizes[i] - least)
        sizes[i] -= taken
        over -= taken


def _row(
    grid: Grid, cells: Sequence[str], part: Sequence[int], sizes: Sequence[int], style: str
) -> Iterator[Line]:
    """Draw one row; cells of text columns may take several lines."""
    wrapped = {i: _wrapped(cells[i], sizes[i]) if cells[i] else [""] for i in part}
    for n in range(max(len(lines) for lines in wrapped.values())):
        texts = [
            _padded(
                wrapped[i][n] if n < len(wrapped[i]) else "",
                sizes[i],
                right=i != 0 and i not in grid.text_columns,
            )
            for i in part
        ]
        yield [((" " * _GAP).join(texts), style)]


def _parts(sizes: Sequence[int], width: int) -> Iterator[list[int]]:
    """Split the columns into parts that fit, each with the first column."""
    part = [0]
    for i in range(1, len(sizes)):
        if len(part) > 1 and sum(sizes[j] + _GAP for j in [*part, i]) - _GAP > width:
            yield part
            part = [0]
        part.append(i)
    yield part
