"""Why each number is what it is, and what is not modelled."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import Rank
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines.sglang.assemble import Stage, requests_known
from kvcalc.engines.sglang.families import is_latent
from kvcalc.engines.sglang.host import host_tokens
from kvcalc.engines.sglang.layers import Kept
from kvcalc.engines.sglang.requests import LEAST_REQUESTS, MOST_REQUESTS, table_bytes
from kvcalc.engines.sglang.settings import Settings
from kvcalc.engines.sglang.version import NEWEST

__all__ = [
    "CONVENTION",
    "compressed_not_modelled",
    "explain",
    "explain_compressed",
    "not_modelled",
]

CONVENTION = (
    (
        "The budget is what SGLang has left for its cache once the weights are loaded: free memory"
        " less (1 - mem_fraction_static) of what was free before."
    ),
    "Each pool has one page (one slot of states) more than that, which no request gets.",
)


def explain(
    model: ModelSpec, stages: list[Stage], ranks: tuple[Rank, ...], settings: Settings
) -> list[str]:
    """Return the notes of a plan."""
    return [
        *_fraction(settings),
        *_heads(model, settings),
        *_windows(model, stages, settings),
        *_states(stages, settings),
        *_empty(stages),
        *_padding(ranks),
        *_table(ranks, settings),
        *_context_parallel(model, settings),
        *_binding(ranks, settings),
        *_cap(settings),
        *_host(stages[0].kept, settings),
    ]


def explain_compressed(ranks: tuple[Rank, ...], settings: Settings) -> list[str]:
    """Return the notes of a plan of compressed attention."""
    price = (ranks[0].sizing.price if ranks[0].sizing is not None else None) or 0.0
    told = [
        (
            f"{settings.window_ratio} window tokens for every token; with them a token is charged"
            f" {price:,.2f} B"
        ),
        (
            f"{format_count(settings.max_requests or 0)} requests at once have the states of an"
            " entry of 128 tokens in the making, paid for before any token (max_running_requests)"
        ),
    ]
    if settings.attn_tp > 1:
        told.append(f"each of {settings.attn_tp} ranks keeps the rows of all its requests")
    return [
        *_fraction(settings),
        *told,
        *_padding(ranks),
        *_table(ranks, settings),
        *_binding(ranks, settings),
        *_cap(settings),
    ]


def compressed_not_modelled(settings: Settings) -> tuple[str, ...]:
    """Return what a plan of compressed attention leaves out."""
    host = ("the host's pools (HiCache)",) if settings.host is not None else ()
    return (
        *host,
        "the table from tokens to window tokens: 8 B a token, beside the budget",
        (
            f"window tokens out of reach are given back every {settings.eviction_interval} steps,"
            " so that a request can hold a page more"
        ),
        "mem_fraction_static by default, which depends on the graphs that are captured",
    )


def _fraction(settings: Settings) -> Iterator[str]:
    if settings.mem_fraction is not None:
        yield (
            f"mem_fraction_static {settings.mem_fraction:g} decides what a card leaves for the"
            " cache, and plays no part where the cache's bytes are given"
        )


def _heads(model: ModelSpec, settings: Settings) -> Iterator[str]:
    shards = settings.attn_tp // settings.dcp
    heads = {c.num_kv_heads for _, c in model.caches() if hasattr(c, "num_kv_heads")}
    for count in sorted(heads):
        if shards > count:
            yield f"{format_number_of(count, 'KV head')} on {shards} ranks: each keeps one whole"
    if is_latent(model) and shards > 1:
        yield f"each of {shards} ranks keeps the latents of all its requests"


def _windows(model: ModelSpec, stages: list[Stage], settings: Settings) -> Iterator[str]:
    kept = stages[0].kept
    if kept.full is not None and kept.full.windows and not settings.own_windows:
        layers = sum(
            count
            for count, cache in model.caches()
            if cache.kind in ("sliding_window", "chunked_attention")
        )
        yield (
            f"{format_number_of(layers, 'layer')} with a window keep every token: SGLang has no"
            f" pool of windows for {model.architecture or 'this model'}"
        )
    if kept.window is not None and kept.full is not None:
        sizing_note = f"{settings.window_ratio} window tokens for every token"
        if not settings.radix and settings.max_requests is not None:
            sizing_note = "as many window tokens as the requests at once can hold"
        yield f"windows have a pool of their own with {sizing_note}"


def _states(stages: list[Stage], settings: Settings) -> Iterator[str]:
    states = [stage.kept.states for stage in stages if stage.kept.states is not None]
    if not states:
        return
    count = settings.states_per_request
    yield (
        f"a request can come to hold {format_number_of(count, 'slot')} of states"
        f" ({format_count(states[0].slot)} B each): "
        + (
            "prefixes are kept"
            + ("" if settings.tracked == "no_buffer" else f", tracked by {settings.tracked}")
            if settings.radix
            else "no prefix is kept"
        )
    )
    if settings.proposed:
        yield (
            f"and {format_count(states[0].proposed)} B of states for {settings.proposed} tokens"
            " verified at once"
        )
    if settings.max_states is None and (settings.radix or settings.max_requests is None):
        yield (
            f"states get {settings.state_ratio} / {1 + settings.state_ratio:g} of the memory"
            " (mamba_full_memory_ratio)"
        )


def _empty(stages: list[Stage]) -> Iterator[str]:
    empty = sum(
        rows.tensors - rows.layers
        for stage in stages
        for rows in (stage.kept.full, stage.kept.window)
        if rows is not None
    )
    if empty:
        yield f"{format_number_of(empty, 'layer')} without rows of their own have tensors as well"


def _padding(ranks: tuple[Rank, ...]) -> Iterator[str]:
    total = sum(pool.reserved_units * pool.unit_bytes for pool in ranks[0].pools)
    yield f"{format_count(total)} B of padding: a page (a slot) of every pool that no request gets"


def _table(ranks: tuple[Rank, ...], settings: Settings) -> Iterator[str]:
    row = settings.context + settings.row_extra
    if not ranks[0].outside_bytes:
        yield (
            f"the request table takes {format_count(4 * row)} B beside the budget for each request"
            " at once; how many there can be, the slots of states decide:"
            f" {settings.states_per_request} serve one"
        )
        return
    size = f"the request table takes {format_count(ranks[0].outside_bytes)} B beside the budget"
    requests = requests_known(settings)
    if settings.max_requests is None and requests == LEAST_REQUESTS:
        most = format_count(table_bytes(MOST_REQUESTS, row))
        yield (
            f"{size} for {format_count(requests)} requests at once, and up to {most} B for"
            f" {format_count(MOST_REQUESTS)} where more than four sequences of the maximum fit"
        )
    else:
        yield f"{size} for {format_number_of(requests, 'request')} at once"


def _context_parallel(model: ModelSpec, settings: Settings) -> Iterator[str]:
    if settings.dcp > 1 and any(cache.kind == "indexer" for _, cache in model.caches()):
        yield f"each of {settings.dcp} ranks keeps the index keys of all tokens"


def _host(kept: Kept, settings: Settings) -> Iterator[str]:
    """Say what lies in host memory, beside the GPU's pools."""
    host = settings.host
    if host is None or kept.full is None:
        return
    if host.size is not None:
        tokens = host_tokens(host, 0, kept.full.cell, settings.page)
        yield (
            f"HiCache: a pool of {format_count(tokens * kept.full.cell)} B in host memory a rank:"
            f" {format_count(tokens)} tokens (hicache_size {host.size}, rounded up to a page)"
        )
        return
    less = ", fewer where the host has no room" if host.fits else ""
    yield (
        f"HiCache: a pool in host memory a rank of {host.ratio:g} tokens for every token of the"
        f" GPU's and a page more{less}, of {format_count(kept.full.cell)} B each"
    )


def _binding(ranks: tuple[Rank, ...], settings: Settings) -> Iterator[str]:
    """Say where the windows' pool runs out before that of all tokens."""
    needs = {pool.sized: pool.need(settings.context) for pool in ranks[0].pools}
    sizing = ranks[0].sizing
    if sizing is None or sizing.window_ratio is None or not {"tokens", "window"} <= set(needs):
        return
    if needs["window"] > sizing.window_ratio * needs["tokens"]:
        yield (
            f"of sequences of {format_count(settings.context)} tokens the windows' pool holds"
            f" fewer, and decides: each takes {format_count(needs['window'] * settings.page)} of"
            f" its tokens, of which there are {sizing.window_ratio} for every token"
            " (swa_full_tokens_ratio)"
        )


def _cap(settings: Settings) -> Iterator[str]:
    if settings.max_tokens is not None:
        yield (
            f"max_total_tokens: no more than {format_count(settings.max_tokens)} tokens are"
            " allocated, and memory for more is left unused"
        )


def _rest_of_a_cap(stages: list[Stage], settings: Settings) -> Iterator[str]:
    """A windows' pool cut to max_total_tokens is no whole number of pages (SWARequestCap...)."""
    window, most = stages[0].kept.window, settings.max_tokens
    rest = 0 if most is None else most % settings.page
    by_requests = not settings.radix and settings.max_requests is not None
    if window is not None and rest and by_requests:
        yield (
            f"the windows' pool, where max_total_tokens cuts it, has {rest} tokens beyond its last"
            f" whole page: {format_count(rest * window.cell)} B more that no request gets"
        )


def not_modelled(stages: list[Stage], settings: Settings) -> tuple[str, ...]:
    """Return what the plan leaves out, with its size where that is known."""
    told = []
    if stages[0].kept.window is not None and stages[0].kept.full is not None:
        interval = settings.eviction_interval * max(1, settings.proposed)
        told.append("the table from tokens to window tokens: 8 B a token, beside the budget")
        told.append(
            f"window tokens out of reach are given back every {settings.eviction_interval} steps: a"
            f" request can hold up to {format_count(interval)} more than its window"
        )
    if settings.index_dtype is not None and settings.card.blackwell:
        told.append("the packed rows of a checkpoint of minimax_m3_nvfp4 (MiniMax-M3.1)")
    if settings.host is not None and (stages[0].kept.window or stages[0].kept.states):
        told.append("the host's pools of windows and states")
        told.append("a windows' pool of a window and a page or less, with which it does not start")
    told.extend(_rest_of_a_cap(stages, settings))
    if stages[0].kept.states is not None and settings.radix:
        told.append("at which tokens a prefix with states can be taken up")
    if settings.release != NEWEST:
        told.append(
            f"what {settings.release} does otherwise than {NEWEST}, padding, the request table and"
            " the models with a pool of windows apart: kernels, pages and dtypes by default"
        )
    if settings.release.first_read and stages[0].kept.window is not None:
        told.append("tokens rounded down twice where windows have a pool: a page less at most")
    return tuple(told)
