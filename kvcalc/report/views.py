"""What each result says to people, as blocks; figures are formatted here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvcalc.core.answers import CapacityAnswer
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.results import (
    Comparison,
    EngineSummary,
    FileFault,
    Fragmentation,
    Growth,
    LayerDiff,
    LayerDifference,
    LayerMap,
    LayerSpan,
    PerToken,
    PlanGroup,
    PlanSummary,
    PresetDetail,
    PresetSummary,
    SequenceSize,
    StartUp,
)
from kvcalc.core.server_metrics import ServerMetrics
from kvcalc.core.size import ModelSize
from kvcalc.core.units import (
    UnitSystem,
    format_bytes,
    format_count,
    format_number_of,
    format_ratio,
    format_times,
)
from kvcalc.core.waste import WASTE_NAMES
from kvcalc.report.blocks import Bar, Bars, Block, Code, Grid, Heading, Text
from kvcalc.report.capacity import capacity_blocks
from kvcalc.report.metrics import metrics_blocks

__all__ = ["view"]

_Size = Callable[[int], str]
_NONE = "-"


def view(results: Sequence[object], units: UnitSystem) -> list[Block]:
    """Return the blocks that show the results of one command.

    Args:
        results: values of one kind, in input order.
        units: binary or decimal sizes.
    """

    def size(value: int) -> str:
        return format_bytes(value, units=units)

    kind = type(results[0]) if results else FileFault
    return _VIEWS[kind](results, size)


def _exact(value: int, size: _Size) -> str:
    """Return every digit, and the size in its unit where that says more."""
    short = size(value)
    digits = f"{format_count(value)} B"
    return digits if short == digits else f"{digits} ({short})"


def _maybe(value: int | None, text: Callable[[int], str] = format_count) -> str:
    return _NONE if value is None else text(value)


# --------------------------------------------------------------------- per-token


def _per_token(results: Sequence[PerToken], size: _Size) -> list[Block]:
    blocks: list[Block] = []
    rows: list[tuple[str, ...]] = []

    def row(label: str, cells: Sequence[str]) -> None:
        if any(cell != _NONE for cell in cells):
            rows.append((label, *cells))

    row("KV cache dtype", [r.kv_cache_dtype for r in results])
    row("bytes a token", [_growth(r.bytes_per_token, r.growth) for r in results])
    row("", [_maybe(r.bytes_per_token, size) for r in results])
    row(
        "past windows",
        [
            _growth(r.bytes_per_token_past_windows, r.growth_past_windows)
            if r.growth_past_windows != r.growth
            else _NONE
            for r in results
        ],
    )
    row(
        "on all GPUs",
        [_maybe(r.bytes_per_token_all_ranks) if r.num_gpus > 1 else _NONE for r in results],
    )
    row("state a sequence", [_maybe(r.state_bytes or None) for r in results])
    row("", [_maybe(r.state_bytes or None, size) for r in results])
    row("encoder a sequence", [_maybe(r.encoder_bytes or None) for r in results])
    row(
        "block",
        [
            _maybe(r.block_size, lambda n: format_number_of(n, "token")) if r.block_bytes else _NONE
            for r in results
        ],
    )
    row(
        "  of the sequence",
        [
            _maybe(r.sequence_tokens_per_block, lambda n: format_number_of(n, "token"))
            if r.block_bytes and r.sequence_tokens_per_block != r.block_size
            else _NONE
            for r in results
        ],
    )
    row("bytes a block", [_maybe(r.block_bytes) for r in results])
    for i, sequence in enumerate(results[0].sequences):
        label = format_number_of(sequence.tokens, "token")
        row(label, [format_count(r.sequences[i].bytes) for r in results])
        row("", [size(r.sequences[i].bytes) for r in results])
        reserved = "in whole blocks" if results[0].engine == "none" else "the engine reserves"
        row(f"  {reserved}", [_allocated(r.sequences[i]) for r in results])
    blocks.append(Grid(("", *(r.model for r in results)), tuple(rows)))
    blocks.extend(
        _layers(r, named=len(results) > 1)
        for r in results
        if len(r.layers) > 1 or any(group.keeps != "every token" for group in r.layers)
    )
    for r in results:
        if r.explain:
            blocks.append(Heading(f"{r.model}: the formula"))
            blocks.append(Code(r.explain))
    return blocks


def _allocated(sequence: SequenceSize) -> str:
    if sequence.allocated_bytes == sequence.bytes:
        return _NONE
    return format_count(sequence.allocated_bytes)


def _growth(whole: int | None, growth: Growth) -> str:
    if whole is not None:
        return format_count(whole)
    return f"{format_count(growth.bytes)} in {growth.tokens}"


def _layers(result: PerToken | PresetDetail, *, named: bool) -> Grid:
    first = "layers"
    if named and isinstance(result, PerToken):
        first = f"layers of {result.model}, {result.kv_cache_dtype}"
    rows = tuple(
        (
            f"{group.count} x {group.kind}",
            group.shape,
            group.keeps,
            _maybe(group.bytes_per_token or None),
            _maybe(group.state_bytes or None),
        )
        for group in result.layers
    )
    columns = (first, "shape of each", "keeps", "B a token", "B of state")
    return Grid(columns, rows, text_columns=frozenset({1, 2}))


# --------------------------------------------------------------------- compare


def _comparisons(results: Sequence[Comparison], size: _Size) -> list[Block]:
    """Show one table a model and maximum, with a paged column for every block size."""
    blocks: list[Block] = []
    group: list[Comparison] = []
    for result in results:
        # Blocks of one model follow one another; its first block again is another model.
        same = group and (result.model, result.max_model_len) == (
            group[0].model,
            group[0].max_model_len,
        )
        if not same or result.block_size in {c.block_size for c in group}:
            blocks.extend(_comparison(group, size) if group else [])
            group = []
        group.append(result)
    blocks.extend(_comparison(group, size) if group else [])
    return blocks


def _comparison(group: Sequence[Comparison], size: _Size) -> list[Block]:
    one = group[0]
    load = one.workload
    requests = format_number_of(load.requests, "request")
    heading = (
        f"{one.model}, {one.kv_cache_dtype}, engine {one.engine}: {requests}"
        f" ({load.name}), maximum {format_count(one.max_model_len)} tokens"
    )
    lengths = (
        f"lengths: mean {load.mean_tokens:,.1f}, p50 {format_count(load.p50_tokens)},"
        f" p95 {format_count(load.p95_tokens)}, longest {format_count(load.longest_tokens)}"
    )
    if load.over_requests:
        done = {"clip": "cut to the maximum", "exclude": "left out", "keep": "kept as they are"}
        lengths += f"; {format_count(load.over_requests)} over the maximum, {done[load.over]}"
    paged = tuple(
        "paged" if c.block_size is None else f"paged, block {c.block_size}" for c in group
    )
    totals = [one.contiguous_total, *(c.paged_total for c in group)]
    turns = [c.at_once for c in group]
    rows: list[tuple[str, ...]] = [
        (
            "reserved in turn" if any(turns) else "reserved",
            *(size(t.reserved_bytes) for t in totals),
        ),
        ("used", *(size(t.used_bytes) for t in totals)),
        ("wasted", *(size(t.waste_bytes) for t in totals)),
    ]
    for name in WASTE_NAMES:
        parts = [getattr(t.waste, f"{name}_bytes") for t in totals]
        if any(parts):
            label = "  " + name.replace("_", " ")
            rows.append((label, *(size(p) if p else _NONE for p in parts)))
    rows.append(("waste", *(format_ratio(t.waste_ratio) for t in totals)))
    gains = [_NONE if c.reserved_gain is None else f"{c.reserved_gain:.2f} x" for c in group]
    rows.append(("contiguous / paged", "", *gains))
    if any(turns):
        at_once = (_NONE if turn is None else size(turn.allocated_bytes) for turn in turns)
        rows.append(("allocated at once", _NONE, *at_once))
    if one.concurrency is not None:
        fits = [c.concurrency for c in group if c.concurrency is not None]
        memory = size(one.concurrency.kv_cache_bytes)
        rows.append(
            (
                f"fit in {memory}",
                format_count(one.concurrency.contiguous),
                *(format_count(f.paged) for f in fits),
            )
        )
    names = ("contiguous", *paged)
    bars = tuple(
        Bar(name, t.used_bytes, t.waste_bytes, f"{format_ratio(t.waste_ratio)} wasted")
        for name, t in zip(names, totals, strict=True)
    )
    return [
        Heading(heading),
        Text((lengths,)),
        Bars(bars),
        Grid(("", *names), tuple(rows)),
        _bounds(group, size),
        *_formula(one.explain),
    ]


def _formula(lines: tuple[str, ...]) -> list[Block]:
    return [Heading("the formula"), Code(lines)] if lines else []


def _bounds(group: Sequence[Comparison], size: _Size) -> Text:
    one = group[0]
    lines = []
    if one.bytes_per_token is not None:
        lines.append(f"a token: {_exact(one.bytes_per_token, size)}")
    if one.state_bytes:
        lines.append(f"state a sequence, in both: {_exact(one.state_bytes, size)}")
    reserved = one.contiguous.reserved_bytes_per_request
    lines.append(f"contiguous reserves a request: {_exact(reserved, size)}")
    for c in group:
        if c.paged.block_bytes is None or c.block_size is None:
            continue
        lines.append(
            f"a block of {format_count(c.block_size)}: {_exact(c.paged.block_bytes, size)}"
        )
        tokens = c.paged.max_tail_tokens
        # Windows and compressed caches have blocks, and tails, of their own.
        whole = c.paged.max_tail_bytes * c.block_size == tokens * c.paged.block_bytes
        lines.append(
            f"  worst tail: {format_number_of(tokens, 'token')}"
            f"{'' if whole else ' in a block of every group'} ="
            f" {_exact(c.paged.max_tail_bytes, size)};"
            f" here {size(c.paged.mean_tail_bytes)} on average"
        )
    lines.extend(
        f"{format_count(turn.requests)} of the {format_number_of(one.workload.requests, 'request')}"
        f" run at once, in the {size(turn.allocated_bytes)} that {one.engine} allocates; the others"
        " take their places in turn"
        for turn in dict.fromkeys(c.at_once for c in group)
        if turn is not None
    )
    if one.all_ranks.num_gpus > 1:
        lines.append(
            f"on all {one.all_ranks.num_gpus} GPUs: contiguous"
            f" {size(one.all_ranks.contiguous_reserved_bytes)}, paged"
            f" {' / '.join(size(c.all_ranks.paged_reserved_bytes) for c in group)}, used"
            f" {size(one.all_ranks.used_bytes)} (the table shows the fullest GPU)"
        )
    if one.concurrency is not None:
        gains = [
            f"{c.concurrency.gain:.2f} x" if c.concurrency and c.concurrency.gain else _NONE
            for c in group
        ]
        lines.append(
            f"requests at once in {size(one.concurrency.kv_cache_bytes)},"
            " each at its own full length:"
            f" {' / '.join(f'{c.concurrency.paged_mean:,.1f}' for c in group if c.concurrency)}"
            f" paged against {format_count(one.concurrency.contiguous)} ({' / '.join(gains)})"
        )
        places = one.concurrency.max_sequences
        if places is not None and one.concurrency.paged >= places:
            lines.append(
                f"  {one.engine} has {format_number_of(places, 'place')} for sequences, however"
                " many the cache has room for"
            )
    return Text(tuple(lines))


# --------------------------------------------------------------------- plan


def _plans(results: Sequence[PlanSummary], size: _Size) -> list[Block]:
    """Show each plan; those of several engines side by side before."""
    blocks: list[Block] = []
    if len({result.engine for result in results}) > 1:
        blocks = [Heading("side by side"), _side_by_side(results, size), *_apart(results, size)]
    return blocks + [block for result in results for block in _plan(result, size)]


def _side_by_side(results: Sequence[PlanSummary], size: _Size) -> Grid:
    models = {result.model for result in results}
    heads = [r.engine if len(models) == 1 else f"{r.model}, {r.engine}" for r in results]
    rows: list[tuple[str, ...]] = []

    def row(label: str, cells: Sequence[str]) -> None:
        if any(cell != _NONE for cell in cells):
            rows.append((label, *cells))

    row("KV cache dtype", [r.kv_cache_dtype for r in results])
    row("block", [_maybe(r.block_size) for r in results])
    row("longest sequence", [format_count(r.max_model_len) for r in results])
    row("it needs", [size(r.needed_bytes) for r in results])
    row("  used", [size(r.request.used_bytes) for r in results])
    for name in WASTE_NAMES:
        parts = [getattr(r.request.waste, f"{name}_bytes") for r in results]
        row("  " + name.replace("_", " "), [size(part) if part else _NONE for part in parts])
    starts = [r.start_up for r in results]
    row("tokens", [_NONE if s is None else format_count(s.kv_cache_tokens) for s in starts])
    row("sequences", [_NONE if s is None else f"{s.max_concurrency:.2f} x" for s in starts])
    row("whole ones", [_NONE if s is None else format_count(s.max_sequences) for s in starts])
    return Grid(("", *heads), tuple(rows))


def _apart(results: Sequence[PlanSummary], size: _Size) -> list[Block]:
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


def _plan(result: PlanSummary, size: _Size) -> list[Block]:
    version = f" {result.engine_version}" if result.engine_version else ""
    heading = (
        f"{result.model}, {result.kv_cache_dtype}, engine {result.engine}{version}:"
        f" maximum {format_count(result.max_model_len)} tokens"
    )
    blocks: list[Block] = [Heading(heading), _plan_groups(result.groups)]
    request = result.request
    rows = [
        (f"one request of {format_count(result.max_model_len)}", _exact(result.needed_bytes, size)),
        ("  used", _exact(request.used_bytes, size)),
    ]
    for name in WASTE_NAMES:
        part = getattr(request.waste, f"{name}_bytes")
        if part:
            rows.append(("  " + name.replace("_", " "), _exact(part, size)))
    rows.append(("  wasted", format_ratio(request.waste_ratio)))
    if result.block_bytes is not None:
        rows.insert(0, ("bytes a block", _exact(result.block_bytes, size)))
    if result.reuse_tokens is not None:
        label = format_number_of(result.reuse_tokens, "token")
        rows.append(("a shared prefix is reused in multiples of", label))
    if len(result.ranks) > 1:
        rows.extend(
            (
                f"{r.name}, bytes a block",
                "-" if r.block_bytes is None else _exact(r.block_bytes, size),
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
                _maybe(group.block_size),
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


def _started(start: StartUp, longest: int, size: _Size) -> list[Block]:
    given = (
        "the size that is set"
        if start.kv_cache_bytes is None
        else f"{size(start.kv_cache_bytes)} for the cache"
    )
    rows = [
        ("blocks", _maybe(start.num_blocks)),
        ("tokens", format_count(start.kv_cache_tokens)),
        (f"sequences of {format_count(longest)}", f"{start.max_concurrency:.2f} x"),
        ("  whole ones", format_count(start.max_sequences)),
        ("not for sequences", _exact(start.overhead_bytes, size)),
    ]
    if start.beside_bytes:
        rows.append(("beside it", _exact(start.beside_bytes, size)))
    if start.max_model_len_that_fits < longest:
        rows.append(("longest that fits", format_number_of(start.max_model_len_that_fits, "token")))
    verdict = "starts" if start.fits else "does not start"
    if start.fits and start.start == "shortens" and start.max_model_len_served < longest:
        verdict = f"starts, for sequences of up to {format_count(start.max_model_len_served)}"
    elif start.start == "never_checks" and start.max_model_len_that_fits < longest:
        verdict = "starts, and checks nothing"
    blocks: list[Block] = [
        Heading(f"with {given} it {verdict}"),
        Grid(("", ""), tuple(rows)),
    ]
    if start.log:
        blocks.append(Code(start.log))
    return blocks


# --------------------------------------------------------------------- frag


def _fragmentation(result: Fragmentation, size: _Size) -> list[Block]:
    of_max = result.sequences_of_max
    low, high = of_max.bounds
    in_holes = format_count(low) if low == high else f"{format_count(low)} to {format_count(high)}"
    least, most = result.unusable_bounds
    unusable = (
        format_ratio(least) if least == most else f"{format_ratio(least)} to {format_ratio(most)}"
    )
    ratio = result.external_fragmentation_ratio
    rows = [
        ("free", _exact(result.free_bytes, size)),
        ("largest hole", _exact(result.largest_free_bytes, size)),
        ("holes", _maybe(result.holes)),
        ("request", _exact(result.request_bytes, size)),
        ("fits in one piece", "yes" if result.fits_contiguous else "no"),
        ("fits in blocks", "yes" if result.fits_paged else "no"),
        ("free / request", f"{format_times(result.free_bytes, result.request_bytes)} x"),
        ("external fragmentation", _NONE if ratio is None else format_ratio(ratio)),
        ("unusable for the request", unusable),
        (
            f"sequences of {format_count(of_max.max_model_len)} ({result.model})",
            f"{size(of_max.bytes)} each",
        ),
        ("  in the request", format_count(of_max.in_request)),
        ("  in the free memory", format_count(of_max.in_free)),
        ("  in its holes, contiguous", in_holes),
    ]
    return [
        Text((result.verdict,)),
        Grid(("", ""), tuple(rows)),
        Text((f"assumed: {result.assumes}",)),
        *_formula(result.explain),
    ]


# --------------------------------------------------------------------- layers

_STRIP_ROW = 60  # letters in one line of a strip


def _layer_map(result: LayerMap) -> list[Block]:
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
            _maybe(spans[0].bytes_per_token or None),
            _maybe(spans[0].state_bytes or None),
        )
        for (where, letter), spans in seen.items()
    )
    heading = f"{result.model}: {result.num_hidden_layers} layers"
    if result.architecture:
        heading += f", {result.architecture}"
    total = _maybe(result.bytes_per_token)
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


def _layer_diff(result: LayerDiff) -> list[Block]:
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
    a, b = (_maybe(value) for value in result.bytes_per_token)
    dtypes = " against ".join(dict.fromkeys(result.kv_cache_dtype))
    lines = [f"bytes a token, {dtypes}: {a} against {b}"]
    if any(result.state_bytes):
        c, d = (format_count(value) for value in result.state_bytes)
        lines.append(f"state a sequence: {c} B against {d} B")
    return [*blocks, Text(tuple(lines))]


# --------------------------------------------------------------------- lists


def _gpus(results: Sequence[GpuSpec], size: _Size) -> list[Block]:
    rows = tuple(
        (
            gpu.name,
            gpu.title,
            size(gpu.memory_bytes),
            gpu.compute_capability or gpu.architecture or _NONE,
            _NONE
            if gpu.memory_bandwidth_bytes_per_s is None
            else f"{gpu.memory_bandwidth_bytes_per_s / 10**9:,.0f}",
            _NONE
            if "bfloat16" not in gpu.dense_flops
            else f"{gpu.dense_flops['bfloat16'] / 10**12:,.0f}",
        )
        for gpu in results
    )
    columns = ("name", "card", "memory", "cc", "GB/s", "bf16 TFLOP/s")
    return [Grid(columns, rows, text_columns=frozenset({1, 3}))]


def _engines(results: Sequence[EngineSummary]) -> list[Block]:
    rows = tuple((engine.name, engine.follows, engine.checked) for engine in results)
    return [Grid(("engine", "follows", "checked against"), rows, text_columns=frozenset({1, 2}))]


def _presets(results: Sequence[PresetSummary], size: _Size) -> list[Block]:
    rows = tuple(
        (
            r.name,
            _maybe(r.bytes_per_token),
            r.kinds + (f"; state {size(r.state_bytes)}" if r.state_bytes else ""),
        )
        for r in results
    )
    columns = ("preset", "B a token", "what its layers keep")
    return [Grid(columns, rows, text_columns=frozenset({2}))]


def _preset(result: PresetDetail) -> list[Block]:
    longest = result.max_position_embeddings
    facts = [
        f"{result.num_hidden_layers} layers, {result.dtype}"
        + (f", at most {format_count(longest)} tokens" if longest else "")
        + (f", {result.architecture}" if result.architecture else ""),
        *([f"also called: {', '.join(result.aliases)}"] if result.aliases else []),
        *([f"draft layers, apart: {result.draft_layers}"] if result.draft_layers else []),
        *_sizes(result.size),
        f"read from: {', '.join(v for v in result.source.values() if v)}",
        *(
            f"must give: {format_count(v)} B a token in {k}"
            for k, v in result.expect_bytes_per_token.items()
        ),
        *(
            [f"must give: {format_count(result.expect_state_bytes)} B of state a sequence"]
            if result.expect_state_bytes
            else []
        ),
        *(f"confirmed by: {line}" for line in result.confirmed_by),
        *(f"note: {line}" for line in result.notes),
    ]
    title = f"{result.name}: {result.title}"
    return [Heading(title), _layers(result, named=False), Text(tuple(facts))]


def _sizes(size: ModelSize | None) -> list[str]:
    """Return the lines on a model's widths and weights."""
    if size is None:
        return []
    widths = (
        ("hidden size", size.hidden_size),
        ("MLP", size.intermediate_size),
        ("vocabulary", size.vocab_size),
        ("experts", size.num_experts),
        ("of these a token", size.num_experts_per_tok),
        ("expert", size.moe_intermediate_size),
        ("parameters", size.parameters),
    )
    told = [f"{name} {format_count(value)}" for name, value in widths if value is not None]
    lines = [f"size: {', '.join(told)}"] if told else []
    if size.weights_bytes is not None:
        stored = f" in {size.weights_dtype}" if size.weights_dtype else ""
        error = size.weights_error_bytes
        off = f", give or take {format_count(error)} B" if error else ""
        lines.append(
            f"weights: {format_count(size.weights_bytes)} B{stored}{off}: {size.weights_source}"
        )
    return lines


def _faults(results: Sequence[FileFault]) -> list[Block]:
    lines = [
        f"{r.file}: sound" if r.message is None else f"{r.file}:{r.line}: {r.message}"
        for r in results
    ]
    return [Text(tuple(lines))]


# --------------------------------------------------------------------- dispatch

_View = Callable[[Sequence[Any], _Size], list[Block]]


def _unsized(show: Callable[[Any], list[Block]]) -> Callable[[Any, _Size], list[Block]]:
    """Return the view of what has no sizes to format."""

    def shown(result: Any, size: _Size) -> list[Block]:
        del size
        return show(result)

    return shown


def _each(show: Callable[[Any, _Size], list[Block]]) -> _View:
    """Return the view of results that are shown one after the other."""

    def shown(results: Sequence[Any], size: _Size) -> list[Block]:
        return [block for result in results for block in show(result, size)]

    return shown


_VIEWS: dict[type, _View] = {
    PerToken: _per_token,
    Comparison: _comparisons,
    PlanSummary: _plans,
    CapacityAnswer: capacity_blocks,
    ServerMetrics: metrics_blocks,
    Fragmentation: _each(_fragmentation),
    LayerMap: _each(_unsized(_layer_map)),
    LayerDiff: _each(_unsized(_layer_diff)),
    GpuSpec: _gpus,
    EngineSummary: _unsized(_engines),
    PresetSummary: _presets,
    PresetDetail: _each(_unsized(_preset)),
    FileFault: _unsized(_faults),
}
"""Kind of result -> what shows the results of one command."""
