"""What SGLang prints when it has allocated its cache.

SGLang 0.5.23 mem_cache/memory_pool.py (KVCache._finalize_allocation_log, MambaPool). It writes GB
and means GiB; the number of tokens leaves the padding out, the sizes have it.
"""

from __future__ import annotations

from kvcalc.core.capacity import pool_units
from kvcalc.core.plan import CachePlan, Pool

__all__ = ["pool_sizes", "start_up_log"]

_GIB = 2**30
_PAGE = 256  # tokens, of compressed attention

_TORCH = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_ds_mla": "float8_e4m3fn",
    "mxfp8": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "nvfp4": "float4_e2m1fn_x2",
}


def pool_sizes(pool: Pool, units: int) -> dict[str, int]:
    """Return the bytes of a pool's tensors by role, padding included."""
    sizes: dict[str, int] = {}
    for group in pool.groups:
        for rows in group.rows:
            for role, size in rows.payload.items():
                slots = (units + pool.reserved_units) * rows.rule.slots_per_unit
                sizes[role] = sizes.get(role, 0) + slots * size
    return sizes


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines that a start with so many bytes on each rank logs; its refusal.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: what is left for the cache; None stands for the most tokens that the
            settings allow, and is refused where they name none.
    """
    rank = plan.rank
    units = pool_units(plan, rank, kv_cache_bytes)
    first = rank.pools[0]
    if first.sized == "tokens" and not units[0]:
        return ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",)
    if first.sized == "tokens" and rank.sizing is not None and rank.sizing.price is not None:
        return (
            _compressed(plan, units),
            f"max_total_num_tokens={units[0] * _PAGE}, context_len={plan.max_model_len}",
        )
    told = []
    for pool, count in zip(rank.pools, units, strict=True):
        sizes = pool_sizes(pool, count)
        if pool.sized == "states":
            told.append(
                f"Mamba Cache is allocated. max_mamba_cache_size: {count}, conv_state size:"
                f" {sizes.get('conv', 0) / _GIB:.2f}GB, ssm_state size:"
                f" {sizes.get('recurrent', 0) / _GIB:.2f}GB "
            )
        elif pool.sized in ("tokens", "window"):
            told.append(_allocated(plan, pool, count))
    tokens = units[0] * plan.block_size * rank.token_factor if plan.block_size else 0
    tokens = tokens or plan.max_model_len
    return (*told, f"max_total_num_tokens={tokens}, context_len={plan.max_model_len}")


def _compressed(plan: CachePlan, units: tuple[int, ...]) -> str:
    """Return what is said of DeepSeek-V4's pools, before the requests at once are known.

    model_executor/pool_configurator.py, DSV4PoolConfigurator._to_config.
    """
    ((window, pages), *_) = [
        (pool, count)
        for pool, count in zip(plan.rank.pools, units, strict=True)
        if pool.sized == "window"
    ]
    ring = 0
    for rows in window.groups[0].also:
        ring = 8 * (rows.slot_bytes + window.groups[0].lookahead_bytes) // rows.slot_bytes
    full = units[0] * _PAGE
    return (
        f"DSV4 pool sizes: full={full}, swa={pages * _PAGE}, c4={full // 4}, c128={full // 128},"
        f" c4_state={pages * ring}, c128_state=0"
    )


def _allocated(plan: CachePlan, pool: Pool, units: int) -> str:
    group = pool.groups[0]
    slots = (units + pool.reserved_units) * group.rule.slots_per_unit
    dtype = _TORCH.get(plan.kv_cache_dtype, plan.kv_cache_dtype)
    head = (
        f"KV Cache is allocated. dtype: torch.{dtype}, #tokens:"
        f" {units * group.rule.slots_per_unit},"
    )
    total = slots * (group.unit_bytes // group.rule.slots_per_unit)
    shares = {"k": 0, "v": 0}
    for rows in group.rows:
        for role in shares:
            shares[role] += rows.payload.get(role, 0)
    if not any(shares.values()):
        if plan.kv_cache_dtype == "nvfp4":
            total = total * 8 // 9  # the line leaves the scales out: a byte in nine
        return f"{head} KV size: {total / _GIB:.2f} GB"
    total -= slots * sum(rows.payload.get("index", 0) for rows in group.rows)
    k = total * shares["k"] // sum(shares.values())
    return f"{head} K size: {k / _GIB:.2f} GB, V size: {(total - k) / _GIB:.2f} GB"
