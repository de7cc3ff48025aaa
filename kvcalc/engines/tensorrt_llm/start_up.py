"""What TensorRT-LLM prints when it has allocated its cache."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.capacity import pool_units
from kvcalc.core.plan import CachePlan, Rank

__all__ = ["start_up_log"]

_GIB = 2**30


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with a pool of so many bytes logs.

    TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp; nothing for KVCacheManagerV2,
    which logs its quota alone.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: the pool, fraction of the free memory applied.
    """
    if plan.split == "fungible":
        return (f"KV cache manager v2 device quota set to {(kv_cache_bytes or 0) / _GIB}GiB",)
    block = plan.block_size or 1
    units = pool_units(plan, plan.rank, kv_cache_bytes)
    told = [*_states(plan.rank), f"Number of tokens per block: {block}."]
    total = tokens = 0
    for pool, count in zip(plan.rank.pools, units, strict=True):
        if pool.sized != "tokens":
            continue
        told.append(f"Number of blocks in KV cache primary pool: {count}")
        total += pool.total_bytes(count)
        tokens = max(tokens, count * block)
    told.append(
        f"[MemUsageChange] Allocated {total / _GIB:.2f} GiB for max tokens in paged KV cache"
        f" ({tokens})."
    )
    return tuple(told)


def _states(rank: Rank) -> Iterator[str]:
    """Yield the line on states: _torch/pyexecutor/mamba_cache_manager.py, MambaCacheManager."""
    proposed = {pool.sized: pool for pool in rank.pools}.get("proposed")
    for pool in rank.pools:
        if pool.sized != "states":
            continue
        count, sizes = pool.units or 0, pool.groups[0].payload
        line = (
            f"Mamba Cache is allocated. max_mamba_cache_size: {count}, conv_state size:"
            f" {count * sizes.get('conv', 0) / _GIB:.2f}GB, ssm_state size:"
            f" {count * sizes.get('recurrent', 0) / _GIB:.2f}GB"
        )
        if proposed is not None:
            count *= proposed.unit_bytes // pool.unit_bytes
            line += (
                f", intermediate_ssm_state_cache size: {count * sizes['recurrent'] / _GIB:.2f}GB,"
                f" intermediate_conv_window_cache size: {count * sizes['conv'] / _GIB:.2f}GB"
            )
        yield line
