"""What changed between two runs: for a terminal, and as a comment of a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.changes import Changed
from kvcalc.answers.metrics import metric_of, shown
from kvcalc.core.units import UnitSystem
from kvcalc.report.blocks import Block, Grid, Heading, Text
from kvcalc.report.cells import NONE

__all__ = ["blocks"]


def blocks(changes: Sequence[Changed], units: UnitSystem) -> list[Block]:
    """Return what shows the changes, a table a deployment, those that cost capacity first."""
    costly = sum(each.costs for each in changes)
    if not changes:
        return [Text(lines=("nothing changed",))]
    made: list[Block] = [Heading(text=_verdict(costly, len(changes)))]
    by_name: dict[str, list[Changed]] = {}
    for each in changes:
        by_name.setdefault(each.name, []).append(each)
    for name, own in by_name.items():
        made.append(Text(lines=(name,)))
        made.append(
            Grid(
                columns=("figure", "before", "after", "change", ""),
                rows=tuple(_row(each, units) for each in own),
                text_columns=frozenset({4}),
            )
        )
    return made


def _verdict(costly: int, total: int) -> str:
    changed = f"{total} figure{'s' if total > 1 else ''} changed"
    if not costly:
        return f"{changed}, none costs capacity"
    return f"{costly} of {changed} cost{'s' if costly == 1 else ''} capacity"


def _row(each: Changed, units: UnitSystem) -> tuple[str, ...]:
    mark = "COSTS" if each.costs else "gains" if each.gains else ""
    ratio = NONE if each.ratio is None else f"{100 * (each.ratio - 1):+.1f} %"
    if each.before is not None and each.before == each.after:
        ratio = "="
    before, after = (_text(each.metric, v, units) for v in (each.before, each.after))
    if before == after and each.before != each.after:
        before, after = f"{each.before!r}", f"{each.after!r}"
    return each.metric, before, after, ratio, mark


def _text(metric: str, value: bool | float | str | None, units: UnitSystem) -> str:
    known = metric_of(metric)
    if value is None:
        return NONE
    if known is None or isinstance(value, str):
        return str(value)
    return shown(known.kind, value, units)
