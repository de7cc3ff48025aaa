"""What TensorRT-LLM prints when it has allocated its cache."""

from __future__ import annotations

from kvcalc.core.capacity import pool_units
from kvcalc.core.plan import CachePlan

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
    told = [f"Number of tokens per block: {block}."]
    total = tokens = 0
    for pool, count in zip(plan.rank.pools, units, strict=True):
        if pool.beside:
            continue  # states, which are logged in GB
        told.append(f"Number of blocks in KV cache primary pool: {count}")
        total += pool.total_bytes(count)
        tokens = max(tokens, count * block)
    told.append(
        f"[MemUsageChange] Allocated {total / _GIB:.2f} GiB for max tokens in paged KV cache"
        f" ({tokens})."
    )
    return tuple(told)
