"""What an engine allocates, for people: groups, a request, a start, and engines side by side."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import PlanGroup, PlanSummary, StartUp
from kvcalc.core.units import format_count, format_number_of, format_ratio
from kvcalc.core.waste import WASTE_NAMES
from kvcalc.report.blocks import Block, Code, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size, exact, maybe

__all__ = ["plan_blocks"]


def plan_blocks(results: Sequence[PlanSummary], size: Size) -> list[Block]:
    """Show each plan; those of several engines side by side before."""
    blocks: list[Block] = []
    if len({(result.engine, result.flags) for result in results}) > 1:
        blocks = [Heading("side by side"), _side_by_side(results, size), *_apart(results, size)]
    return blocks + [block for result in results for block in _plan(result, size)]


def _side_by_side(results: Sequence[PlanSummary], size: Size) -> Grid:
    models = {result.model for result in results}
    heads = [r.engine if len(models) == 1 else f"{r.model}, {r.engine}" for r in results]
    heads = [" ".join((head, *r.flags)) for head, r in zip(heads, results, strict=True)]
    rows: list[tuple[str, ...]] = []

    def row(label: str, cells: Sequence[str]) -> None:
        if any(cell != NONE for cell in cells):
            rows.append((label, *cells))

    row("KV cache dtype", [r.kv_cache_dtype for r in results])
    row("block", [maybe(r.block_size) for r in results])
    row("longest sequence", [format_count(r.max_model_len) for r in results])
    row("it needs", [size(r.needed_bytes) for r in results])
    row("  used", [size(r.request.used_bytes) for r in results])
    for name in WASTE_NAMES:
        parts = [getattr(r.request.waste, f"{name}_bytes") for r in results]
        row("  " + name.replace("_", " "), [size(part) if part else NONE for part in parts])
    starts = [r.start_up for r in results]
    row("tokens", [NONE if s is None else format_count(s.kv_cache_tokens) for s in starts])
    row("sequences", [NONE if s is None else f"{s.max_concurrency:.2f} x" for s in starts])
    row("whole ones", [NONE if s is None else format_count(s.max_sequences) for s in starts])
    return Grid(("", *heads), tuple(rows))


def _apart(results: Sequence[PlanSummary], size: Size) -> list[Block]:
    """Say for which causes each engine differs from the first."""
    blocks: list[Block] = []
    for result in results:
        base = next((r for r in results if r.model == result.model), result)
        if base.engine == result.engine:
            continue
        more = result.needed_bytes - base.needed_bytes
        verdict = (
            f"needs {size(abs(more))} {'more' if more > 0 else 'less'}" if more else "needs as much"
        )
        blocks.append(Heading(f"{result.engine} against {base.engine}: a sequence {verdict}"))
        lines = []
        for d in result.differences:
            amount = (
                "" if d.bytes is None else f" {'+' if d.bytes > 0 else '-'}{size(abs(d.bytes))}"
            )
            lines.append(f"{d.name.replace('_', ' ')}{amount}: {d.reason}")
        blocks.append(Text(tuple(lines) or ("no cause differs",)))
    return blocks


def _plan(result: PlanSummary, size: Size) -> list[Block]:
    version = f" {result.engine_version}" if result.engine_version else ""
    apart = f" ({' '.join(result.flags)})" if result.flags else ""
    heading = (
        f"{result.model}, {result.kv_cache_dtype}, engine {result.engine}{version}{apart}:"
        f" maximum {format_count(result.max_model_len)} tokens"
    )
    blocks: list[Block] = [Heading(heading), _plan_groups(result.groups)]
    request = result.request
    rows = [
        (f"one request of {format_count(result.max_model_len)}", exact(result.needed_bytes, size)),
        ("  used", exact(request.used_bytes, size)),
    ]
    for name in WASTE_NAMES:
        part = getattr(request.waste, f"{name}_bytes")
        if part:
            rows.append(("  " + name.replace("_", " "), exact(part, size)))
    rows.append(("  wasted", format_ratio(request.waste_ratio)))
    if result.block_bytes is not None:
        rows.insert(0, ("bytes a block", exact(result.block_bytes, size)))
    if result.reuse_tokens is not None:
        label = format_number_of(result.reuse_tokens, "token")
        rows.append(("a shared prefix is reused in multiples of", label))
    if len(result.ranks) > 1:
        rows.extend(
            (
                f"{r.name}, bytes a block",
                "-" if r.block_bytes is None else exact(r.block_bytes, size),
            )
            for r in result.ranks
        )
    blocks.append(Grid(("", ""), tuple(rows)))
    if result.start_up is not None:
        blocks.extend(_started(result.start_up, result.max_model_len, size))
    said = [*result.notes, *(f"not modelled: {line}" for line in result.unsupported)]
    blocks.append(Heading("why"))
    blocks.append(Text(tuple(said) + tuple(f"assumed: {line}" for line in result.convention)))
    blocks.append(Text((f"rules: {result.source}",)))
    return blocks


def _plan_groups(groups: Sequence[PlanGroup]) -> Grid:
    """Show equal groups in one row; only their number tells them apart."""
    alike: dict[tuple[object, ...], list[PlanGroup]] = {}
    for group in groups:
        key = (_unnumbered(group.name), group.layers, group.keeps, group.block_size)
        alike.setdefault((*key, group.group_bytes, group.units_needed), []).append(group)
    rows: list[tuple[str, ...]] = []
    for same in alike.values():
        group, count = same[0], len(same)
        each = f"{count} x " if count > 1 else ""
        rows.append(
            (
                _unnumbered(group.name),
                f"{each}{group.layers}",
                group.keeps,
                maybe(group.block_size),
                _page(group),
                f"{each}{format_count(group.units_needed)}",
            )
        )
    if len({group.pool for group in groups}) == 1:  # units of two pools are no sum
        total = format_count(sum(group.units_needed for group in groups))
        rows.append(("a request", "", "", "", "", total))
    columns = ("group", "layers", "keeps", "block", "page", "blocks")
    return Grid(columns, tuple(rows), text_columns=frozenset({2}))


def _page(group: PlanGroup) -> str:
    """Bytes of a block of one layer, or of all of them where they differ."""
    if group.page_bytes is not None:
        return format_count(group.page_bytes)
    return f"{format_count(group.group_bytes)} in all"


def _unnumbered(name: str) -> str:
    """Take the number from a name such as `state (2)`."""
    base, bracket, _ = name.partition(" (")
    return base if bracket else name


def _started(start: StartUp, longest: int, size: Size) -> list[Block]:
    given = (
        "the size that is set"
        if start.kv_cache_bytes is None
        else f"{size(start.kv_cache_bytes)} for the cache"
    )
    rows = [
        ("blocks", maybe(start.num_blocks)),
        ("tokens", format_count(start.kv_cache_tokens)),
        (f"sequences of {format_count(longest)}", f"{start.max_concurrency:.2f} x"),
        ("  whole ones", format_count(start.max_sequences)),
        ("not for sequences", exact(start.overhead_bytes, size)),
    ]
    if start.beside_bytes:
        rows.append(("beside it", exact(start.beside_bytes, size)))
    if start.max_model_len_that_fits < longest:
        rows.append(("longest that fits", format_number_of(start.max_model_len_that_fits, "token")))
    verdict = "starts" if start.fits else "does not start"
    if start.fits and start.start == "shortens" and start.max_model_len_served < longest:
        verdict = f"starts, for sequences of up to {format_count(start.max_model_len_served)}"
    elif start.start == "never_checks" and start.max_model_len_that_fits < longest:
        verdict = "starts, and checks nothing"
    heading = f"with {given} it {verdict}"
    if verdict == "starts" and start.kv_cache_bytes is start.gpu_bytes is None:  # where it has room
        heading = f"{given} holds a sequence of the maximum"
    blocks: list[Block] = [
        Heading(heading),
        Grid(("", ""), tuple(rows)),
    ]
    if start.log:
        blocks.append(Code(start.log))
    return blocks
