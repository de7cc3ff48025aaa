"""Figures of a plan with so much memory."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.answers import At, DeploymentTotals, Figures, RankBudget, TermBounds
from kvcalc.core.capacity import Budgets, capacity, least_of, longest_held, requests_that_fit
from kvcalc.core.deployment import Deployment
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.core.model import PARTITION
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.sizing.changes import changed
from kvcalc.sizing.question import Question, Worked
from kvcalc.sizing.sizes import OWN_SIZES, sizes_of

__all__ = ["alone", "at_length", "at_workload", "figures", "rank_budgets", "totals"]


def figures(worked: Worked, budgets: Budgets) -> Figures:
    """Return what the plan makes of such budgets; nothing at all of one below 1."""
    plan = worked.plan
    least = least_of(budgets)
    if least is not None and least < 1:
        return Figures(
            kv_cache_bytes=max(0, least),
            num_blocks=0 if plan.block_size else None,
            kv_cache_tokens=0,
            max_concurrency=0.0,
            max_sequences=0,
            starts=False,
            fits=False,
            max_model_len_that_fits=0,
        )
    found = capacity(plan, budgets)
    # Where the engine runs fewer at once than are asked for, the length of so many is told.
    each = worked.each if plan.places is None else min(worked.each, plan.places)
    held = 0 if worked.refusal is not None else longest_held(plan, budgets, each)
    return Figures(
        kv_cache_bytes=found.kv_cache_bytes,
        num_blocks=found.num_blocks,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_sequences=found.max_sequences,
        starts=found.starts and worked.refusal is None,
        fits=worked.holds(budgets),
        max_model_len_that_fits=held,
    )


def at_length(worked: Worked, tokens: int) -> At:
    """Return how many sequences of a length there is room for at once."""
    low, middle, high = (
        _at(worked.plan, budgets, tokens) for budgets in (worked.low, worked.middle, worked.high)
    )
    return At(tokens=tokens, workload=None, max_concurrency=middle, low=low, high=high)


def _at(plan: CachePlan, budgets: Budgets, tokens: int) -> float:
    least = least_of(budgets)
    if least is not None and least < 1:
        return 0.0
    return capacity(plan, budgets, at=tokens).max_concurrency


def at_workload(worked: Worked, name: str, lengths: Lengths) -> At:
    """Return how many requests of a workload, each at its full length, there is room for."""

    def served(budgets: Budgets) -> float:
        least = least_of(budgets)  # of unequal ranks the one with the least decides
        if least is None:
            least = sum(p.total_bytes(p.units or 0) for p in worked.plan.rank.pools)
        found = float(requests_that_fit(worked.plan, least, lengths)) if least > 0 else 0.0
        places = worked.plan.max_sequences
        return found if places is None else min(found, float(places))

    low, middle, high = (served(b) for b in (worked.low, worked.middle, worked.high))
    return At(tokens=None, workload=name, max_concurrency=middle, low=low, high=high)


def totals(
    plan: CachePlan, alone: CachePlan, deployment: Deployment, expected: Figures
) -> DeploymentTotals:
    """Return what all GPUs keep together.

    Args:
        plan: of one replica.
        alone: of the same on one GPU: its bytes are there once.
        deployment: as served.
        expected: figures of one replica.
    """
    replicas = sizes_of(deployment).holders
    stored = _rate(plan.growth_all_ranks())
    distinct = _rate(alone.growth_all_ranks())
    return DeploymentTotals(
        num_gpus=plan.num_gpus * replicas,
        replicas=replicas,
        kv_cache_tokens=expected.kv_cache_tokens * replicas,
        max_concurrency=expected.max_concurrency * replicas,
        stored_bytes_per_token=stored,
        distinct_bytes_per_token=distinct,
        duplication_factor=stored / distinct if distinct else 1.0,
    )


def _rate(growth: tuple[int, int]) -> float:
    grown, tokens = growth
    return grown / tokens if tokens else 0.0


def rank_budgets(worked: Worked) -> tuple[RankBudget, ...]:
    """Return the memory of each kind of GPU, equal ones in one entry."""
    return tuple(
        _rank_budget(rank.name, rank.multiplicity, memory)
        for rank, memory in zip(worked.plan.ranks, worked.memory, strict=False)
    )


def _rank_budget(name: str, count: int, memory: MemoryBudget) -> RankBudget:
    terms = [*_bounds(memory.terms, outside=False), *_bounds(memory.outside, outside=True)]

    def summed(*names: str) -> tuple[int, int]:
        chosen = [term for term in terms if term.name in names]
        return sum(t.low_bytes for t in chosen), sum(t.high_bytes for t in chosen)

    weights = summed("weights")
    return RankBudget(
        name=name,
        num_gpus=count,
        total_bytes=memory.total_bytes,
        share_bytes=memory.share_bytes,
        share_source=memory.share_source,
        weights_bytes=weights[0] if weights[0] == weights[1] else None,
        activation_bytes=summed("activation"),
        graph_bytes=summed("graphs"),
        other_bytes=summed("communication", "context", "other"),
        cache_bytes=memory.cache_bytes,
        terms=tuple(terms),
    )


def _bounds(terms: tuple[Term, ...], *, outside: bool) -> Iterator[TermBounds]:
    for term in terms:
        yield TermBounds(
            name=term.name,
            low_bytes=term.low_bytes,
            high_bytes=term.high_bytes,
            source=term.source,
            outside=outside,
        )


def alone(question: Question, found: CachePlan) -> CachePlan:
    """Return the plan of the same model on one GPU, in which every byte is there once.

    Args:
        question: what is asked.
        found: its own plan, which is that of one GPU where no more are asked for.

    Raises:
        UnsupportedError: the engine refuses what is asked.
    """
    one = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "decode_context_parallel_size": 1,
    }
    args = dict.fromkeys((*OWN_SIZES, "tensor_split", PARTITION))
    single = changed(question.deployment, one, args)
    return found if single == question.deployment else plan(question.model, single)
