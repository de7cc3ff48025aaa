"""What vLLM prints when it has sized its cache: the capacity lines, or the refusal."""

from __future__ import annotations

from kvcalc.core.capacity import (
    Capacity,
    capacity,
    longest,
    short_of,
    start_up_limit,
    start_up_need,
)
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.rules import Rules, rules_of
from kvcalc.engines.vllm.version import Release, release

__all__ = ["start_up_log"]

_GIB = 2**30
_SWAP = 4 * _GIB
"""V0's default swap space on each rank, from which it counts its CPU blocks."""

_CUDA_BLOCKS = (0, 7)
"""Since then V0 names the device in its line of blocks."""

_TELLS_CONCURRENCY = (0, 6, 3)
"""Since then V0 tells how many sequences of the maximum it holds."""

_NO_MEMORY = (
    "ValueError: No available memory for the cache blocks. Try increasing"
    " `gpu_memory_utilization` when initializing the engine"
)

_DOCS = " See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with so many bytes on each rank logs.

    vLLM 0.33 v1/core/kv_cache_utils.py (update_kv_cache_capacity) and kv_cache_planning.py
    (_check_enough_kv_cache_memory), and what they were called before; V0's
    executor/executor_base.py, initialize_cache.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: "Available KV cache memory"; None where num_gpu_blocks_override fixes it.
    """
    wanted = release(plan.engine_version)
    found = capacity(plan, kv_cache_bytes)
    if wanted.engine == "v0":
        return _v0(plan, found, wanted)
    if wanted.line < (0, 8):
        return _v0(plan, found, wanted)
    rules = rules_of(wanted._replace(engine=None))
    told: list[str] = []
    if kv_cache_bytes is not None and wanted.line >= (0, 9):
        told.append(f"Available KV cache memory: {_gib(kv_cache_bytes, rules)} GiB")
    refused = () if found.fits else _refusal(plan, kv_cache_bytes, rules)
    if refused:
        return (*told, *refused)
    told += _capacity(plan, found, rules)
    short = short_of(plan, kv_cache_bytes)
    if short is not None:
        floor, units = short
        told.append(floor.logged(units))
    return tuple(told)


def _gib(size: int, rules: Rules) -> str:
    return f"{size / _GIB:.2f}" if rules.two_decimals else f"{round(size / _GIB, 2)}"


def _capacity(plan: CachePlan, found: Capacity, rules: Rules) -> tuple[str, ...]:
    size = f"GPU KV cache size: {format_count(found.kv_cache_tokens)} tokens"
    times = (
        f"Maximum concurrency for {format_count(plan.max_model_len)} tokens per request:"
        f" {found.max_concurrency:.2f}x"
    )
    return (f"{size}, {times}",) if rules.one_capacity_line else (size, times)


def _refusal(plan: CachePlan, kv_cache_bytes: int | None, rules: Rules) -> tuple[str, ...]:
    """Return the error of the first rank that cannot hold one sequence of the maximum."""
    for rank in plan.ranks:
        fits = longest(plan, rank, kv_cache_bytes, plan.max_model_len)
        if rank.pools and fits < plan.max_model_len:
            return (_too_long(plan, rank, kv_cache_bytes, fits, rules),)
    return ()


def _too_long(
    plan: CachePlan, rank: Rank, kv_cache_bytes: int | None, fits: int, rules: Rules
) -> str:
    docs = _DOCS if rules.docs_link else ""
    available = start_up_limit(plan, rank, kv_cache_bytes)
    if available <= 0:
        cpu = (
            " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
            if rules.explains_cpu
            else ""
        )
        return f"{_NO_MEMORY}{cpu}.{docs}"
    needed = start_up_need(plan, rank, plan.max_model_len)
    whose = "models's" if rules.plural_possessive else "model's"
    length = f" Based on the available memory, the estimated maximum model length is {fits}."
    if not rules.estimates_length:  # 0.8 computes it, and prints half of the sentence
        length = " Based on the available memory, " if fits else " "
    elif not fits:
        length = " " if rules.two_decimals else ""
    cpu = " (which also controls CPU memory on the CPU backend)" if rules.explains_cpu else ""
    return (
        f"ValueError: To serve at least one request with the {whose} max seq len"
        f" ({plan.max_model_len}), ({_gib(needed, rules)} GiB KV cache is needed, which is larger"
        f" than the available KV cache memory ({_gib(available, rules)} GiB).{length} Try"
        f" increasing `gpu_memory_utilization`{cpu} or decreasing `max_model_len` when initializing"
        f" the engine.{docs}"
    )


def _v0(plan: CachePlan, found: Capacity, wanted: Release) -> tuple[str, ...]:
    if plan.block_pool is None:
        return ()  # no attention layer: there is no cache of blocks to tell of
    blocks, block = found.num_blocks or 0, plan.block_size or 1
    device = "cuda" if wanted.line >= _CUDA_BLOCKS else "GPU"
    swapped = _SWAP // (plan.block_bytes or _SWAP)
    counted = f"# {device} blocks: {blocks}, # CPU blocks: {swapped}"
    if wanted.engine != "v0":
        counted = f"# GPU blocks: {blocks}"  # V1 as 0.7 previewed it
    told = [counted]
    if wanted.number >= _TELLS_CONCURRENCY:
        told.append(
            f"Maximum concurrency for {plan.max_model_len} tokens per request:"
            f" {found.max_concurrency:.2f}x"
        )
    if not blocks:
        return (*told, f"{_NO_MEMORY}.")
    if found.fits:
        return tuple(told)
    refusal = (
        f"ValueError: The model's max seq len ({plan.max_model_len}) is larger than the maximum"
        f" number of tokens that can be stored in KV cache ({blocks * block}). Try increasing"
        " `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
    )
    return (*told, refusal)
