"""A capacity answer for people: the verdict, the card as a bar, figures, levers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvcalc.answers.capacity import (
    At,
    CapacityAnswer,
    Figures,
    Layout,
    Lever,
    RankBudget,
    Solution,
    TermBounds,
)
from kvcalc.core.deployment import MAX_BYTES
from kvcalc.core.units import format_concurrency, format_count, format_number_of
from kvcalc.report.bars import stacked
from kvcalc.report.blocks import Block, Code, Grid, Heading, Shell, Text
from kvcalc.report.cells import NONE, Size, maybe

__all__ = ["capacity_blocks"]

_LETTERS = {"weights": "w", "activation": "a", "graphs": "g"}


def capacity_blocks(results: Sequence[CapacityAnswer], size: Size) -> list[Block]:
    """Return the blocks of each answer; those of several questions side by side before."""
    blocks: list[Block] = []
    if len(results) > 1:
        blocks = [Heading("side by side"), _side_by_side(results, size)]
    return blocks + [block for result in results for block in _answer(result, size)]


def _side_by_side(results: Sequence[CapacityAnswer], size: Size) -> Grid:
    rows = []
    blocks = len({r.block_size for r in results}) > 1
    for r in results:
        cache = _range(r.low.kv_cache_bytes, r.high.kv_cache_bytes, size)
        fits = "yes" if r.fits else "perhaps" if r.may_fit else "no"
        if r.fits is None:
            fits = "of which GPU?"
        served = _times(r.max_concurrency)
        longest = format_count(r.max_model_len_that_fits)
        needed = size(r.needed_bytes)
        name = " ".join((f"{r.model}, {r.engine}", *r.flags))
        tokens = format_count(r.kv_cache_tokens)
        kept = [r.kv_cache_dtype]
        if blocks:
            kept.append(maybe(r.block_size))
        rows.append((name, *kept, fits, cache, needed, tokens, served, longest))
    kind = ("cache in", "block") if blocks else ("cache in",)
    columns = ("", *kind, "fits", "cache", "one needs", "tokens", "sequences", "longest")
    return Grid(columns, tuple(rows), text_columns=frozenset({1, len(kind) + 1}))


def _times(value: float) -> str:
    return f"{format_concurrency(value)} x"


def _range(low: int | None, high: int | None, size: Size) -> str:
    if low is None or high is None:
        return NONE
    return size(low) if low == high else f"{size(low)} to {size(high)}"


def _answer(result: CapacityAnswer, size: Size) -> list[Block]:
    version = f" {result.engine_version}" if result.engine_version else ""
    card = f" on {result.gpu}" if result.gpu else ""
    if result.flags:
        card += f" ({' '.join(result.flags)})"
    blocks: list[Block] = [
        Heading(
            f"{result.model}, {result.kv_cache_dtype}, engine {result.engine}{version}{card}:"
            f" maximum {format_number_of(result.max_model_len, 'token')}"
        ),
        Text((result.verdict,)),
    ]
    if result.solutions:  # the answer to what was asked is the first line
        blocks.reverse()
    for budget in result.budget:
        blocks.extend(_budget(budget, size, several=len(result.budget) > 1))
    blocks.append(_figures(result, size))
    if result.host_limit_bytes is not None or len(result.host) > 1:
        blocks.append(_host(result, size))
    if result.log:
        blocks.append(Code(result.log))
    if result.layouts:
        blocks.extend(_layouts(result.layouts))
    if result.levers or result.refused_levers:
        blocks.extend(_levers(result.levers))
    if result.solutions:
        blocks.extend(_solutions(result.solutions))
    commands = [result.suggested, *(solution.command for solution in result.solutions)]
    told = tuple(dict.fromkeys(command for command in commands if command))
    if told or result.suggested_notes:
        blocks.append(Heading("the engine's own command"))
        blocks.append(Shell(comments=result.suggested_notes, commands=told))
    said = [*result.notes, *(f"not modelled: {line}" for line in result.unsupported)]
    said += [f"assumed: {line}" for line in result.convention]
    blocks += [Heading("why"), Text(tuple(said)), Text((f"rules: {result.source}",))]
    return blocks


def _budget(budget: RankBudget, size: Size, *, several: bool) -> list[Block]:
    total = budget.total_bytes
    middle = sum(budget.cache_bytes) // 2
    parts = [(_LETTERS.get(t.name, "o"), (t.low_bytes + t.high_bytes) // 2) for t in budget.terms]
    parts.sort(key=lambda part: "wago".index(part[0]))
    parts.append(("c", max(0, middle)))
    unbounded = total >= MAX_BYTES  # a host of which nothing is known
    blocks: list[Block] = []
    if several:
        alone = budget.num_gpus == 1 and "GPU" in budget.name  # it says so by itself
        gpus = format_number_of(budget.num_gpus, "GPU")
        count = "" if unbounded or alone else f", {gpus}"
        blocks.append(Heading(f"{budget.name}{count}"))
    if not unbounded:
        blocks.append(Code((f"{stacked(parts, total)}  {size(total)}",)))
    rows = tuple(_rows(budget, size, unbounded=unbounded))
    blocks += [
        Grid(("", "least", "most", "how it is known"), rows, text_columns=frozenset({3})),
    ]
    return blocks


def _rows(budget: RankBudget, size: Size, *, unbounded: bool) -> Iterator[tuple[str, ...]]:
    """Yield what makes up the card: the share's terms, the cache and the rest, and what is beside.

    With the terms at their most the cache is at its least: either way they add up to the card.
    """
    for term in budget.terms:
        if not term.outside:
            yield _term(term, size)
    low, high = budget.cache_bytes
    ends = (NONE, NONE) if unbounded else (_bound(low, size), _bound(high, size))
    yield ("c  cache", *ends, budget.share_source)
    if unbounded:
        return
    left = budget.left_bytes
    if any(left):
        what = "of the share, and not the cache's" if max(left) > 0 else "beyond the share"
        yield ("   left", *(_bound(n, size) for n in left), what)
    beside = tuple(sorted(budget.beside_bytes))
    if any(beside) or any(term.outside for term in budget.terms):
        said = "the rest of the card: what the driver keeps, and all that is not the share's"
        yield ("   beside", *(_bound(n, size) for n in beside), said)
        for term in budget.terms:
            if term.outside:
                yield _term(term, size)


def _term(term: TermBounds, size: Size) -> tuple[str, ...]:
    letter = _LETTERS.get(term.name, "o")
    beside = "beside the share: " if term.outside else ""
    return (
        f"{letter}  {term.label}",
        size(term.low_bytes),
        size(term.high_bytes),
        f"{beside}{term.source}",
    )


def _bound(value: int, size: Size) -> str:
    return size(value) if value >= 0 else f"-{size(-value)}"


def _figures(result: CapacityAnswer, size: Size) -> Grid:
    exact = result.low == result.high
    columns: tuple[str, ...] = ("", "")
    ends: tuple[Figures, ...] = ()
    if not exact:
        columns, ends = ("", "least", "expected", "most"), (result.low, result.high)
    rows: list[tuple[str, ...]] = []

    def row(label: str, expected: str, bounds: Sequence[str]) -> None:
        cells = (bounds[0], expected, bounds[1]) if bounds else (expected,)
        if any(cell != NONE for cell in cells):
            rows.append((label, *cells))

    def of(read: Callable[[Figures], str]) -> list[str]:
        return [read(end) for end in ends]

    row(
        "cache of a GPU",
        maybe(result.kv_cache_bytes, size),
        of(lambda f: maybe(f.kv_cache_bytes, size)),
    )
    row("blocks", maybe(result.num_blocks), of(lambda f: maybe(f.num_blocks)))
    row(
        "tokens",
        format_count(result.kv_cache_tokens),
        of(lambda f: format_count(f.kv_cache_tokens)),
    )
    row(
        f"sequences of {format_count(result.max_model_len)}",
        _times(result.max_concurrency),
        of(lambda f: _times(f.max_concurrency)),
    )
    row(
        "  whole ones",
        format_count(result.max_sequences),
        of(lambda f: format_count(f.max_sequences)),
    )
    for at in result.at:
        row(_at_label(at), _times(at.max_concurrency), _at_bounds(at, exact=exact))
    row(
        "longest that fits",
        _longest(result.max_model_len_that_fits),
        of(lambda f: _longest(f.max_model_len_that_fits)),
    )
    if result.missing_bytes:  # with the least that is left
        missing = size(result.missing_bytes)
        row("missing", NONE if ends else missing, [missing, NONE] if ends else [])
    blank = [NONE, NONE] if ends else []
    for label, text in _alone(result, size):
        row(label, text, blank)
    return Grid(columns, tuple(rows))


def _longest(tokens: int) -> str:
    return format_count(tokens) if tokens else "none"


def _alone(result: CapacityAnswer, size: Size) -> Iterator[tuple[str, str]]:
    """Yield the figures that have no bounds."""
    yield "one needs", size(result.needed_bytes)
    if result.bytes_per_token and result.fixed_bytes:
        grown = format_count(result.bytes_per_token)
        yield "  that is", f"{size(result.fixed_bytes)} + {grown} B a token"
    whole = result.deployment
    if whole.num_gpus > 1 or whole.instances > 1:
        what = f"{whole.num_gpus} GPUs"
        if whole.instances > 1:
            what = f"{whole.instances * whole.replicas} servers"
        yield f"tokens on all {what}", format_count(whole.kv_cache_tokens)
        yield "sequences on all", _times(whole.max_concurrency)
        if whole.duplication_factor > 1:
            yield "each byte is kept", f"{whole.duplication_factor:,.2f} times"


_HOST: dict[tuple[bool | None, bool | None], str] = {
    (True, True): "all that settings allow has room",
    (False, True): "what settings allow may outgrow it",
    (False, False): "less than is taken from the start",
}


def _host(result: CapacityAnswer, size: Size) -> Grid:
    """Show what the server takes of the host's memory, and its limit."""
    rows = [
        (
            part.name,
            size(part.low_bytes),
            "no limit" if part.high_bytes is None else size(part.high_bytes),
            part.source,
        )
        for part in result.host
    ]
    if result.host_limit_bytes is not None:
        limit = size(result.host_limit_bytes)
        rows.append(("limit", limit, limit, _HOST[result.host_fits, result.host_may_fit]))
    return Grid(("host memory", "least", "most", ""), tuple(rows), text_columns=frozenset({3}))


def _at_label(at: At) -> str:
    if at.tokens is None:
        return f"requests of {at.workload}"
    return f"sequences of {format_count(at.tokens)}"


def _at_bounds(at: At, *, exact: bool) -> list[str]:
    return [] if exact else [_times(at.low), _times(at.high)]


def _levers(levers: Sequence[Lever]) -> list[Block]:
    rows = [
        (
            lever.name,
            format_count(lever.kv_cache_tokens),
            f"{lever.tokens_gained:+,}",
            NONE if lever.concurrency_gain is None else f"{lever.concurrency_gain:.2f} x",
            _longest(lever.figures.max_model_len_that_fits),
            "yes" if lever.fits else "perhaps" if lever.figures.fits else "no",
            lever.caution,
        )
        for lever in levers
    ]
    columns = ("lever", "tokens", "gained", "times", "longest", "fits", "what it costs")
    blocks: list[Block] = [Heading("what each setting buys")]
    if rows:
        blocks.append(Grid(columns, tuple(rows), text_columns=frozenset({5, 6})))
    else:
        blocks.append(Text(("no setting that was tried buys anything",)))
    return blocks


def _solutions(solutions: Sequence[Solution]) -> list[Block]:
    rows = [
        (s.setting, _span(s.value, s.up_to), _span(s.possible, s.possible_up_to), s.reason)
        for s in solutions
    ]
    columns = ("solved for", "surely", "at best", "why no further")
    return [
        Heading("turned round"),
        Grid(columns, tuple(rows), text_columns=frozenset({3})),
    ]


def _span(value: float | None, up_to: float | None) -> str:
    return _value(value) if up_to in (None, value) else f"{_value(value)} to {_value(up_to)}"


def _value(value: float | None) -> str:
    if value is None:
        return NONE
    return format_count(value) if isinstance(value, int) else f"{value:g}"


def _layouts(layouts: Sequence[Layout]) -> list[Block]:
    rows = []
    for way in layouts:
        refused = way.figures is None
        rows.append(
            (
                way.name,
                NONE if refused else format_count(way.kv_cache_tokens),
                NONE if refused else _times(way.max_concurrency),
                NONE if way.duplication_factor is None else f"{way.duplication_factor:.2f} x",
                way.why_not or ("" if way.kv_cache_tokens else "does not fit"),
            )
        )
    columns = ("layout", "tokens", "sequences", "copies", "")
    return [
        Heading("the same GPUs in other ways"),
        Grid(columns, tuple(rows), text_columns=frozenset({4})),
    ]
