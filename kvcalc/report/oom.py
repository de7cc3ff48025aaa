"""The verdict on an out-of-memory text, for people: the sum it rests on, and what to change."""

from __future__ import annotations

from kvcalc.allocator.oom_values import Amount, OutOfMemory
from kvcalc.report.blocks import Block, Formula, Grid, Heading, Text
from kvcalc.report.cells import Size

__all__ = ["oom_blocks"]

_FIGURES = (
    ("asked", "asked"),
    ("capacity", "device"),
    ("free", "free on the device"),
    ("allocated", "allocated"),
    ("reserved", "reserved"),
    ("unallocated", "reserved, unused"),
    ("largest", "largest hole"),
    ("private_pools", "bound in private pools"),
    ("other_allocations", "other allocations"),
    ("allowed", "allowed"),
    ("process", "this process"),
)


def oom_blocks(result: OutOfMemory, size: Size) -> list[Block]:
    """Return the blocks of one verdict."""
    text = result.text
    rows = [
        (label, amount.text, _rounding(amount, size))
        for name, label in _FIGURES
        if (amount := getattr(text, name)) is not None
    ]
    for process in text.processes:
        whose = "this process, as listed" if process.own else "other process"
        rows.append(
            (f"{whose} ({process.name})", process.memory.text, _rounding(process.memory, size))
        )
    where = f"{text.backend} {text.device}" if text.device else text.backend
    blocks: list[Block] = [
        Heading(f"{result.verdict.replace('_', ' ')} ({where}, text of {text.wording})"),
        Text((result.summary,)),
    ]
    if rows:
        grid = Grid(("", "as printed", "rounding"), tuple(rows), text_columns=frozenset({1, 2}))
        blocks.append(grid)
    if result.arithmetic:
        blocks.append(Formula(result.arithmetic))
    if result.advice:
        blocks.append(Text(tuple(f"- {line}" for line in result.advice)))
    return blocks


def _rounding(amount: Amount, size: Size) -> str:
    if amount.low == amount.high:
        return "exact"
    return f"+-{size(amount.high - amount.bytes)}"
