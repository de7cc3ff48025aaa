"""What a probe measured, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.answers.probed import MeasuredBytes, ProbeDifference, ProbeResult
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.report.blocks import Block, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size

__all__ = ["probe_blocks"]


_LAYERS = (
    ("tensors' storages", "storage_bytes"),
    ("asked of the allocator", "requested_bytes"),
    ("allocated", "allocated_bytes"),
    ("reserved", "reserved_bytes"),
    ("this process", "process_bytes"),
    ("no longer free", "device_bytes"),
)


def probe_blocks(results: Sequence[ProbeResult], size: Size) -> list[Block]:
    """Return the blocks of each probe."""
    return [block for result in results for block in _probe(result, size)]


def _probe(result: ProbeResult, size: Size) -> list[Block]:
    what = (
        f"{result.model}, {result.kv_cache_dtype}, engine {result.engine}: " if result.model else ""
    )
    blocks: list[Block] = [Heading(f"{what}{result.device}"), Text((result.verdict,))]
    about = tuple(_about(result))
    if about:
        blocks.append(Grid(("", ""), about, text_columns=frozenset({1})))
    bytes_ = _bytes(result, size)
    if bytes_.rows:
        blocks.append(bytes_)
    if result.engine_says:
        rows = tuple((name, format_count(value)) for name, value in result.engine_says.items())
        blocks.append(Grid(("the engine says", ""), rows))
    if result.differences:
        blocks.append(_differences(result.differences))
    if result.notes:
        blocks += [Heading("notes"), Text(result.notes)]
    return blocks


def _about(result: ProbeResult) -> Iterator[tuple[str, str]]:
    if result.requests:
        requests = format_number_of(result.requests, "request")
        yield "laid into the pool", f"{requests}, {format_number_of(result.tokens, 'token')}"
    if result.layout:
        yield "tensors", f"{format_count(result.tensors)}: {result.layout}"
    if result.kernel:
        yield "kernel", result.kernel
    if result.repetitions:
        spread = (
            "" if result.spread_bytes is None else f", {format_count(result.spread_bytes)} B apart"
        )
        yield "repetitions", f"{result.repetitions}{spread}"
    yield from result.versions.items()


def _bytes(result: ProbeResult, size: Size) -> Grid:
    """Show each layer of accounting, from the computed figure outwards."""
    other = result.contiguous
    rows: list[tuple[str, ...]] = []

    def cell(value: int | None) -> str:
        return NONE if value is None else f"{format_count(value)} B"

    def row(label: str, paged: int | None, whole: int | None) -> None:
        if paged is not None or whole is not None:
            cells = (cell(paged), cell(whole)) if two else (cell(paged),)
            rows.append((label, *cells))

    two = other is not None or result.contiguous_computed_bytes is not None
    row("computed", result.computed_bytes, result.contiguous_computed_bytes)
    for label, name in _LAYERS:
        row(label, _of(result.measured, name), None if other is None else _of(other, name))
    row("workspace of a step", result.workspace_bytes, result.contiguous_workspace_bytes)
    row("not given back", result.leak_bytes, None)
    columns = ("", "paged", "in one piece each") if two else ("", "bytes")
    del size  # every digit counts here
    return Grid(columns, tuple(rows))


def _of(measured: MeasuredBytes, name: str) -> int | None:
    value = getattr(measured, name)
    return None if value is None else int(value)


def _differences(differences: Sequence[ProbeDifference]) -> Grid:
    rows = tuple(
        (
            each.name,
            f"{each.bytes:+,} B" if each.bytes else "0 B",
            NONE if each.expected_bytes is None else _expected(each),
            each.explained_by,
        )
        for each in differences
    )
    return Grid(("gap", "measured", "expected", "what it is"), rows, text_columns=frozenset({3}))


def _expected(each: ProbeDifference) -> str:
    if each.expected_bytes == each.bytes:
        return "equal"
    expected = each.expected_bytes or 0
    return f"{expected:+,} B ({format_bytes(abs(each.bytes - expected))} off)"
