"""A capacity question, and the plan and memory that every answer to it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvcalc.core.capacity import Budgets
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UsageError
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.model import PARTITION, ModelSpec, stage_partition
from kvcalc.core.plan import CachePlan
from kvcalc.core.weights import beside_bytes, weights_on_rank
from kvcalc.engines import budgets, plan
from kvcalc.sizing.sizes import sizes_of

__all__ = ["Question", "Worked", "work"]


class Question(NamedTuple):
    """What is asked.

    Attributes:
        model: as published.
        deployment: as it is to be served; its gpu is the card, its kv_cache_memory_bytes the cache
            of each rank where that is given.
        weights_bytes: of the whole model, instead of what is known of it.
        quantization: what the weights are kept in, instead of the checkpoint's own.
        sequences: the goal: so many sequences of the maximum at once.
        lengths: further lengths to tell the concurrency of.
        workload: (name, requests) to tell the concurrency of.
        instances: servers of this kind on each card.
        free_bytes: of the card before this server starts; None where it is alone.
    """

    model: ModelSpec
    deployment: Deployment
    weights_bytes: int | None = None
    quantization: str | None = None
    sequences: int = 1
    lengths: Sequence[int] = ()
    workload: tuple[str, Lengths] | None = None
    instances: int = 1
    free_bytes: int | None = None


class Worked(NamedTuple):
    """A question worked out as far as every answer needs it.

    Attributes:
        plan: what the engine makes of it.
        memory: of each rank of the plan; empty where the cache is given.
        low, middle, high: bytes of the cache of each rank.
    """

    plan: CachePlan
    memory: tuple[MemoryBudget, ...]
    low: Budgets
    middle: Budgets
    high: Budgets


def work(question: Question) -> Worked:
    """Plan a question and say what is left for its cache.

    Raises:
        UsageError: neither a card nor a cache is given.
        UnsupportedError: the engine refuses it, or kvcalc does not model it.
    """
    deployment = question.deployment
    found = plan(question.model, deployment)
    given = deployment.kv_cache_memory_bytes
    if given is not None or (deployment.gpu is None and found.split == "fixed"):
        return Worked(found, (), given, given, given)
    if deployment.gpu is None:
        raise UsageError(
            "capacity needs memory", hint="name the card (--gpu), its memory or the cache's"
        )
    memory = budgets(question.model, deployment, found, _weights(question, found))
    lows = tuple(one.cache_bytes[0] for one in memory)
    highs = tuple(one.cache_bytes[1] for one in memory)
    middles = tuple((low + high) // 2 for low, high in zip(lows, highs, strict=True))
    return Worked(found, memory, lows, middles, highs)


def _weights(question: Question, found: CachePlan) -> tuple[Term, ...]:
    """Return the weights on a GPU of each rank of a plan, with what loading leaves beside them."""
    deployment, model = question.deployment, question.model
    tp, pp, replicas, _ = sizes_of(deployment)
    experts = tp * replicas if deployment.enable_expert_parallel else None
    sizes = stage_partition(
        deployment.engine_args.get(PARTITION) if pp > 1 else None, model.num_hidden_layers, pp
    )
    draft = deployment.draft_model
    if deployment.engine == "llama.cpp":
        return _by_device(question, found)
    terms = []
    for stage in range(len(found.ranks)):
        term = weights_on_rank(
            model,
            tp=tp,
            pp=pp,
            stage=stage,
            ep=experts,
            quantization=question.quantization,
            total_bytes=question.weights_bytes,
            drafts=deployment.speculative_method == "mtp",
            sizes=sizes,
        )
        beside = beside_bytes(model, tp)
        if isinstance(draft, ModelSpec) and stage == len(found.ranks) - 1:
            # A draft model lies on the last stage, split as the model is.
            own = weights_on_rank(draft, tp=tp)
            term = _added(term, own.low_bytes, own.high_bytes, f" and the draft's, {own.source}")
        terms.append(_added(term, 0, beside, ""))
    return tuple(terms)


def _by_device(question: Question, found: CachePlan) -> tuple[Term, ...]:
    """Return the weights on each device of llama.cpp: layers lie where their caches lie.

    Exact where a file tells the tensors; else by the number of layers, give or take the output,
    which lies with the last of them, and the embedding, which stays on the host.
    """
    whole = weights_on_rank(
        question.model, quantization=question.quantization, total_bytes=question.weights_bytes
    )
    asked = question.quantization is not None or question.weights_bytes is not None
    layers = question.model.num_hidden_layers
    terms = []
    for rank in found.ranks:
        if rank.weights_bytes is not None and not asked:
            size = rank.weights_bytes
            terms.append(
                Term(name="weights", low_bytes=size, high_bytes=size, source="the file's tensors")
            )
        elif len(found.ranks) == 1:
            terms.append(whole)
        else:
            count = rank.share.num_hidden_layers if rank.share is not None else layers
            low = whole.low_bytes * count * 4 // (5 * layers)
            high = min(whole.high_bytes, whole.high_bytes * (count * 5 + layers) // (5 * layers))
            source = f"{whole.source}; {count} of {layers} layers"
            terms.append(Term(name="weights", low_bytes=low, high_bytes=high, source=source))
    return tuple(terms)


def _added(term: Term, low: int, high: int, source: str) -> Term:
    return Term(
        name=term.name,
        low_bytes=term.low_bytes + low,
        high_bytes=term.high_bytes + high,
        source=term.source + source,
    )
