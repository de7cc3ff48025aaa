"""What engines leave for a cache that share nothing out: they take what they need, of all there is.

MLX-LM and ExLlama allocate caches beside the weights and fail where the memory ends; no rule of
theirs keeps anything back. What a step takes besides is bounded by the model's widths, and was not
measured.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.memory import MemoryBudget, Term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.visible import context_term, named_card, whole_card
from kvcalc.weights.widths import widths_of

__all__ = ["budgets"]

_STEP_TOKENS = 2048  # of a prompt at once: mlx_lm generate.py, prefill_step_size; ExLlama's chunk
_BYTES = 2
_COPIES = 4  # the stream and an MLP's parts that can be there at once, as an upper bound
_CONTEXT, _CONTEXT_SHARED = (0.2, 0.8), (0.0, 0.3)


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of each device of a plan.

    Args:
        model: as published.
        deployment: as asked for; it must name the card.
        plan: of both.
        weights: one term a rank.
        free_bytes: what is free of the card before the engine starts; None where it is alone.

    Raises:
        UnsupportedError: no card is named.
        InvalidValueError: another number of weights than of ranks.
    """
    require_ranks(weights, len(plan.ranks))
    gpu = named_card(deployment)
    widths = widths_of(model)
    step = widths.row.high * _COPIES * _BYTES * _STEP_TOKENS
    terms = (
        Term(
            name="activation",
            low_bytes=0,
            high_bytes=step + widths.vocab.high * _BYTES * _STEP_TOKENS,
            source=f"a step of at most {_STEP_TOKENS} tokens, bounded by the widths: not measured",
        ),
        context_term(gpu, _CONTEXT, _CONTEXT_SHARED),
    )
    return tuple(
        whole_card(gpu, ": the engine takes what it needs", (weight, *terms), free_bytes=free_bytes)
        for weight in weights
    )
