"""Engine `sglang`: what SGLang allocates and holds, to the byte.

A plan is made in the order in which SGLang makes it: settings and their defaults (`settings`,
`backends`, `dtypes`, `speculation`), layers sorted into pools (`layers`), bytes charged for a token
and for a state (`assemble`, `windows`), and what a budget comes to (`core.sizing`). Read in 0.5.23.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.engines.sglang.assemble import ranks_of, stage_sizes, stages_of
from kvcalc.engines.sglang.checks import check_start, floors_of
from kvcalc.engines.sglang.compressed import check_compressed, compressed_ranks
from kvcalc.engines.sglang.families import is_compressed
from kvcalc.engines.sglang.host import host_parts
from kvcalc.engines.sglang.layers import check_host, check_model, check_settings
from kvcalc.engines.sglang.notes import (
    CONVENTION,
    compressed_not_modelled,
    explain,
    explain_compressed,
    not_modelled,
)
from kvcalc.engines.sglang.settings import Settings, resolve
from kvcalc.engines.sglang.start_up import start_up_log
from kvcalc.engines.sglang.version import RELEASES

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that SGLang makes.

    Raises:
        UnsupportedError: what SGLang refuses for this model and card, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    notes: list[str] = []
    doubt = check_model(model, deployment.engine_version, notes)
    model, settings = resolve(model, deployment, notes)
    check_start(settings)
    check_host(model, settings)
    if is_compressed(model):
        return _compressed(model, settings, notes, doubt)
    check_settings(model, settings)
    stages = stages_of(model, settings)
    ranks = ranks_of(stages, settings)
    if not any(rank.pools for rank in ranks):
        raise UnsupportedError(
            f"SGLang keeps no cache for {model.name}",
            hint="use --engine none to see what its layers are",
        )
    notes.extend(explain(model, stages, ranks, settings))
    paged = any(stage.kept.full or stage.kept.window for stage in stages)
    stateful = any(stage.kept.states for stage in stages)
    return _plan(
        model,
        settings,
        ranks,
        notes,
        not_modelled(stages, settings),
        doubt=doubt,
        paged=paged,
        reuse_tokens=settings.page * settings.dcp if settings.radix and not stateful else None,
        pools="mem_cache/memory_pool.py",
    )


def _compressed(model: ModelSpec, settings: Settings, notes: list[str], doubt: str) -> CachePlan:
    check_compressed(model, settings)
    ranks = compressed_ranks(model, settings, stage_sizes)
    notes.extend(explain_compressed(ranks, settings))
    return _plan(
        model,
        settings,
        ranks,
        notes,
        compressed_not_modelled(settings),
        doubt=doubt,
        paged=True,
        reuse_tokens=settings.page if settings.radix else None,
        pools="mem_cache/deepseek_v4_memory_pool.py",
    )


def _plan(
    model: ModelSpec,
    settings: Settings,
    ranks: tuple[Rank, ...],
    notes: list[str],
    unsupported: tuple[str, ...],
    *,
    doubt: str,
    paged: bool,
    reuse_tokens: int | None,
    pools: str,
) -> CachePlan:
    return CachePlan(
        engine="sglang",
        engine_version=str(settings.release),
        model=model.name,
        kv_cache_dtype=settings.layout.dtype.name,
        model_dtype=settings.dtype,
        block_size=settings.page if paged else None,
        ranks=ranks,
        split="tokens",
        max_model_len=settings.context,
        max_sequences=settings.max_requests,
        loads_drafts=settings.speculation is not None and settings.speculation.own,
        reuse_tokens=reuse_tokens,
        report="even_groups" if paged else "exact",
        start="shortens",
        start_spares_tokens=1,
        floors=floors_of(ranks, settings),
        host=host_parts(settings.host, ranks),
        notes=tuple(notes),
        unsupported=unsupported,
        convention=CONVENTION,
        doubt=doubt,
        source=(
            f"SGLang 0.5.23: model_executor/pool_configurator.py, {pools},"
            " mem_cache/kv_cache_configurator.py"
        ),
        resolved=(model, settings),
    )
