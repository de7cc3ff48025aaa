"""Results of checks for people: the worst first, each with what would pass, and a count."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.answers.assertions import Check, CheckSummary, told, worst_first
from kvcalc.answers.check_report import CheckReport, Deployed
from kvcalc.core.units import UnitSystem
from kvcalc.report.blocks import Block, Grid, Heading, Text

__all__ = ["COLUMNS", "blocks", "comment", "tally"]

COLUMNS = (
    *("name", "assertion", "workload", "operator", "limit", "actual", "low", "high"),
    *("level", "status", "message", "hint", "file", "line"),
)
"""What of a result is in CSV."""

_WORDS = {
    "refused": "REFUSED",
    "fail": "FAIL",
    "warn": "WARN",
    "skip": "SKIP",
    "note": "NOTE",
    "pass": "PASS",
    "off": "OFF",
}
_UNDER = " " * 9


def blocks(report: CheckReport, units: UnitSystem) -> list[Block]:
    """Return what shows a report: what was read where that was asked for, results, the count."""
    made: list[Block] = []
    for one in report.deployments:
        if one.read:
            made += _read(one)
    lines = tuple(line for result in worst_first(report.results) for line in _lines(result, units))
    if lines:
        made.append(Text(lines=lines))
    made.append(Text(lines=(tally(report.summary),)))
    return made


def comment(report: CheckReport, units: UnitSystem) -> list[Block]:
    """Return what shows a report as Markdown: a table of what is not well, and what passed."""
    made: list[Block] = [Heading(text=f"kvcalc check: {tally(report.summary)}")]
    for one in report.deployments:
        if one.read:
            made += _read(one)
    told_ = [r for r in worst_first(report.results) if r.status not in ("pass", "off")]
    if told_:
        made.append(
            Grid(
                columns=("", "deployment", "what", "what would pass", "where"),
                rows=tuple(
                    (_WORDS[r.status], r.name, _said(r, units), r.hint, r.where) for r in told_
                ),
                text_columns=frozenset({1, 2, 3, 4}),
            )
        )
    passed = [r for r in report.results if r.status == "pass"]
    if passed:
        made.append(Text(lines=tuple(f"PASS {r.name}: {_said(r, units)}" for r in passed)))
    return made


def _said(result: Check, units: UnitSystem) -> str:
    """Say a result with the name of its check, where the sentence does not begin with it."""
    of = f" of {result.workload}" if result.workload else ""
    said = told(result, units)
    if result.operator is None or result.actual is None or result.status == "off":
        said = f"{result.assertion}: {said}"
    return f"{said}{of}" + (", as in the baseline" if result.known else "")


def _lines(result: Check, units: UnitSystem) -> Iterator[str]:
    word = _WORDS[result.status]
    where = f" ({result.where})" if result.where else ""
    yield f"{word:<8} {result.name}: {_said(result, units)}{where}"
    if result.hint and result.status != "pass":
        yield f"{_UNDER}-> {result.hint}"


def _read(one: Deployed) -> Iterator[Block]:
    name = f"{one.name}: {one.engine or 'no engine'}" + (
        f" {one.engine_version}" if one.engine_version else ""
    )
    yield Heading(text=name)
    rows = tuple(
        (s.name, "-" if s.value is None else _value(s.value), s.written, s.where) for s in one.read
    )
    yield Grid(
        columns=("setting", "value", "written as", "where"),
        rows=rows,
        text_columns=frozenset({1, 2, 3}),
    )


def _value(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tally(summary: CheckSummary) -> str:
    """Return the count in a line: `1 failed, 1 warned, 3 passed, 0 skipped`."""
    parts = [
        f"{summary.failed} failed",
        f"{summary.warned} warned",
        f"{summary.passed} passed",
        f"{summary.skipped} skipped",
    ]
    if summary.refused:
        parts.insert(0, f"{summary.refused} refused")
    return ", ".join(parts)
