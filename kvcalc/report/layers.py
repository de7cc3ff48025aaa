"""The layers of a model, for people: a strip and what each keeps; two models side by side."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.answers.results import LayerDiff, LayerDifference, LayerMap, LayerSpan
from kvcalc.core.units import format_count
from kvcalc.report.blocks import Block, Code, Grid, Heading, Text
from kvcalc.report.cells import maybe

__all__ = ["layer_diff_blocks", "layer_map_blocks"]

_STRIP_ROW = 60  # letters in one line of a strip


def layer_map_blocks(result: LayerMap) -> list[Block]:
    """Return the blocks of one model's layers."""
    strip = result.strip
    rows = [f"{i:>5}  {strip[i : i + _STRIP_ROW]}" for i in range(0, len(strip), _STRIP_ROW)]
    seen: dict[tuple[str, str], list[LayerSpan]] = {}
    for where, spans in (("", result.spans), ("draft ", result.draft_spans)):
        for span in spans:
            seen.setdefault((where, span.letter), []).append(span)
    grid = tuple(
        (
            letter,
            where + _places(spans),
            _kept(spans[0]),
            maybe(spans[0].bytes_per_token or None),
            maybe(spans[0].state_bytes or None),
        )
        for (where, letter), spans in seen.items()
    )
    heading = f"{result.model}: {result.num_hidden_layers} layers"
    if result.architecture:
        heading += f", {result.architecture}"
    total = maybe(result.bytes_per_token)
    columns = ("", "layers", "what each of them keeps", "B a token", "B of state")
    return [
        Heading(heading),
        Code(tuple(rows)),
        Grid(columns, grid, text_columns=frozenset({1, 2})),
        Text(
            (
                f"all layers, {result.kv_cache_dtype}: {total} B a token"
                + (
                    f", {format_count(result.state_bytes)} B of state" if result.state_bytes else ""
                ),
            )
        ),
    ]


_PLACES_SHOWN = 3


def _kept(span: LayerSpan) -> str:
    if span.keeps == "nothing":
        return f"nothing: {span.shape}" if span.shape else "nothing"
    return f"{span.kind}: {span.shape}, {span.keeps}"


def _places(spans: Sequence[LayerSpan | LayerDifference]) -> str:
    """Write layer numbers, the first few spans of them: `0-4, 6-10, ... (52)`."""
    texts = [
        f"{span.first}" if span.first == span.last else f"{span.first}-{span.last}"
        for span in spans
    ]
    if len(texts) <= _PLACES_SHOWN:
        return ", ".join(texts)
    count = sum(span.last - span.first + 1 for span in spans)
    return f"{', '.join(texts[:_PLACES_SHOWN])}, ... ({count})"


def layer_diff_blocks(result: LayerDiff) -> list[Block]:
    """Return the blocks of two models side by side, layer by layer."""
    alike: dict[tuple[str, str], list[LayerDifference]] = {}
    for difference in result.differences:
        alike.setdefault((difference.left, difference.right), []).append(difference)
    rows = tuple(
        (_places(places), a or "(no such layer)", b or "(no such layer)")
        for (a, b), places in alike.items()
    )
    left, right = result.left, result.right
    blocks: list[Block] = [
        Heading(f"{left} against {right}: {result.equal_layers} layers keep the same")
    ]
    if rows:
        blocks.append(Grid(("layers", left, right), rows, text_columns=frozenset({0, 1, 2})))
    a, b = (maybe(value) for value in result.bytes_per_token)
    dtypes = " against ".join(dict.fromkeys(result.kv_cache_dtype))
    lines = [f"bytes a token, {dtypes}: {a} against {b}"]
    if any(result.state_bytes):
        c, d = (format_count(value) for value in result.state_bytes)
        lines.append(f"state a sequence: {c} B against {d} B")
    return [*blocks, Text(tuple(lines))]
