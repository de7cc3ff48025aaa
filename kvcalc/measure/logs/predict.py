"""What a plan predicts of the figures of a log, and settings that the figures alone give.

A context of llama.cpp by the bytes of its cache and its step by the cells of a window's, SGLang's
slots of states by their bytes, LMDeploy's and TensorRT-LLM's tokens a block by
the bytes or number of blocks, TGI's kernels by the tokens of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

import msgspec

from kvcalc.answers.logs import Fact, Predicted, Unit
from kvcalc.core.capacity import Logged, logged_figures, longest, start_up_need
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.search import first_that
from kvcalc.core.units import cdiv, format_bytes, format_count
from kvcalc.engines import engine_of, plan, start_up_log
from kvcalc.measure.logs.engine_settings import more_than_devices
from kvcalc.measure.logs.starts import starts_of

__all__ = [
    "Derived",
    "Span",
    "agrees",
    "cache_budget",
    "derived",
    "paged_blocks",
    "predicted",
    "span_text",
]

_BLOCKS = (8, 16, 32, 64, 128, 256)
_CELLS, _MOST_CELLS = 1024, 2**30
_SLOT = 64
_OLD_STEP = 32
"""Cells that llama.cpp of 2024, and what was forked from it, pads to."""

_STEPS = tuple(2**power for power in range(13, 3, -1))
_BATCH = 2048
"""llama.cpp's n_batch where nothing is said: a larger n_ubatch needs a larger one."""

_DRAFTS = ("draft ", "mtp ")
_KERNELS = {1: "flashinfer", 16: "paged", 256: "flashdecoding"}
"""TGI: tokens a block -> the kernels that have such (server models/globals.py)."""


class Derived(NamedTuple):
    """A setting that the figures give.

    Attributes:
        name: of a field of Deployment, or of an engine's argument.
        value: what it is.
        argument: it is an engine's argument.
        source: the figure that gives it.
    """

    name: str
    value: Any
    argument: bool
    source: str


def derived(model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]) -> Derived | None:
    """Return what the figures of a log say of its settings; None for nothing.

    Args:
        model: of the start.
        deployment: as far as it is known; what is given there is left as it is.
        facts: the log's figures.
    """
    rule = _RULES.get(deployment.engine)
    try:
        return None if rule is None else rule(model, deployment, facts)
    except KvcalcError:
        return None


def _with(deployment: Deployment, **args: Any) -> Deployment:
    return msgspec.structs.replace(deployment, engine_args={**deployment.engine_args, **args})


def _range(facts: Mapping[str, Fact], name: str) -> tuple[int, int] | None:
    fact = facts.get(name)
    if fact is None or not isinstance(fact.low, int) or not isinstance(fact.high, int):
        return None
    return fact.low, fact.high


# ------------------------------------------------------------------------ llama.cpp


def _llamacpp(
    model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]
) -> Derived | None:
    """Return n_ctx by the bytes of a cache whose cells no line tells; else n_ubatch by a window."""
    told = _caches(facts)
    if "ctx_size" in deployment.engine_args:
        return _step(model, deployment, facts)
    if told is None:
        return None
    size, source = told
    for drafts in (False, True):
        # The cache of a draft has a line of its own, which may be left out.
        cells = _cells(model, deployment, size, drafts=drafts)
        if cells:
            return Derived("ctx_size", cells, argument=True, source=f"{source} of cache in the log")
    return None


def _step(model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]) -> Derived | None:
    """Return n_ubatch by the cells of a window's cache, which are the window and one step's tokens.

    They are padded, so that several steps may be meant: the largest power of two is taken, and
    none where the default gives the cells that are logged.
    """
    cells = _range(facts, "cells_window")
    if cells is None or "ubatch_size" in deployment.engine_args:
        return None

    def given(**args: int) -> bool:
        made = plan(model, _with(deployment, **args))
        told = start_up_log(made, None)
        found = next(iter(starts_of(enumerate(told, 1))), None)
        fact = found.facts().get("cells_2") if found is not None else None
        return fact is not None and fact.low == cells[0]

    if given():
        return None
    for size in _STEPS:
        if given(ubatch_size=size, batch_size=max(size, _BATCH)):
            source = f"at most, by the {facts['cells_window'].printed} cells of the window's cache"
            return Derived("ubatch_size", size, argument=True, source=source)
    return None


def _caches(facts: Mapping[str, Fact]) -> tuple[tuple[int, int], str] | None:
    """Return the bytes of all caches that have a line, and the first as it is printed."""
    lines = [f for n, f in facts.items() if n == "cache_size" or n.startswith("cache_size_")]
    lines = lines or [facts[name] for name in ("kv_buffer", "device_context") if name in facts][:1]
    if not lines:
        return None
    low, high = (
        sum(int(end or 0) for end in ends)
        for ends in zip(*((f.low, f.high) for f in lines), strict=True)
    )
    return (low, high), lines[0].printed


def _cells(
    model: ModelSpec, deployment: Deployment, size: tuple[int, int], *, drafts: bool
) -> int | None:
    """Return the cells whose cache has so many bytes; None for none."""

    def held(cells: int) -> int:
        made = plan(model, _with(deployment, ctx_size=cells))
        return sum(
            pool.total_bytes(pool.units or 0)
            for rank in made.ranks
            for pool in rank.pools
            if not pool.name.endswith("state") and (drafts or not pool.name.startswith(_DRAFTS))
        )

    one, two = held(_CELLS), held(2 * _CELLS)
    if two <= one:
        return None
    low, high = (_CELLS + (end - one) * _CELLS // (two - one) for end in size)
    for step in (_CELLS, 256):
        cells = cdiv(max(low, 1), step) * step
        if cells <= _MOST_CELLS and size[0] <= held(cells) <= size[1]:
            return cells
    cells = cdiv(max(low, 1), _OLD_STEP) * _OLD_STEP
    return cells if cells <= min(high, _MOST_CELLS) else None


# --------------------------------------------------------------------------- states


def _sglang(model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]) -> Derived | None:
    """Return the slots of states by their bytes, where no line tells how many there are."""
    sizes = {n: _range(facts, n) for n in ("ssm_state_size", "conv_state_size")}
    size = sizes["ssm_state_size"]
    args = deployment.engine_args
    if size is None or "max_mamba_cache_size" in args:
        return None
    if args.get("disable_radix_cache") and deployment.max_num_seqs is not None:
        return None  # the requests at once are the slots
    from kvcalc.engines.sglang.start_up import pool_sizes  # no other engine's log needs it

    def held(slots: int) -> Mapping[str, int]:
        made = plan(model, _with(deployment, max_mamba_cache_size=slots))
        found: dict[str, int] = {}
        for pool in made.rank.pools:
            if pool.sized == "states":
                found = pool_sizes(pool, slots)
        return {
            "ssm_state_size": found.get("recurrent", 0),
            "conv_state_size": found.get("conv", 0),
        }

    one, two = held(_SLOT)["ssm_state_size"], held(2 * _SLOT)["ssm_state_size"]
    if two <= one:
        return None
    about = _SLOT + (size[0] - one) * _SLOT // (two - one)
    fits = [
        slots
        for slots in range(max(1, about - 1), about + 4)
        if all(
            span is None or span[0] <= has <= span[1]
            for span, has in zip(sizes.values(), held(slots).values(), strict=True)
        )
    ]
    if len(fits) != 1:
        return None
    source = f"states of {facts['ssm_state_size'].printed} in the log"
    return Derived("max_mamba_cache_size", fits[0], argument=True, source=source)


# --------------------------------------------------------------------------- blocks


def _lmdeploy(
    model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]
) -> Derived | None:
    """Return the tokens of a block of which the log tells the bytes."""
    size = _range(facts, "block_memory")
    if size is None or "cache_block_seq_len" in deployment.engine_args:
        return None
    fits = []
    for block in _BLOCKS:
        made = plan(model, _with(deployment, cache_block_seq_len=block))
        if size[0] <= (made.block_bytes or 0) <= size[1]:
            fits.append(block)
    if len(fits) != 1:
        return None
    source = f"blocks of {facts['block_memory'].printed} in the log"
    return Derived("cache_block_seq_len", fits[0], argument=True, source=source)


def _tensorrt(
    model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]
) -> Derived | None:
    """Return the tokens of a block of which the log tells the number, or the number of tokens."""
    count = _range(facts, "num_gpu_blocks")
    if count is None or deployment.block_size is not None:
        return None
    if "tokens_per_block" in deployment.engine_args:
        return None
    fits = []
    tokens = _range(facts, "kv_cache_tokens")
    for block in _BLOCKS:
        made = plan(model, msgspec.structs.replace(deployment, block_size=block))
        if tokens is not None:
            right = count[0] * block == tokens[0]
        else:
            span = paged_blocks(made, facts)
            right = span is not None and span[0] <= count[0] <= span[1]
        if right:
            fits.append(block)
    if len(fits) != 1:
        return None
    source = f"{facts['num_gpu_blocks'].printed} blocks in the log"
    return Derived("block_size", fits[0], argument=False, source=source)


def paged_blocks(made: CachePlan, facts: Mapping[str, Fact]) -> tuple[int, int] | None:
    """Return the [least, most] blocks of TensorRT-LLM's pool by the memory that was free.

    The line that tells it is of the manager in C++, which divides nine tenths of what is free by
    the bytes of a token, and rounds the tokens up to blocks, in 0.13 as in 1.x (kvCacheManager.cpp,
    calculateMaxNumBlocks).
    """
    free = _range(facts, "free_memory")
    block, unit = made.block_size, made.block_bytes
    if free is None or not block or not unit or unit % block:
        return None
    low, high = (cdiv(max(0, end * 9 // 10 // (unit // block)), block) for end in free)
    return low, high


def _tgi(model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]) -> Derived | None:
    """Return the kernels whose blocks have so many tokens."""
    del model
    size = _range(facts, "block_size")
    if size is None or deployment.attention_backend is not None or size[0] not in _KERNELS:
        return None
    source = f"blocks of {facts['block_size'].printed} in the log"
    return Derived("attention_backend", _KERNELS[size[0]], argument=False, source=source)


_RULES: dict[str, Callable[[ModelSpec, Deployment, Mapping[str, Fact]], Derived | None]] = {
    "llama.cpp": _llamacpp,
    "sglang": _sglang,
    "lmdeploy": _lmdeploy,
    "tensorrt-llm": _tensorrt,
    "tgi": _tgi,
}
"""Engine -> what its figures give."""


# --------------------------------------------------------------------- predict
#
# What kvcalc says to a start: its plan's figures under the logged memory, as ranges.
#
# The memory is printed in two decimals, so that several numbers of blocks may be meant; a figure
# agrees where some memory that prints so gives it. Where no memory is printed, the tokens or blocks
# that are stand for it, and the other figures are held against them.

_MOST_BLOCKS = 10**9
_PLENTY = 2**45
_SWAP = 4 * 2**30
"""vLLM V0's default swap space on each GPU, from which its CPU blocks are counted."""

_MOST_SCANNED = 600
"""Numbers of blocks within a printed memory that are tried one by one."""


_TAKEN = {
    "sglang": ("kv_cache_tokens", "context_length", "state_slots"),
    "mlc-llm": ("mode", "max_num_seqs", "kv_cache_tokens", "prefill_chunk_size"),
}
"""Figures that a plan was made with, and that agree with themselves."""


class Span(NamedTuple):
    """Bytes of the cache that a log allows, and which figure says so."""

    low: int
    high: int
    basis: str


def agrees(fact: Fact, found: Predicted) -> bool:
    """Whether a logged figure and a predicted one can be the same number."""
    if fact.low is None or fact.high is None:
        return fact.printed == found.text
    return fact.low <= found.high and found.low <= fact.high


def predicted(plan: CachePlan, facts: Mapping[str, Fact]) -> dict[str, Predicted]:
    """Return kvcalc's figures by the names of the log's."""
    by_engine = {
        "vllm": _blocks_of,
        "tensorrt-llm": _predict_tensorrt,
        "lmdeploy": _predict_lmdeploy,
        "tgi": _predict_tgi,
        "mlc-llm": _mlc,
    }
    printed = engine_of(plan.engine).prints_as or plan.engine
    return dict(by_engine.get(printed, _printed)(plan, facts))


def span_text(low: float, high: float, unit: Unit) -> str:
    """Return a range as people read it."""
    if unit == "B":
        ends = [format_bytes(int(low)), format_bytes(int(high))]
    elif unit in ("times", "share"):
        ends = [f"{low:,.2f}", f"{high:,.2f}"]
    else:
        ends = [format_count(int(low)), format_count(int(high))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _made(low: float, high: float, unit: Unit, basis: str) -> Predicted:
    low, high = min(low, high), max(low, high)
    return Predicted(text=span_text(low, high, unit), low=low, high=high, unit=unit, basis=basis)


# ----------------------------------------------------------------------------- vLLM


def cache_budget(plan: CachePlan, facts: Mapping[str, Fact]) -> Span | None:
    """Return the bytes of a rank's cache that a log of vLLM allows; None where it tells none."""
    memory = facts.get("available_kv_cache")
    if memory is not None and isinstance(memory.low, int) and isinstance(memory.high, int):
        return Span(memory.low, memory.high, f"{memory.printed} available")
    pool = plan.block_pool
    if pool is None:
        return None
    unit = pool.unit_bytes
    blocks = facts.get("num_gpu_blocks")
    if blocks is not None and isinstance(blocks.low, int) and blocks.low > 0:
        return Span(blocks.low * unit, (blocks.low + 1) * unit - 1, f"{blocks.printed} blocks")
    tokens = facts.get("kv_cache_tokens")
    if tokens is None or not isinstance(tokens.low, int) or tokens.low < 1:
        return None
    low = _first_blocks(plan, unit, tokens.low)
    if low is None:
        return None
    high = _first_blocks(plan, unit, tokens.low + 1) or low + 1
    return Span(low * unit, max(low + 1, high) * unit - 1, f"{tokens.printed} tokens")


def _first_blocks(plan: CachePlan, unit: int, tokens: int) -> int | None:
    def enough(count: int) -> bool:
        return logged_figures(plan, count * unit).kv_cache_tokens >= tokens

    return first_that(enough, 0, _MOST_BLOCKS) if enough(_MOST_BLOCKS) else None


def _blocks_of(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    yield from _layout(plan, facts)
    if "num_cpu_blocks" in facts and plan.block_bytes:
        swap = facts.get("swap_space_bytes")
        space = swap.low if swap is not None and isinstance(swap.low, int) else _SWAP
        count = space // plan.block_bytes
        if facts["num_cpu_blocks"].low:  # 0: swap space is off
            basis = f"{format_bytes(space)} of swap space over the bytes of a block"
            yield "num_cpu_blocks", _made(count, count, "blocks", basis)
    if "needed_memory" in facts:
        need = max(start_up_need(plan, rank, plan.max_model_len) for rank in plan.ranks)
        basis = f"what one sequence of {format_count(plan.max_model_len)} tokens takes"
        yield "needed_memory", _made(need, need, "B", basis)
    span = cache_budget(plan, facts)
    if span is None or span.high < 1:
        return
    low, high = max(1, span.low), span.high
    low, high, first, last = _narrowed(plan, facts, low, high)
    if first.num_blocks is not None and last.num_blocks is not None:
        yield "num_gpu_blocks", _made(first.num_blocks, last.num_blocks, "blocks", span.basis)
    whole = "a whole number of blocks has them" if span.basis.endswith("tokens") else span.basis
    ends = first.kv_cache_tokens, last.kv_cache_tokens
    yield "kv_cache_tokens", _made(*ends, unit="tokens", basis=whole)
    times = _made(first.max_concurrency, last.max_concurrency, "times", span.basis)
    yield "max_concurrency", times
    if "max_model_len_that_fits" in facts:
        fits = [
            min(longest(plan, rank, budget, plan.max_model_len) for rank in plan.ranks)
            for budget in (low, high)
        ]
        yield "max_model_len_that_fits", _made(fits[0], fits[1], "tokens", span.basis)
    if not span.basis.endswith("available") and plan.block_pool is not None:
        yield "available_kv_cache", _made(span.low, span.high, "B", span.basis)


def _narrowed(
    plan: CachePlan, facts: Mapping[str, Fact], low: int, high: int
) -> tuple[int, int, Logged, Logged]:
    """Return the part of a memory whose blocks give every printed figure at once, if any does."""
    whole = low, high, logged_figures(plan, low), logged_figures(plan, high)
    pool = plan.block_pool
    if pool is None or plan.rank.units_are_set:
        return whole
    unit = pool.unit_bytes
    first, last = low // unit, high // unit
    if not 0 < last - first <= _MOST_SCANNED:
        return whole
    held = []
    for count in range(max(1, first), last + 1):
        budget = max(low, count * unit)
        found = logged_figures(plan, budget)
        if _gives(found.num_blocks, facts.get("num_gpu_blocks")) and (
            _gives(found.kv_cache_tokens, facts.get("kv_cache_tokens"))
            and _gives(found.max_concurrency, facts.get("max_concurrency"))
        ):
            held.append((budget, min(high, (count + 1) * unit - 1), found))
    if not held:
        return whole
    return held[0][0], held[-1][1], held[0][2], held[-1][2]


def _gives(value: float | None, fact: Fact | None) -> bool:
    if value is None or fact is None or fact.low is None or fact.high is None:
        return True
    return fact.low <= value <= fact.high


def _layout(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    """Yield what a plan's groups look like: the block that was raised, layers that pad."""
    if "attention_block_size" in facts and plan.block_size:
        basis = "the block whose page covers a state"
        yield "attention_block_size", _made(plan.block_size, plan.block_size, "tokens", basis)
    if "padding_layers" in facts:
        groups = plan.rank.groups()
        widest = max(group.layers for group in groups)
        count = sum(widest - group.layers for group in groups)
        basis = f"groups of {widest} layers"
        yield "padding_layers", _made(count, count, "count", basis)


# ------------------------------------------------------------------- other engines


def _printed(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    """Yield the figures of the lines that the engine would print itself."""
    basis = f"{plan.engine}'s own lines of this plan"
    fixed = plan.split == "fixed"
    try:
        lines = start_up_log(plan, None if fixed else _PLENTY)
        more = lines if fixed else start_up_log(plan, 2 * _PLENTY)
    except KvcalcError:
        return
    bound = _figures_of(plan.engine, more)
    for start in starts_of(enumerate(lines, 1)):
        if start.engine != plan.engine:
            continue
        for name, fact in start.facts().items():
            if fact.low is None or fact.high is None or name not in facts:
                continue
            if name in _TAKEN.get(plan.engine, ()):
                continue
            if name not in bound or bound[name].low != fact.low:
                continue  # memory alone decides it, of which nothing is known here
            yield name, _made(fact.low, fact.high, fact.unit, basis)
    if engine_of(plan.engine).logs_devices:
        yield from _devices(plan, facts)
        yield from _that_failed(plan, facts)


def _figures_of(engine: str, lines: Sequence[str]) -> dict[str, Fact]:
    starts = [start for start in starts_of(enumerate(lines, 1)) if start.engine == engine]
    return starts[-1].facts() if starts else {}


def _that_failed(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    """Yield the cache that an allocation which failed was of, if it was one."""
    size = facts.get("failed_memory") or facts.get("failed_bytes")
    if size is None or "cache_size" in facts:
        return
    pools = [pool.total_bytes(pool.units or 0) for rank in plan.ranks for pool in rank.pools]
    told = f"{format_count(plan.max_model_len)} tokens by kvcalc"
    spans = [(held, held, told) for held in pools]
    there = facts.get("kv_buffer")
    if there is not None and isinstance(there.low, int) and isinstance(there.high, int):
        whole = sum(pools)
        left = f"what is left of {format_bytes(whole)} after the {there.printed} of other devices"
        spans.append((whole - there.high, whole - there.low, f"{left} ({told})"))
    for low, high, basis in spans:
        found = _made(low, high, "B", basis)
        if agrees(size, found):
            yield "cache_bytes", found


def _devices(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    failed = "failed_memory" in facts or "failed_bytes" in facts
    logged = sum(name.startswith("cache_size") for name in facts)
    pools = {p.name for rank in plan.ranks for p in rank.pools if not p.name.endswith("state")}
    if logged > len(pools) or more_than_devices(facts):
        return  # a draft's, of which nothing is known here; or lines of some devices are missing
    for name, of in (("kv_buffer", False), ("state_buffer", True)):
        if name not in facts or (failed and "cache_size" not in facts):
            continue  # of a start that failed in between, only some devices have their part
        size = sum(
            pool.total_bytes(pool.units or 0)
            for rank in plan.ranks
            for pool in rank.pools
            if pool.name.endswith("state") is of
        )
        yield name, _made(size, size, "B", "all devices together")


def _predict_tensorrt(
    plan: CachePlan, facts: Mapping[str, Fact]
) -> Iterator[tuple[str, Predicted]]:
    free, tokens = facts.get("free_memory"), facts.get("kv_cache_tokens")
    block, unit = plan.block_size or 1, plan.block_bytes
    if free is not None and isinstance(free.low, int) and isinstance(free.high, int):
        low, high = free.low * 9 // 10, free.high * 9 // 10
        basis = f"nine tenths (free_gpu_memory_fraction's default) of {free.printed} free"
        ends = logged_figures(plan, max(1, low)), logged_figures(plan, max(1, high))
        counts = [(end.num_blocks or 0) for end in ends]
        if plan.split == "tokens" and (span := paged_blocks(plan, facts)) is not None:
            counts = [*span]
            low, high = (count * (unit or 0) for count in span)
        yield "num_gpu_blocks", _made(counts[0], counts[1], "blocks", basis)
        held = _made(counts[0] * block, counts[1] * block, "tokens", basis)
        yield "kv_cache_tokens", held
        yield "pool_memory", _made(low, high, "B", basis)
    price = _token_bytes(plan)
    if price is not None and unit:
        yield "bytes_per_token", _made(price, price, "B", "a token of this plan")
        memory, told = facts.get("estimated_cache"), facts.get("num_gpu_blocks")
        # Blocks before that line are of the pass that estimates.
        if memory is not None and told is not None and told.line > memory.line:
            counts = [int(memory.low or 0) // unit, -(-int(memory.high or 0) // unit)]
            basis = f"{memory.printed} over the bytes of a block"
            yield "num_gpu_blocks", _made(counts[0], counts[1], "blocks", basis)
    if tokens is not None and unit and isinstance(tokens.low, int) and plan.split != "fungible":
        size = -(-tokens.low // block) * unit
        yield "pool_memory", _made(size, size, "B", f"blocks of {tokens.printed} tokens")


def _token_bytes(plan: CachePlan) -> int | None:
    """Return the bytes of a token by which TensorRT-LLM's PyTorch backend sizes its cache.

    None where layers keep different tokens, and where ranks may keep the same heads, which it
    counts in parts (_torch/pyexecutor/_util.py, get_cache_size_per_token).
    """
    block, unit = plan.block_size, plan.block_bytes
    pool = plan.block_pool
    if pool is None or not block or not unit or unit % block or plan.split == "fungible":
        return None
    layers = plan.rank.share.layers if plan.rank.share is not None else ()
    shared = plan.rank.multiplicity > 1 and any(
        getattr(cache, "num_kv_heads", 0) == 1 for run in layers for cache in run.caches
    )
    return None if shared or len(pool.groups) > 1 else unit // block


def _predict_lmdeploy(
    plan: CachePlan, facts: Mapping[str, Fact]
) -> Iterator[tuple[str, Predicted]]:
    blocks = facts.get("num_gpu_blocks")
    if plan.block_bytes and "block_memory" in facts:
        size = plan.block_bytes
        yield "block_memory", _made(size, size, "B", f"a block of {plan.block_size} tokens")
    if blocks is not None and isinstance(blocks.low, int) and plan.block_size:
        count = blocks.low * plan.block_size
        yield "kv_cache_tokens", _made(count, count, "tokens", f"{blocks.printed} blocks")


def _predict_tgi(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    blocks, size = facts.get("num_gpu_blocks"), facts.get("block_size")
    if blocks is None or size is None:
        return
    if isinstance(blocks.low, int) and isinstance(size.low, int):
        count = blocks.low * size.low
        basis = f"{blocks.printed} blocks of {size.printed}"
        yield "kv_cache_tokens", _made(count, count, "tokens", basis)
    if plan.block_size:
        yield "block_size", _made(plan.block_size, plan.block_size, "tokens", "TGI's kernels")


def _mlc(plan: CachePlan, facts: Mapping[str, Fact]) -> Iterator[tuple[str, Predicted]]:
    yield from _printed(plan, facts)
    pool = plan.block_pool
    if pool is None or not plan.block_size or not pool.check_unit_bytes:
        return
    price = Fraction(pool.check_unit_bytes, plan.block_size)
    if "kv_bytes_per_token" in facts:
        basis = "K and V of a token, and its part of the page table"
        yield "kv_bytes_per_token", _made(floor(price), ceil(price), "B", basis)
    if "token_memory" in facts:
        # Of all GPUs together, and as if every layer kept K and V.
        row = plan.rank.multiplicity * (pool.check_unit_bytes - _TABLE) // plan.block_size
        yield "token_memory", _made(row, row, "B", "K and V of a token on all GPUs")


_TABLE = 20
"""Bytes of MLC-LLM's page table that it counts for a page of 16 tokens."""

_Predictor = Callable[[CachePlan, Mapping[str, Fact]], Iterator[tuple[str, Predicted]]]
