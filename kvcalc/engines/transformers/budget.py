"""What transformers leaves for the cache: a part of what is free under continuous batching.

transformers 5.24 generation/continuous_batching/cache.py (PagedAttentionMemoryHandler) and
initialization.py (resolve_max_memory_percent). The other caches have no budget: they grow as they
are written, and what is left of the card is what they may grow into.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.dtypes import element_bytes
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.visible import named_card, whole_card
from kvcalc.engines.transformers.settings import Settings, resolve
from kvcalc.weights.widths import widths_of

__all__ = ["budgets"]

_BATCHED = Fraction("0.9")
"""max_memory_percent without logits processors; 0.8 with them, 0.6 where the host shares."""
_BATCHED_LEAST, _SHARED = Fraction("0.8"), Fraction("0.6")
_CONTEXT = (0.3, 1.0)


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of one GPU of each of the plan's ranks.

    Under continuous batching what is left also pays for a batch's inputs and activations, sector by
    sector (`memory`), which the plan does from `available_memory`.

    Args:
        model: as published.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a rank.
        free_bytes: what is free of the card before the server starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    settings = resolve(model, deployment, [])
    context = gib_term("context", *_CONTEXT, "the driver's context and kernels: not measured")
    part, what = Fraction(1), "all of it: a cache that grows has no budget"
    terms: tuple[Term, ...] = (context,)
    if settings.cache == "paged":
        shared = gpu.compute_capability is None and gpu.memory_kind == "unified"
        part = _SHARED if shared else _BATCHED
        what = f"the cache gets max_memory_percent {float(part)} of what is free"
        if not shared:
            what += f" ({float(_BATCHED_LEAST)} with logits processors)"
    else:
        terms = (context, _step(model, settings))
    if settings.cache != "paged":
        return tuple(
            whole_card(gpu, f"; {what}", (weight, *terms), free_bytes=free_bytes)
            for weight in weights
        )
    # PagedAttentionMemoryHandler takes what this process has from the card's total: what others
    # hold counts as free, and allocating it fails.
    found = (whole_card(gpu, f"; {what}", (weight, *terms), part=part) for weight in weights)
    return tuple(msgspec.structs.replace(one, free_bytes=free_bytes) for one in found)


def _step(model: ModelSpec, settings: Settings) -> Term:
    """A prompt's activations: an MLP's inner tensors and the stream; logits of its last token."""
    widths = widths_of(model)
    itemsize = element_bytes(model.dtype)
    tokens = settings.chunk_tokens
    inner = widths.inner.times(tokens * itemsize * 3, tokens * itemsize * 4).over(settings.tp)
    wide = widths.experts.high * (2 * widths.expert_inner.high + widths.hidden.high)
    found = inner + widths.hidden.times(tokens * itemsize * 2, tokens * itemsize * 10)
    return Term(
        name="activation",
        low_bytes=found.low,
        high_bytes=found.high + tokens * wide * itemsize + widths.vocab.high * 8,
        source=f"a forward pass of {tokens} tokens; eager attention takes more",
    )
