"""What a running server says of its cache, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.answers.server_metrics import PredictedCapacity, ServerMetrics, WasteNow, said_name
from kvcalc.core.units import format_count, format_ratio
from kvcalc.report.blocks import Block, Grid, Heading, Text
from kvcalc.report.cells import NONE, Size, maybe

__all__ = ["metrics_blocks"]

_Rows = Iterator[tuple[str, str]]


def metrics_blocks(results: Sequence[ServerMetrics], size: Size) -> list[Block]:
    """Return the blocks of each engine behind the page."""
    return [block for server in results for block in _server(server, size)]


def _server(server: ServerMetrics, size: Size) -> list[Block]:
    name = server.model or "a server"
    replica = f", {server.replica}" if server.replica else ""
    blocks: list[Block] = [
        Heading(f"{name}, engine {server.engine}{replica}"),
        Text((server.verdict,)),
    ]
    rows = tuple(_rows(server, size))
    if rows:
        blocks.append(Grid(("", "as the server says"), rows))
    if server.pools:
        blocks.append(_pools(server))
    if server.waste is not None:
        waste = tuple(_waste(server.waste))
        if waste:
            blocks.append(Grid(("waste now", ""), waste))
    if server.predicted is not None:
        blocks.extend(_predicted(server, server.predicted, size))
    whose = "block size x blocks: " if server.block_tokens is not None else ""
    said = [whose + server.why] if server.why else []
    blocks += [Heading("why"), Text((*said, *server.notes))] if said or server.notes else []
    return blocks


def _rows(server: ServerMetrics, size: Size) -> _Rows:
    def counted(label: str, value: int | None) -> _Rows:
        if value is not None:
            yield label, format_count(value)

    if server.kv_cache_dtype is not None:
        yield "KV cache dtype", server.kv_cache_dtype
    yield from counted("block size", server.block_size)
    yield from counted("blocks", server.num_blocks)
    yield from counted("block size x blocks", server.block_tokens)
    if server.block_tokens is not None:
        told = {True: "yes", False: "no", None: "cannot be told"}
        yield "  is the capacity", told[server.block_tokens_are_capacity]
    yield from counted("capacity in tokens", server.kv_cache_tokens)
    if server.kv_cache_bytes is not None:
        yield "cache of each rank", size(server.kv_cache_bytes)
    yield from counted("longest sequence", server.max_model_len)
    if server.max_concurrency is not None:
        yield "sequences of that", f"{server.max_concurrency:,.2f} x"
    if server.usage_ratio is not None:
        yield "in use", format_ratio(server.usage_ratio)
    yield from counted("blocks in use", server.blocks_used)
    yield from counted("tokens in use", server.tokens_used)
    yield from counted("requests running", server.running)
    yield from counted("requests waiting", server.waiting)
    yield from counted("lost their cache", server.preemptions)
    if server.prefix_cache is not None and server.prefix_cache.hit_ratio is not None:
        yield "prefixes found", format_ratio(server.prefix_cache.hit_ratio)


def _pools(server: ServerMetrics) -> Grid:
    rows = tuple(
        (
            pool.name,
            maybe(pool.tokens),
            maybe(pool.used_tokens),
            maybe(pool.evictable_tokens),
            NONE if pool.usage_ratio is None else format_ratio(pool.usage_ratio),
        )
        for pool in server.pools
    )
    return Grid(("pool", "tokens", "in use", "kept for reuse", "usage"), rows)


def _waste(waste: WasteNow) -> _Rows:
    if waste.held_tokens is not None:
        yield "tokens that blocks in use hold", format_count(waste.held_tokens)
    if waste.running_tokens is not None:
        yield "tokens of running requests", format_count(waste.running_tokens)
    if waste.unused_tokens is not None:
        yield "held without a token", format_count(waste.unused_tokens)
    if waste.tail_tokens is not None and waste.tail_tokens[1]:
        least, most = waste.tail_tokens
        yield "empty in last blocks", f"{format_count(least)} to {format_count(most)} tokens"
    if waste.idle_ratio is not None:
        yield "held by no request", format_ratio(waste.idle_ratio)


def _predicted(server: ServerMetrics, found: PredictedCapacity, size: Size) -> Iterator[Block]:
    rows: list[tuple[str, ...]] = []
    differing = {difference.name: difference for difference in server.differences}

    def row(label: str, name: str, reported: str, computed: str) -> None:
        told = "equal" if name in server.agreed else ""
        if name in differing:
            told = differing[name].explained_by
        rows.append((label, reported, computed, told))

    of_figures = (
        *("block_size", "num_blocks", "num_cpu_blocks", "kv_cache_tokens", "max_concurrency"),
    )
    for name, difference in differing.items():
        if name not in of_figures:
            row(
                said_name(name),
                name,
                _told(difference.reported),
                _told(difference.predicted),
            )
    row("block size", "block_size", maybe(server.block_size), maybe(found.block_size))
    row("blocks", "num_blocks", maybe(server.num_blocks), maybe(found.num_blocks))
    if server.num_cpu_blocks is not None:
        on_host = maybe(server.num_cpu_blocks), maybe(found.num_cpu_blocks)
        row("blocks on the host", "num_cpu_blocks", *on_host)
    row(
        "capacity in tokens",
        "kv_cache_tokens",
        maybe(server.kv_cache_tokens),
        maybe(found.kv_cache_tokens),
    )
    reported = NONE if server.max_concurrency is None else f"{server.max_concurrency:,.2f} x"
    times = f"{found.max_concurrency:,.2f} x"
    longest = format_count(found.max_model_len)
    row(f"sequences of {longest}", "max_concurrency", reported, times)
    if found.block_bytes is not None:
        rows.append(("bytes a block", NONE, format_count(found.block_bytes), ""))
    if found.kv_cache_bytes is not None:
        rows.append(("cache of each rank", NONE, size(found.kv_cache_bytes), ""))
    if found.used_bytes is not None:
        rows.append(("  in use", NONE, size(found.used_bytes), ""))
    version = f" {found.engine_version}" if found.engine_version else ""
    yield Heading(f"against the rules of {server.engine}{version}")
    columns = ("", "reported", "predicted", "")
    yield Grid(columns, tuple(rows), text_columns=frozenset({3}))


def _told(value: float | str | None) -> str:
    """Return a setting as it was told: a name, or a count."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else f"{value:,g}"
