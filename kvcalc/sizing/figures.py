"""Figures of a plan with so much memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from kvcalc.answers.capacity import At, DeploymentTotals, Figures, RankBudget, TermBounds
from kvcalc.core.capacity import capacity, least_of, longest_held, requests_that_fit
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import End, MemoryBudget, Term
from kvcalc.core.model import PARTITION
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.changes import changed
from kvcalc.sizing.question import Question
from kvcalc.sizing.sizes import OWN_SIZES, sizes_of
from kvcalc.sizing.worked import Worked

__all__ = ["alone", "at_length", "at_workload", "figures", "rank_budgets", "totals"]


def figures(worked: Worked, end: End) -> Figures:
    """Return what the plan makes of its budgets at an end.

    Nothing where a start fails before there is a cache. One that is given is told all the same: it
    is what was asked about, and `starts` says the rest.
    """
    plan, budgets = worked.plan, worked.budgets(end)
    least = least_of(budgets)
    if not _made(worked, end):
        return Figures(
            kv_cache_bytes=None if least is None else 0,
            num_blocks=0 if plan.block_size else None,
            block_bytes=plan.block_bytes,
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
    held = longest_held(plan, budgets, each) if worked.runs(end) else 0
    return Figures(
        kv_cache_bytes=found.kv_cache_bytes,
        num_blocks=found.num_blocks,
        block_bytes=found.block_bytes,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_sequences=found.max_sequences,
        starts=found.starts and worked.runs(end) and worked.too_long is None,
        fits=worked.fits(end),
        max_model_len_that_fits=held if worked.longest is None else min(held, worked.longest),
    )


def _made(worked: Worked, end: End) -> bool:
    """Whether there is a cache at an end."""
    least = least_of(worked.budgets(end))
    if least is not None and least < 1:
        return False
    return worked.runs(end) or not worked.memory


def at_length(worked: Worked, tokens: int) -> At:
    """Return how many sequences of a length there is room for at once."""
    low, middle, high = (_at(worked, end, tokens) for end in get_args(End))
    return At(tokens=tokens, workload=None, max_concurrency=middle, low=low, high=high)


def _at(worked: Worked, end: End, tokens: int) -> float:
    if not _made(worked, end):
        return 0.0
    return capacity(worked.plan, worked.budgets(end), at=tokens).max_concurrency


def at_workload(worked: Worked, name: str, lengths: Lengths) -> At:
    """Return how many requests of a workload, each at its full length, there is room for."""

    def served(end: End) -> float:
        if not _made(worked, end):
            return 0.0
        least = least_of(worked.budgets(end))  # of unequal ranks the one with the least decides
        if least is None:
            least = sum(p.total_bytes(p.units or 0) for p in worked.plan.rank.pools)
        found = float(requests_that_fit(worked.plan, least, lengths))
        places = worked.plan.max_sequences
        return found if places is None else min(found, float(places))

    low, middle, high = (served(end) for end in get_args(End))
    return At(tokens=None, workload=name, max_concurrency=middle, low=low, high=high)


def totals(
    question: Question, plan: CachePlan, alone: CachePlan, expected: Figures
) -> DeploymentTotals:
    """Return what all GPUs keep together.

    Args:
        question: as served.
        plan: of one replica.
        alone: of the same on one GPU: its bytes are there once.
        expected: figures of one replica.
    """
    replicas = sizes_of(question.deployment).holders
    holders = question.holders
    stored = _rate(plan.growth_all_ranks())
    distinct = _rate(alone.growth_all_ranks())
    return DeploymentTotals(
        num_gpus=plan.num_gpus * replicas,
        replicas=replicas,
        instances=question.instances,
        kv_cache_tokens=expected.kv_cache_tokens * holders,
        max_concurrency=expected.max_concurrency * holders,
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
        _rank_budget(rank.name, 0 if rank.on_host else rank.multiplicity, memory)
        for rank, memory in zip(worked.plan.ranks, worked.memory, strict=False)
    )


def _rank_budget(name: str, count: int, memory: MemoryBudget) -> RankBudget:
    beside = (*memory.before, *memory.outside)
    terms = [*_bounds(memory.terms, outside=False), *_bounds(beside, outside=True)]

    def taken(*names: str) -> tuple[int, int]:
        chosen = [term for term in terms if term.name in names]
        return sum(t.low_bytes for t in chosen), sum(t.high_bytes for t in chosen)

    weights = taken("weights")
    return RankBudget(
        name=name,
        num_gpus=count,
        total_bytes=memory.total_bytes,
        share_bytes=memory.share_bytes,
        share_source=memory.share_source,
        weights_bytes=weights[0] if weights[0] == weights[1] else None,
        activation_bytes=taken("activation"),
        graph_bytes=taken("graphs"),
        other_bytes=taken("communication", "context", "other"),
        cache_bytes=memory.cache_bytes,
        left_bytes=memory.left_bytes,
        beside_bytes=memory.beside_bytes,
        terms=tuple(terms),
    )


def _bounds(terms: tuple[Term, ...], *, outside: bool) -> Iterator[TermBounds]:
    for term in terms:
        yield TermBounds(
            name=term.name,
            label=term.label or term.name,
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
