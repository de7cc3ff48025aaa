"""What llama.cpp leaves on a device: it takes what its context needs, and the rest must hold it.

The context's size is the plan's: fit has cut it, and moved layers, by the same terms (`fitting`).
The margin that it leaves is for nothing that is known.
"""

from __future__ import annotations

from kvcalc.core.deployment import MAX_BYTES, Deployment, GpuSpec
from kvcalc.core.memory import MemoryBudget, Term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.visible import left_free, named_card
from kvcalc.engines.llamacpp.fitting import sized
from kvcalc.engines.llamacpp.settings import Settings, resolve
from kvcalc.engines.llamacpp.standins import with_tensors
from kvcalc.engines.llamacpp.terms import compute_term, driver_term, spilled

__all__ = ["budgets", "compute_of"]


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of each device of the plan.

    Args:
        model: as published or read from a GGUF file.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a device.
        free_bytes: what is free of the card before the server starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    settings = resolve(model, deployment, [])
    inside = (compute_of(model, deployment, plan), driver_term(gpu))
    return tuple(
        _host(weight)
        if rank.on_host
        else _device(gpu, _free(settings, rank, free_bytes), (weight, *inside))
        for rank, weight in zip(plan.ranks, weights, strict=True)
    )


def compute_of(model: ModelSpec, deployment: Deployment, plan: CachePlan) -> Term:
    """Return the compute buffer of a plan: of its context, which fit may have cut."""
    model = with_tensors(model)
    settings = resolve(model, deployment, [])
    if not settings.ctx_given:
        streams = 1 if settings.cells.unified else settings.cells.sequences
        settings = resolve(model, sized(deployment, plan.max_model_len * streams), [])
    spills = plan.moved_bytes > 0 or spilled(model, settings)
    return compute_term(model, settings, spills=spills)


def _free(settings: Settings, rank: Rank, free_bytes: int | None) -> int | None:
    """Return what is told to be free of a device: by itself, or of every card."""
    told = settings.placing.free_told and rank.memory_bytes is not None
    return rank.memory_bytes if told else free_bytes


def _device(gpu: GpuSpec, free_bytes: int | None, terms: tuple[Term, ...]) -> MemoryBudget:
    seen = left_free(gpu, free_bytes)
    return MemoryBudget(
        total_bytes=gpu.memory_bytes,
        share_bytes=(seen.low_bytes, seen.high_bytes),
        share_source=f"all of {seen.what}",
        terms=terms,
        seen_bytes=(seen.low_bytes, seen.high_bytes),
    )


def _host(weight: Term) -> MemoryBudget:
    """The host's memory, of which a card tells nothing: it never decides."""
    return MemoryBudget(
        total_bytes=MAX_BYTES,
        share_bytes=(MAX_BYTES, MAX_BYTES),
        share_source="the host's memory: nothing tells how much there is, so it never decides",
        terms=(weight,),
    )
