"""Engine `tensorrt-llm`: what the PyTorch backend's cache managers allocate and hold.

Two managers: KVCacheManager (blocks, a pool for each window, memory shared evenly by the windows)
and KVCacheManagerV2 (pages of each layer's buffers, one quota that any pool may take). Read in
_torch/pyexecutor/resource_manager.py at 001541ba.
"""

from __future__ import annotations

from kvcalc.core.capacity import pool_units
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.explain import beyond
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Floor, Group, Pool, Rank, Rows, Split
from kvcalc.core.rules import Grow, Rule, Window
from kvcalc.core.sizing import TokenBudget
from kvcalc.engines.tensorrt_llm.layers import Kept, check_model, sort_layers, stages_of
from kvcalc.engines.tensorrt_llm.notes import CONVENTION, explain, host_parts, not_modelled
from kvcalc.engines.tensorrt_llm.settings import Settings, resolve
from kvcalc.engines.tensorrt_llm.states import of_states, state_pool
from kvcalc.engines.tensorrt_llm.version import RELEASES

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that TensorRT-LLM makes.

    Raises:
        UnsupportedError: what TensorRT-LLM refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes = beyond(model, deployment.max_model_len)
    settings = resolve(model, deployment, notes)
    doubt = check_model(model, settings, deployment.engine_version, notes)
    stages = stages_of(model, settings)
    sorted_stages = [sort_layers(stage, settings) for stage in stages]
    if not any(sorted_stages):
        raise UnsupportedError(
            f"TensorRT-LLM keeps no cache for {model.name}",
            hint="use --engine none to see what its layers are",
        )
    several = any(len(kept) > 1 for kept in sorted_stages)
    states = state_pool(model, settings)
    ranks = tuple(
        _rank(number, stage, kept, states, settings, several=several)
        for number, (stage, kept) in enumerate(zip(stages, sorted_stages, strict=True))
    )
    notes.extend(explain(model, sorted_stages, settings))
    notes.extend(of_states(states))
    return CachePlan(
        engine="tensorrt-llm",
        engine_version=settings.release,
        model=model.name,
        kv_cache_dtype=settings.dtype.name,
        model_dtype=settings.model_dtype,
        block_size=settings.block,
        ranks=ranks,
        split=_split(settings, several=several),
        max_model_len=settings.length,
        max_sequences=settings.sequences,
        reuse_tokens=settings.block if settings.reuse else None,
        report="exact" if settings.v2 else "even_groups",
        start="shortens",
        floors=() if settings.v2 else tuple(_floor(part) for part in _names(ranks)),
        host=host_parts(settings, ranks),
        notes=tuple(notes),
        unsupported=not_modelled(settings, several=several),
        convention=CONVENTION,
        doubt=doubt,
        source=(
            "TensorRT-LLM 001541ba: _torch/pyexecutor/resource_manager.py,"
            f" {'KVCacheManagerV2' if settings.v2 else 'KVCacheManager'}"
        ),
        resolved=settings,
    )


def _names(ranks: tuple[Rank, ...]) -> list[str]:
    """Return the names of the pools of blocks, each once."""
    return list(
        dict.fromkeys(
            pool.name
            for rank in ranks
            for pool in rank.pools
            if any(group.block_size for group in pool.groups)
        )
    )


def _floor(pool: str) -> Floor:
    """Return the block without which no sequence fits: get_max_atten_window_upper_bound."""
    return Floor(
        code="no-memory-for-blocks",
        pool=pool,
        units=1,
        setting="free_gpu_memory_fraction",
        message="nothing is left for the blocks of the cache",
        line="AssertionError: Impossible to fit in any sequence in kvCache",
        lowers=False,
    )


def _split(settings: Settings, *, several: bool) -> Split:
    if settings.v2:
        return "fungible"
    return "bytes" if several else "tokens"


def _rank(
    number: int,
    stage: ModelSpec,
    kept: list[Kept],
    states: Pool | None,
    settings: Settings,
    *,
    several: bool,
) -> Rank:
    pools = tuple(_pool(part, len(kept), settings) for part in kept)
    if states is not None:
        pools = (*pools, states)
    sizing = None
    if not settings.v2 and not several and kept:
        sizing = TokenBudget(
            page_tokens=settings.block,
            token_bytes=kept[0].cell,
            max_tokens=settings.max_tokens,
            rounds_up=settings.rounds_up,
        )
    return Rank(
        name=f"stage {number}" if settings.pp > 1 else "rank",
        share=None if states else stage,
        pools=pools,
        multiplicity=settings.tp,
        sizing=sizing,
    )


def _pool(kept: Kept, windows: int, settings: Settings) -> Pool:
    """Return the blocks of one window; windows share the memory evenly."""
    block = settings.block
    rules: list[tuple[Rule, dict[str, int]]] = []
    if kept.payload:
        rules.append((_rule(kept.limit, None, settings), kept.payload))
    for (read, restarts), payload in kept.windows.items():
        rules.append((_rule(kept.limit, read, settings, restarts=restarts), payload))
    (rule, payload), *others = rules
    group = Group(
        name="attention" if kept.limit is None else f"window {kept.limit}",
        layers=kept.layers,
        rule=rule,
        payload=payload,
        unit_bytes=block * kept.cell,
        also=tuple(Rows(rule=other, payload=rows) for other, rows in others),
        block_size=block,
    )
    return Pool(
        name="blocks" if kept.limit is None else f"window {kept.limit}",
        groups=(group,),
        unit_bytes=group.unit_bytes,
        share=(1, windows),
        check_unit_bytes=block * kept.priced if kept.priced != kept.cell else None,
    )


def _rule(
    kept: int | None, read: int | None, settings: Settings, *, restarts: bool = False
) -> Rule:
    """Return how a sequence fills blocks.

    Both managers hand out as many as the tokens fill: compute_page_count, which counts one more for
    a full page, is called by neither (runtime/kv_cache_manager_v2 _kv_cache.py, _KVCache.resize).
    """
    if kept is None:
        return Grow(block_tokens=settings.block, limit=read, restarts=restarts)
    return Window(block_tokens=settings.block, window=kept, ring=not settings.v2)


# What TensorRT-LLM prints when it has allocated its cache.

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
