"""What llama.cpp prints about its caches and buffers when a context is made (format of b11434)."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.plan import CachePlan, Pool

__all__ = ["start_up_log"]

_MIB = 2**20
_NAMES = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}
_STATES = ("conv", "shift")


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return the lines about the sizes of caches and buffers; the budget changes none of them.

    Args:
        plan: a plan of llama.cpp.
        kv_cache_bytes: not used, as the settings fix every size.
    """
    del kv_cache_bytes
    names = dict.fromkeys(pool.name for rank in plan.ranks for pool in rank.pools)
    lines = []
    for name in names:
        pools = [pool for rank in plan.ranks for pool in rank.pools if pool.name == name]
        if name.endswith("state"):
            lines.append(_state(pools, plan))
        else:
            lines.append(_cells(pools, _types(pools[0].dtype or plan.kv_cache_dtype), plan))
    return (*lines, *_buffers(plan))


def _types(dtype: str) -> list[str]:
    """Return the types of K and of V as llama.cpp names them."""
    k_type, _, v_type = dtype.partition(":")
    return [_NAMES.get(name, name) for name in (k_type, v_type or k_type)]


def _buffers(plan: CachePlan) -> Iterator[str]:
    """Yield the lines of what lies beside the caches on a CPU, where that is exact."""
    for rank in plan.ranks:
        size = None if rank.share is None else rank.share.size
        if not rank.outside_bytes or size is None or size.vocab_size is None:
            continue
        output = 4 * size.vocab_size * (plan.max_sequences or 1)
        computed = rank.outside_bytes - output
        yield f"llama_context:        CPU  output buffer size = {_wide(output)}"
        yield f"sched_reserve:        CPU compute buffer size = {_wide(computed)}"


def _wide(size: int) -> str:
    return f"{size / _MIB:8.2f} MiB"


def _sum(pools: list[Pool], roles: tuple[str, ...]) -> int:
    return sum(
        (pool.units or 0) * size
        for pool in pools
        for group in pool.groups
        for role, size in group.payload.items()
        if role in roles
    )


def _mib(size: int) -> str:
    return f"{size / _MIB:7.2f} MiB"


def _layers(pools: list[Pool]) -> int:
    return sum(group.layers for pool in pools for group in pool.groups)


def _cells(pools: list[Pool], types: list[str], plan: CachePlan) -> str:
    units = pools[0].units or 0
    total = sum(pool.total_bytes(pool.units or 0) for pool in pools)
    keys = _sum(pools, ("k", "latent", "rope", "nope", "index"))
    streams = max(1, units // _stream(pools[0], plan))
    seqs = plan.max_sequences or 1
    return (
        f"llama_kv_cache: size = {_mib(total)} ({units // streams:6d} cells,"
        f" {_layers(pools):3d} layers, {seqs:2d}/{streams} seqs),"
        f" K ({types[0]}): {_mib(keys)}, V ({types[1]}): {_mib(total - keys)}"
    )


def _stream(pool: Pool, plan: CachePlan) -> int:
    """Cells of one stream: what a sequence has to itself, or the pool that all share."""
    rule = pool.groups[0].rule
    slots = getattr(rule, "slots", None)
    return int(slots or pool.units or plan.max_model_len)


def _state(pools: list[Pool], plan: CachePlan) -> str:
    total = sum(pool.total_bytes(pool.units or 0) for pool in pools)
    shifts = _sum(pools, _STATES)
    seqs = plan.max_sequences or 1
    snapshots = (pools[0].units or 0) // seqs - 1
    # The line counts all layers, not the recurrent ones alone.
    layers = sum(rank.share.num_hidden_layers for rank in plan.ranks if rank.share is not None)
    return (
        f"llama_memory_recurrent: size = {_mib(total)} ({seqs:6d} cells, {layers:3d}"
        f" layers, {seqs:2d} seqs {snapshots:2d} rs_seq), R (f32): {_mib(shifts)},"
        f" S (f32): {_mib(total - shifts)}"
    )
