"""A start-up log for people: the verdict, figures side by side, the card as a bar, cures."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.logs import Difference, Fact, LogAnswer, LogComparison, LoggedTerm
from kvcalc.core.units import format_count
from kvcalc.report.bars import stacked
from kvcalc.report.blocks import Block, Code, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size

__all__ = ["comparison_blocks", "log_blocks"]

_ROUNDED = 11 * 2**20
"""Bytes between the ends of a size that is one print's, of two decimals of a GiB or finer."""
_LETTERS = {
    "weights": "w",
    "weights and other": "w",
    "activation": "a",
    "graphs": "g",
    "cache": "c",
}


def log_blocks(results: Sequence[LogAnswer], size: Size) -> list[Block]:
    """Return the blocks of each start."""
    return [block for result in results for block in _answer(result, size)]


def _answer(result: LogAnswer, size: Size) -> list[Block]:
    version = f" {result.engine_version}" if result.engine_version else ""
    model = f", {result.model}" if result.model else ""
    card = f" on {result.gpu}" if result.gpu else ""
    which = f", start {result.start} of {result.starts}" if result.starts > 1 else ""
    blocks: list[Block] = [
        Text((result.verdict,)),  # how it ended, and why, comes before what it was
        Heading(f"{result.file}{which}: {result.engine}{version}{model}{card}"),
    ]
    if result.oom is not None:
        told = [*result.oom.arithmetic]
        if result.oom.summary.rstrip(".") not in result.verdict:
            told.insert(0, result.oom.summary)
        blocks += [Heading("out of memory"), Text(tuple(told))]
    if result.facts:
        blocks.append(_facts(result))
    if result.differences:
        blocks += [Heading("differences"), _differences(result.differences)]
    blocks += _memory(result, size)
    if result.cures:
        blocks += [Heading("what to change"), Text(result.cures)]
    if result.levers:
        blocks += [Heading("what each setting buys with this memory"), _levers(result)]
    if result.settings:
        rows = tuple((s.name, s.value, s.source) for s in result.settings)
        blocks += [
            Heading("read as"),
            Grid(("setting", "value", "from"), rows, text_columns=frozenset({1, 2})),
        ]
    said = [*result.notes, *(f"not modelled: {line}" for line in result.unsupported)]
    if said:
        blocks += [Heading("why"), Text(tuple(said))]
    return blocks


def _facts(result: LogAnswer) -> Grid:
    rows = []
    for name, fact in result.facts.items():
        found = result.predicted.get(name)
        differs = any(d.name == name for d in result.differences)
        says = NONE if found is None else found.text
        how = "differs" if differs else "agrees" if name in result.agrees else ""
        basis = found.basis if found else ""
        rows.append((name, _line(fact), _printed(fact), says, how, basis))
    for name, found in result.predicted.items():
        if name not in result.facts:
            rows.append((name, "", NONE, found.text, "", found.basis))
    columns = ("figure", "line", "logged", "kvcalc", "", "from")
    return Grid(columns, tuple(rows), text_columns=frozenset({4, 5}))


def _printed(fact: Fact) -> str:
    """Return a figure, with the other end where ranks differed."""
    if fact.spread is None:
        return fact.printed
    least, most = fact.spread
    if fact.printed == least:
        return f"{least} (to {most})"
    return (
        f"{most} (from {least})" if fact.printed == most else f"{fact.printed} ({least} to {most})"
    )


def _line(fact: Fact) -> str:
    return format_count(fact.line)


def _differences(differences: Sequence[Difference]) -> Grid:
    rows = tuple(
        (d.name, d.logged, d.predicted, d.explained_by or "no cause is known", d.why)
        for d in differences
    )
    columns = ("figure", "logged", "kvcalc", "explained by", "")
    return Grid(columns, rows, text_columns=frozenset({3, 4}))


def _memory(result: LogAnswer, size: Size) -> list[Block]:
    if not result.terms:
        return []
    blocks: list[Block] = [Heading("memory of one GPU")]
    parts = [
        (_LETTERS.get(term.name, "o"), max(0, sum(span) // 2))
        for term in result.terms
        if (span := term.logged or term.predicted) is not None
    ]
    logged = sum(term.logged[0] for term in result.terms if term.logged is not None)
    if result.total_bytes and logged <= result.total_bytes:  # else it is of another card
        drawn = stacked(parts, result.total_bytes)
        blocks.append(Code((f"{drawn}  {size(result.total_bytes)}",)))
    rows = tuple(
        (
            f"{_LETTERS.get(term.name, 'o')}  {term.name}",
            _span(term.logged, size),
            _span(term.predicted, size),
            _meets(term),
            term.source,
        )
        for term in result.terms
    )
    columns = ("", "logged", "kvcalc without the log", "", "")
    return [*blocks, Grid(columns, rows, text_columns=frozenset({3, 4}))]


def _span(span: tuple[int, int] | None, size: Size) -> str:
    if span is None:
        return NONE
    if 0 <= span[1] - span[0] <= _ROUNDED:
        span = (sum(span) // 2,) * 2
    low, high = (size(end) if end >= 0 else f"-{size(-end)}" for end in span)
    return low if low == high else f"{low} to {high}"


def _meets(term: LoggedTerm) -> str:
    return "" if term.agrees is None else "inside" if term.agrees else "outside"


def _levers(result: LogAnswer) -> Grid:
    rows = tuple(
        (
            lever.name,
            NONE if lever.figures is None else format_count(lever.figures.kv_cache_tokens),
            f"{lever.tokens_gained:+,}",
            NONE if lever.concurrency_gain is None else f"{lever.concurrency_gain:.2f} x",
            "yes" if lever.figures.starts else "no",
            lever.caution,
        )
        for lever in result.levers
    )
    columns = ("lever", "tokens", "gained", "sequences", "starts", "what it costs")
    return Grid(columns, rows, text_columns=frozenset({4, 5}))


def comparison_blocks(results: Sequence[LogComparison], size: Size) -> list[Block]:
    """Return the blocks of each comparison."""
    del size
    blocks: list[Block] = []
    for result in results:
        first, second = result.files
        blocks += [Heading(f"{first} against {second}"), Text((result.verdict,))]
        rows = tuple(
            (
                row.name,
                row.first or NONE,
                row.second or NONE,
                NONE if row.tokens is None else f"{row.tokens:+,}",
                row.why,
            )
            for row in result.changed
        )
        if rows:
            columns = ("changed", "first", "second", "tokens", "how they are counted")
            blocks.append(Grid(columns, rows, text_columns=frozenset({4})))
        counts = ["no tokens" if n is None else f"{format_count(n)} tokens" for n in result.tokens]
        if result.tokens != (None, None):
            blocks.append(Text((f"logged: {counts[0]} and {counts[1]}",)))
        if result.notes:
            blocks += [Heading("why"), Text(result.notes)]
    return blocks
