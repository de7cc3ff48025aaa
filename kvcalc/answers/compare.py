"""An engine's plan against its contiguous twin, over the same requests."""

from __future__ import annotations

from fractions import Fraction

from kvcalc.answers.results import (
    AtOnce,
    Comparison,
    Concurrency,
    ContiguousRequest,
    PagedRequest,
    RankTotals,
    Totals,
    WorkloadSummary,
)
from kvcalc.core.capacity import BUDGET_HINT, requests_that_fit
from kvcalc.core.errors import InvalidValueError
from kvcalc.core.explain import explain_plan
from kvcalc.core.lengths import Lengths, Over, whole_number
from kvcalc.core.plan import CachePlan
from kvcalc.core.rules import Slots

__all__ = ["compare"]

_MOST_BYTES = 2**100  # of any memory; ratios of more do not fit a float


def compare(
    plan: CachePlan,
    lengths: Lengths,
    *,
    workload: str = "requests",
    over: Over = "clip",
    kv_cache_bytes: int | None = None,
    explain: bool = False,
    flags: tuple[str, ...] = (),
) -> Comparison:
    """Compare paging under `plan` with contiguous reservation of plan.max_model_len tokens.

    Args:
        plan: the engine's plan; its twin is made from it.
        lengths: total tokens of the requests.
        workload: what to call them.
        over: what happens to requests longer than plan.max_model_len.
        kv_cache_bytes: a cache on each rank, to say how many requests fit each way.
        explain: put the formula with its numbers into the result.
        flags: what sets it apart from other comparisons.

    Raises:
        InvalidValueError: no request is left to compare, or a cache that is not whole bytes.
        UnknownNameError: no such policy.
    """
    if kv_cache_bytes is not None:
        kv_cache_bytes = whole_number(kv_cache_bytes, "kv_cache_bytes", BUDGET_HINT)
        if not 0 <= kv_cache_bytes <= _MOST_BYTES:
            raise InvalidValueError(
                "kv_cache_bytes is out of range", hint=f"give 0 to {_MOST_BYTES} bytes"
            )
    twin = plan.contiguous()
    longest = plan.max_model_len
    kept = lengths.limited(longest, over)
    if not kept.requests:
        raise _no_request(lengths, longest)
    paged, contiguous = plan.wastes(kept), twin.wastes(kept)
    one = twin.wastes(Lengths({longest: 1}))
    everywhere = plan.wastes_all_ranks(kept), twin.wastes_all_ranks(kept)
    grown, period = plan.growth()
    return Comparison(
        model=plan.model,
        engine=plan.engine,
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        max_model_len=longest,
        bytes_per_token=grown if period == 1 else None,
        state_bytes=plan.fixed_bytes(Slots),
        contiguous=ContiguousRequest(reserved_bytes_per_request=one.reserved_bytes),
        paged=PagedRequest(
            block_bytes=plan.block_bytes,
            max_tail_tokens=plan.tail_slots(),
            max_tail_bytes=plan.max_tail_bytes(),
            mean_tail_bytes=paged.tail_bytes // kept.requests,
        ),
        workload=WorkloadSummary(
            name=workload,
            requests=kept.requests,
            tokens=kept.tokens,
            mean_tokens=kept.tokens / kept.requests,
            p50_tokens=kept.percentile(50),
            p95_tokens=kept.percentile(95),
            longest_tokens=kept.longest,
            over=over,
            over_requests=lengths.requests_over(longest),
            used_bytes=paged.used_bytes,
        ),
        contiguous_total=Totals.of(contiguous),
        paged_total=Totals.of(paged),
        reserved_gain=(
            contiguous.reserved_bytes / paged.reserved_bytes if paged.reserved_bytes else None
        ),
        all_ranks=RankTotals(
            num_gpus=plan.num_gpus,
            used_bytes=everywhere[0].used_bytes,
            contiguous_reserved_bytes=everywhere[1].reserved_bytes,
            paged_reserved_bytes=everywhere[0].reserved_bytes,
        ),
        concurrency=(
            None if kv_cache_bytes is None else _concurrency(plan, twin, kept, kv_cache_bytes)
        ),
        at_once=_at_once(plan, kept),
        explain=explain_plan(plan, [longest]) if explain else (),
        flags=flags,
    )


def _at_once(plan: CachePlan, lengths: Lengths) -> AtOnce | None:
    """Return what of the requests runs at once; None where all do, or where no size is fixed."""
    if plan.split != "fixed":
        return None
    allocated = sum(pool.total_bytes(pool.units or 0) for pool in plan.rank.pools)
    requests = int(requests_that_fit(plan, allocated, lengths))
    if plan.max_sequences is not None:
        requests = min(requests, plan.max_sequences)
    if requests >= lengths.requests:
        return None
    return AtOnce(requests=requests, allocated_bytes=allocated)


def _no_request(lengths: Lengths, longest: int) -> InvalidValueError:
    # Commands and programs come here: both are told in their own words.
    if not lengths.requests:
        return InvalidValueError(
            "there is no request to compare",
            hint="give one length or more (--lengths or --trace; in Python a list such as [200])",
        )
    return InvalidValueError(
        f"no request is left to compare: none of {lengths.requests} is within {longest} tokens",
        hint="raise the maximum (--max; Deployment.max_model_len in Python), or cut longer requests"
        ' to it (--over clip; over="clip")',
    )


def _concurrency(
    plan: CachePlan, twin: CachePlan, lengths: Lengths, kv_cache_bytes: int
) -> Concurrency:
    paged = requests_that_fit(plan, kv_cache_bytes, lengths)
    contiguous = int(requests_that_fit(twin, kv_cache_bytes, lengths))
    places = plan.max_sequences
    if places is not None:  # the engine's own, either way
        paged, contiguous = min(paged, Fraction(places)), min(contiguous, places)
    return Concurrency(
        kv_cache_bytes=kv_cache_bytes,
        contiguous=contiguous,
        paged=int(paged),
        paged_mean=float(paged),
        gain=float(paged) / contiguous if contiguous else None,
        max_sequences=places,
    )
