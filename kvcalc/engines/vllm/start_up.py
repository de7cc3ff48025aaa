"""What vLLM prints when it has sized its cache: the capacity lines, or the refusal."""

from __future__ import annotations

from kvcalc.core.capacity import Capacity, capacity, longest
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.units import format_count
from kvcalc.engines.vllm.rules import Rules, rules_of
from kvcalc.engines.vllm.version import release

__all__ = ["start_up_log"]

_GIB = 2**30


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with so many bytes on each rank logs.

    vLLM 0.33 v1/core/kv_cache_utils.py (update_kv_cache_capacity) and kv_cache_planning.py
    (_check_enough_kv_cache_memory).

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: "Available KV cache memory"; None where num_gpu_blocks_override fixes it.
    """
    found = capacity(plan, kv_cache_bytes)
    told = (
        [] if kv_cache_bytes is None else [f"Available KV cache memory: {_gib(kv_cache_bytes)} GiB"]
    )
    if not found.fits:
        return (*told, *_refusal(plan, kv_cache_bytes))
    return (*told, *_capacity(plan, found))


def _gib(size: int) -> str:
    return f"{round(size / _GIB, 2)}"


def _capacity(plan: CachePlan, found: Capacity) -> tuple[str, ...]:
    rules = rules_of(release(plan.engine_version))
    size = f"GPU KV cache size: {format_count(found.kv_cache_tokens)} tokens"
    times = (
        f"Maximum concurrency for {format_count(plan.max_model_len)} tokens per request:"
        f" {found.max_concurrency:.2f}x"
    )
    return (f"{size}, {times}",) if rules.one_capacity_line else (size, times)


def _refusal(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the error of the first rank that cannot hold one sequence of the maximum."""
    for rank in plan.ranks:
        fits = longest(plan, rank, kv_cache_bytes, plan.max_model_len)
        if rank.pools and fits < plan.max_model_len:
            return (_too_long(plan, rank, kv_cache_bytes, fits),)
    return ()


def _too_long(plan: CachePlan, rank: Rank, kv_cache_bytes: int | None, fits: int) -> str:
    pool = rank.pools[0]
    available = pool.units * pool.unit_bytes if pool.units is not None else kv_cache_bytes or 0
    if plan.check_spares_reserved:
        available -= pool.reserved_units * pool.unit_bytes
    if available <= 0:
        return (
            "ValueError: No available memory for the cache blocks. Try increasing"
            " `gpu_memory_utilization` when initializing the engine."
        )
    length = (
        f" Based on the available memory, the estimated maximum model length is {fits}."
        if fits
        else ""
    )
    return (
        "ValueError: To serve at least one request with the model's max seq len"
        f" ({plan.max_model_len}), ({_gib(rank.bytes_needed(plan.max_model_len))} GiB KV cache is"
        f" needed, which is larger than the available KV cache memory ({_gib(available)} GiB).{length}"
    )
