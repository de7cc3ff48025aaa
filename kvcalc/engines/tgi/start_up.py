"""What TGI logs when it has counted its blocks, and how it refuses a maximum that is too long.

server models/flash_causal_lm.py, warmup; backends/v3/src/lib.rs, connect_backend and V3Error.
"""

from __future__ import annotations

from kvcalc.core.capacity import pool_units
from kvcalc.core.plan import CachePlan

__all__ = ["SHRINKS", "start_up_log"]

SHRINKS = "max_total_tokens is not given: TGI takes the blocks' tokens where those are fewer"


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with blocks of so many bytes logs.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: bytes of all blocks; None where the settings fix them.
    """
    block = plan.block_size or 1
    (blocks,) = pool_units(plan, plan.rank, kv_cache_bytes)
    told = [f"KV-cache blocks: {blocks}, size: {block}"]
    if plan.max_model_len > blocks * block and SHRINKS not in plan.notes:
        told.append(f"Not enough memory to handle `max_total_tokens={plan.max_model_len}`")
    else:
        told.append(f"Setting max batch total tokens to {blocks * block}")
    return tuple(told)
