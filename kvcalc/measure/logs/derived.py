"""Settings that a log does not name, and that its figures give: one value alone makes them.

A context of llama.cpp by the bytes of its cache and its step by the cells of a window's, SGLang's
slots of states by their bytes, LMDeploy's and TensorRT-LLM's tokens a block by
the bytes or number of blocks, TGI's kernels by the tokens of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Fact
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv
from kvcalc.engines import plan, start_up_log
from kvcalc.measure.logs.starts import starts_of

__all__ = ["Derived", "derived", "paged_blocks"]

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
