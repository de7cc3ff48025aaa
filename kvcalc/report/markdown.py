"""Blocks as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvcalc.report.blocks import Bars, Block, Code, Formula, Grid, Heading, Shell, Text

__all__ = ["render"]

_INDENT = "&nbsp;"
_FENCE = re.compile("`+")
_BEGINS = re.compile(r"^([0-9]{0,9})([#+.)-])(?=[ #-]|$)")
"""What makes a heading or a list of a line by standing at its beginning."""

_ALIVE = re.compile(r"(?<=@)(?=\S)|(?<=:)(?=//)|(?<=(?i:www))(?=\.)")
"""Where what GitHub and GitLab link or notify by themselves is cut in two."""

_APART = "&#8203;"  # takes no room; a backslash does not keep a name from being notified


def render(blocks: Sequence[Block]) -> str:
    """Return the blocks as Markdown; bars are left out, as their figures are in the grid."""
    parts = []
    for block in blocks:
        match block:
            case Heading(text=text):
                parts.append(f"### {_escaped(text)}")
            case Code(lines=lines) | Formula(lines=lines):
                parts.append(_fenced("text", lines))
            case Shell(comments=comments, commands=commands):
                lines = (*(f"# {line}" for line in comments), *commands)
                parts.append(_fenced("sh", lines))
            case Text(lines=lines):
                shown = (_BEGINS.sub(r"\1\\\2", _escaped(line.strip())) for line in lines)
                parts.append("\n".join(f"- {line}" for line in shown))
            case Grid():
                parts.append(_grid(block))
            case Bars():
                continue
    return "\n\n".join(part for part in parts if part) + "\n"


def _grid(grid: Grid) -> str:
    text = {0, *grid.text_columns}
    rule = [":---" if i in text else "---:" for i in range(len(grid.columns))]
    lines = [_row([_escaped(name) for name in grid.columns]), _row(rule)]
    for row in grid.rows:
        first = len(row[0]) - len(row[0].lstrip())  # a row under another is indented
        lines.append(_row([_INDENT * first + _escaped(row[0]), *(_escaped(c) for c in row[1:])]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.strip() for cell in cells) + " |"


def _fenced(language: str, lines: Sequence[str]) -> str:
    """Return lines in a fence that none of them closes."""
    longest = max((len(run) for line in lines for run in _FENCE.findall(line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}{language}", *lines, fence])


def _escaped(text: str) -> str:
    """Escape what Markdown would read as a table, a tag or emphasis, a link, or a mention."""
    for mark in ("\\", "|", "<", ">", "*", "_", "`", "[", "]", "~", "&"):
        text = text.replace(mark, f"\\{mark}")
    return _ALIVE.sub(_APART, text.replace("\n", " "))
