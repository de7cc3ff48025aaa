"""What LMDeploy leaves for the cache: a part of what is free after the weights.

LMDeploy 0.18 pytorch/engine/executor/base.py, ExecutorBase.update_configs: states first, then room
for logits, then cache_max_entry_count of the rest. TurboMind takes that part of all that is free
(src/turbomind/turbomind.cc), and makes its workspaces later.
"""

from __future__ import annotations

from fractions import Fraction

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.memory import MemoryBudget, Term, gib_term, require_ranks
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.visible import named_card, whole_card
from kvcalc.engines.lmdeploy.settings import Settings
from kvcalc.weights.widths import widths_of

__all__ = ["budgets"]

_ITEMSIZE = 2
_CONTEXT = (0.3, 1.2)
_COMMUNICATION = (0.1, 1.5)
_GRAPHS = (0.3, Fraction("0.013"))
"""CUDA graphs at most: GiB, and a part of the card, as starts of vLLM estimate theirs, which are
more (tests/engines/vllm/starts.tsv); LMDeploy's share a pool (backends/cuda/graph_runner.py)."""


def budgets(
    model: ModelSpec,
    deployment: Deployment,
    plan: CachePlan,
    weights: tuple[Term, ...],
    free_bytes: int | None = None,
) -> tuple[MemoryBudget, ...]:
    """Return the memory of one GPU of each of the plan's ranks.

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
    assert isinstance(plan.resolved, Settings)  # noqa: S101 - as `plan` leaves it
    settings = plan.resolved
    part = Fraction(str(settings.entry_count))
    beside = _beside(model, settings, gpu)
    found = []
    for rank, weight in zip(plan.ranks, weights, strict=True):
        terms = [weight, *_states(rank)]
        if settings.backend == "pytorch":
            terms.append(_logits(model, settings))
        terms.append(gib_term("context", *_CONTEXT, "the driver's context: not measured"))
        if settings.tp > 1:
            terms.append(gib_term("communication", *_COMMUNICATION, "NCCL: not measured"))
        found.append(
            whole_card(
                gpu,
                f"; the cache gets cache_max_entry_count {settings.entry_count} of what is left",
                tuple(terms),
                outside=beside,
                free_bytes=free_bytes,
                part=part,
            )
        )
    return tuple(found)


def _states(rank: Rank) -> list[Term]:
    size = sum(
        pool.total_bytes(pool.units) for pool in rank.pools if pool.name == "states" and pool.units
    )
    if not size:
        return []
    source = "slots of recurrent states, before the blocks (ExecutorBase._get_state_cache_mem)"
    return [Term(name="other", low_bytes=size, high_bytes=size, source=source, label="states")]


def _logits(model: ModelSpec, settings: Settings) -> Term:
    """Room for logits of a prefill and of two steps; halved where 16 blocks would not fit."""
    vocab = widths_of(model).vocab
    if settings.vocab_size is not None:
        vocab = vocab._replace(low=settings.vocab_size, high=settings.vocab_size)
    rows = settings.max_prefill_token_num + 2 * settings.max_batch_size
    return Term(
        name="activation",
        low_bytes=vocab.low * rows * _ITEMSIZE,
        high_bytes=vocab.high * rows * _ITEMSIZE,
        source=f"{rows} rows of logits (ExecutorBase._get_runtime_size)",
        label="logits",
    )


def _beside(model: ModelSpec, settings: Settings, gpu: GpuSpec) -> tuple[Term, ...]:
    """Return what comes after the blocks, in what the part leaves: a step's tensors, and graphs.

    The PyTorch engine has kept room for logits already, most of which no step writes.
    """
    widths = widths_of(model)
    size = settings.max_prefill_token_num * _ITEMSIZE
    inner = widths.inner.times(size * 3, size * 4).over(settings.tp)
    wide = widths.experts.high * (2 * widths.expert_inner.high + widths.hidden.high)
    step = widths.hidden.times(size * 2, size * 8) + inner
    kept = _logits(model, settings).low_bytes if settings.backend == "pytorch" else 0
    tensors = Term(
        name="activation",
        low_bytes=0,
        high_bytes=max(0, step.high + wide * size - kept),
        source=f"a step of {settings.max_prefill_token_num} tokens, bounded by the widths",
    )
    if settings.backend != "pytorch":
        return (tensors,)
    fixed, of_card = _GRAPHS
    graphs = Term(
        name="graphs",
        low_bytes=0,
        high_bytes=int(fixed * 2**30 + of_card * gpu.memory_bytes),
        source="CUDA graphs of decoding, captured when the cache is there: not measured",
    )
    return tensors, graphs
