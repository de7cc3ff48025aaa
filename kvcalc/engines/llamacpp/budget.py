"""What llama.cpp leaves on a device: it takes what its context needs, and the rest must hold it.

llama.cpp b11434 common/fit.cpp, common_params_fit_impl: on every device the model, the context and
the compute buffers must leave a margin of the free memory. The context's size is the plan's.
"""

from __future__ import annotations

from itertools import repeat

from kvcalc.core.deployment import MAX_BYTES, Deployment, GpuSpec
from kvcalc.core.memory import MemoryBudget, Term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.units import format_bytes
from kvcalc.core.visible import context_term, left_free, named_card
from kvcalc.core.widths import widths_of
from kvcalc.engines.llamacpp.compute import compute_buffer
from kvcalc.engines.llamacpp.settings import MARGIN, Settings, resolve

__all__ = ["budgets"]

_CONTEXT, _CONTEXT_SHARED = (0.2, 0.6), (0.0, 0.3)
_FLOAT32 = 4


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
    inside = (
        _compute(model, settings),
        context_term(gpu, _CONTEXT, _CONTEXT_SHARED),
    )
    margins = iter(settings.margins if len(settings.margins) > 1 else repeat(*settings.margins))
    return tuple(
        _host(weight)
        if rank.on_host
        else _device(gpu, _free(settings, rank, free_bytes), (weight, *inside), kept)
        for rank, weight, kept in zip(
            plan.ranks,
            weights,
            (next(margins, MARGIN) if settings.fits else 0 for _ in plan.ranks),
            strict=True,
        )
    )


def _free(settings: Settings, rank: Rank, free_bytes: int | None) -> int | None:
    """Return what is told to be free of a device: by itself, or of every card."""
    told = settings.placing.free_told and rank.memory_bytes is not None
    return rank.memory_bytes if told else free_bytes


def _device(
    gpu: GpuSpec, free_bytes: int | None, terms: tuple[Term, ...], margin: int
) -> MemoryBudget:
    seen = left_free(gpu, free_bytes)
    kept = f", less the margin of {format_bytes(margin)} that fit leaves" if margin else ""
    return MemoryBudget(
        total_bytes=gpu.memory_bytes,
        share_bytes=(max(0, seen.low_bytes - margin), max(0, seen.high_bytes - margin)),
        share_source=f"all of {seen.what}{kept} (common/fit.cpp)",
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


def _compute(model: ModelSpec, settings: Settings) -> Term:
    """The compute buffer: one micro-batch at full cells (llama-context.cpp, sched_reserve).

    Llama-3.1-8B on a CPU, 512 tokens: 138 MB at 8,192 cells, 164 MB at 32,768, 313 MB where every
    token may have logits, 2,269 MB at 32,768 without flash attention.
    """
    tokens, cells = settings.cells.ubatch, settings.cells.total
    source = f"the compute buffer of {tokens} tokens over {cells} cells (sched_reserve)"
    known = compute_buffer(model, settings, gpu=True)
    if known is not None:
        return Term(name="activation", low_bytes=known.low, high_bytes=known.high, source=source)
    widths = widths_of(model)
    row = widths.row
    high = row.high * 3 * _FLOAT32 * tokens + widths.vocab.high * _FLOAT32 * tokens
    high += tokens * cells * 6  # the mask, in 32 and in 16 bits
    if not settings.flash:
        high += (model.num_attention_heads or 128) * tokens * cells * _FLOAT32
    return Term(
        name="activation",
        low_bytes=row.low * _FLOAT32 * tokens,
        high_bytes=high,
        source=source,
    )
