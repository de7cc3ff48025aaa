"""Laws of plans, comparisons and capacities, one a test."""

from __future__ import annotations

from math import gcd
from random import Random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvcalc.answers.compare import compare
from kvcalc.answers.plan_summary import summarise
from kvcalc.core.capacity import requests_that_fit, start_up_limit, start_up_need
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.lengths import Lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool, Rank
from kvcalc.core.rules import Compressed
from kvcalc.core.units import UNIT_SYSTEMS, UnitSystem, add_rates, format_bytes, parse_bytes
from kvcalc.core.waste import WASTE_NAMES, Wastes
from tests.core.builders import LLAMA_8B, model, plan_of
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

BUDGETS = st.one_of(st.integers(1, 10**6), st.integers(1, 10**10), st.sampled_from((1, 2**30)))


def _conserved(wastes: Wastes) -> None:
    assert len(wastes.by_name()) == len(WASTE_NAMES) == 8
    assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
    assert min(wastes.used_bytes, *wastes.by_name().values()) >= 0


@SETTINGS
@given(some.plans(), some.lengths)
def test_bytes_are_conserved(plan: CachePlan, lengths: Lengths) -> None:
    """Reserved = used + the eight wastes: paged, at admission, in one piece, on all ranks."""
    for found in (
        plan.wastes(lengths),
        plan.wastes_at_admission(lengths),
        plan.wastes_all_ranks(lengths),
        plan.contiguous().wastes(lengths),
        plan.contiguous().wastes_all_ranks(lengths),
    ):
        _conserved(found)


@SETTINGS
@given(some.plans(), some.tokens)
def test_wastes_explain_what_is_held(plan: CachePlan, n: int) -> None:
    assert plan.wastes(n).reserved_bytes == plan.bytes_held(n)
    assert plan.wastes_at_admission(n).reserved_bytes == plan.bytes_needed(n)
    assert plan.bytes_held(n) == sum(
        units * pool.unit_bytes
        for units, pool in zip(plan.held(n).values(), plan.rank.pools, strict=True)
    )


@SETTINGS
@given(some.plans(), some.tokens, some.tokens)
def test_bytes_rise_with_the_length(plan: CachePlan, a: int, b: int) -> None:
    low, high = sorted((a, b))

    assert plan.bytes_needed(low) <= plan.bytes_needed(high)
    assert plan.bytes_used(low) <= plan.bytes_used(high)


@SETTINGS
@given(some.plans(), some.lengths, st.integers(0, 1000))
def test_the_order_of_requests_changes_nothing(
    plan: CachePlan, lengths: Lengths, seed: int
) -> None:
    singles = [n for n, count in lengths for _ in range(min(count, 3))]
    shuffled = list(singles)
    Random(seed).shuffle(shuffled)

    assert plan.wastes(shuffled) == plan.wastes(singles)


@SETTINGS
@given(some.plans(), some.lengths, some.lengths)
def test_workloads_add_up(plan: CachePlan, first: Lengths, second: Lengths) -> None:
    """Requests taken together hold what they hold apart, on one rank and on all."""
    assert plan.wastes(first + second) == Wastes.total([plan.wastes(first), plan.wastes(second)])
    assert plan.wastes_all_ranks(first + second) == Wastes.total(
        [plan.wastes_all_ranks(first), plan.wastes_all_ranks(second)]
    )
    assert first + second == second + first


@SETTINGS
@given(some.lengths, some.some_tokens)
def test_contiguous_waste_is_what_is_missing(lengths: Lengths, longest: int) -> None:
    """Maximum - length a request, and nothing when all are as long as the maximum."""
    kept = lengths.limited(longest, "clip")
    plan = plan_of(LLAMA_8B, max_model_len=longest).contiguous()
    missing = sum(count * (longest - n) for n, count in kept)

    assert plan.wastes(kept).waste_bytes == 131_072 * missing
    assert plan.wastes(kept).reservation_bytes == 131_072 * missing
    assert plan.wastes(Lengths({longest: 7})).waste_bytes == 0


@SETTINGS
@given(some.models(), some.some_tokens, some.some_tokens, some.lengths)
def test_paging_does_not_look_at_the_maximum(
    spec: ModelSpec, first: int, second: int, lengths: Lengths
) -> None:
    """What a request takes in blocks is the same whatever maximum is declared."""
    one, other = (plan_of(spec, max_model_len=longest) for longest in (first, second))

    assert one.wastes(lengths) == other.wastes(lengths)
    for n, _ in lengths:
        assert one.bytes_needed(n) == other.bytes_needed(n)


@SETTINGS
@given(some.models(), some.tokens)
def test_the_model_and_engine_none_agree(spec: ModelSpec, n: int) -> None:
    """A sequence's bytes are the same asked of the model and of the plan."""
    plan = plan_of(spec, max_model_len=8192)

    assert plan.bytes_used(n) == spec.sequence_bytes(n)
    assert plan.growth() == spec.growth()
    assert plan.bytes_used(n) <= plan.bytes_needed(n)


@SETTINGS
@given(some.models(), st.sampled_from((1, 2, 3, 16)), st.integers(1, 5), some.lengths)
def test_whole_multiples_of_a_block_never_take_less(
    spec: ModelSpec, block: int, factor: int, lengths: Lengths
) -> None:
    fine = plan_of(spec, block_size=block, max_model_len=100)
    coarse = plan_of(spec, block_size=factor * block, max_model_len=100)

    assert fine.wastes(lengths).reserved_bytes <= coarse.wastes(lengths).reserved_bytes
    assert fine.wastes(lengths).used_bytes == coarse.wastes(lengths).used_bytes


@SETTINGS
@given(some.models(), some.tokens, st.integers(2, 4))
def test_stages_add_up_to_the_whole(spec: ModelSpec, n: int, pp: int) -> None:
    """Pipeline stages share the layers: nothing is lost, nothing is kept twice."""
    assume(pp <= spec.num_hidden_layers)
    stages = spec.stages(pp)
    alone = plan_of(spec, max_model_len=100)
    staged = plan_of(spec, max_model_len=100, pipeline_parallel_size=pp)

    assert sum(stage.sequence_bytes(n) for stage in stages) == spec.sequence_bytes(n)
    assert staged.num_gpus == pp
    assert staged.wastes_all_ranks(n).used_bytes == alone.wastes(n).used_bytes
    assert staged.wastes_all_ranks(n).reserved_bytes == alone.wastes(n).reserved_bytes
    assert [run.caches for stage in stages for run in stage.layers for _ in range(run.count)] == [
        run.caches for run in spec.layers for _ in range(run.count)
    ]


@SETTINGS
@given(some.caches, some.tokens, st.sampled_from((2, 4, 8, 16)))
def test_ranks_together_keep_at_least_the_whole(cache: Cache, n: int, tp: int) -> None:
    """Tensor parallelism splits or repeats; it never loses a row or a state."""
    spec = model((1, (cache,)))
    try:
        rank = spec.on_rank(tp)
    except UnsupportedError:
        assume(False)

    assert tp * rank.sequence_bytes(n) >= spec.sequence_bytes(n)


@SETTINGS
@given(some.full_attention, some.some_tokens, st.sampled_from((2, 3, 4, 8, 16)))
def test_ranks_keep_the_whole_once_where_heads_divide(cache: Cache, n: int, tp: int) -> None:
    """Equal exactly where every rank has heads of its own."""
    spec = model((1, (cache,)))
    total = getattr(cache, "num_kv_heads", 0)
    if total % tp and tp % total:
        with pytest.raises(UnsupportedError):
            spec.on_rank(tp)
        return
    together = tp * spec.on_rank(tp).sequence_bytes(n)

    assert (together == spec.sequence_bytes(n)) == (total % tp == 0)
    assert together == cache.replicas(tp) * spec.sequence_bytes(n)


@SETTINGS
@given(some.tokens, st.integers(1, 16))
def test_shared_tokens_add_up(n: int, factor: int) -> None:
    """Context-parallel ranks keep every token exactly once, the first rank no fewer than others."""
    rank = Rank(name="r", pools=(), multiplicity=factor, token_factor=factor)
    parts = [rank.local(n, position) for position in range(factor)]

    assert sum(parts) == n
    assert max(parts) == parts[0]
    assert max(parts) - min(parts) <= 1


@SETTINGS
@given(some.models(some.caches_of_all_tokens), some.lengths, st.sampled_from((1, 2, 4)))
def test_context_parallel_ranks_keep_less_together(
    spec: ModelSpec, lengths: Lengths, dcp: int
) -> None:
    """Sharing tokens takes out the copies, so that the rows are kept once a set of ranks."""
    settings = {"tensor_parallel_size": 64, "max_model_len": 100}
    try:
        plain, shared = (
            plan_of(spec, **settings),
            plan_of(spec, decode_context_parallel_size=dcp, **settings),
        )
    except UnsupportedError:
        assume(False)

    assert dcp * shared.wastes_all_ranks(lengths).used_bytes == (
        plain.wastes_all_ranks(lengths).used_bytes
    )


@SETTINGS
@given(some.models(), BUDGETS, some.some_tokens)
def test_one_sequence_more_does_not_fit(spec: ModelSpec, budget: int, n: int) -> None:
    """max_sequences sequences fit and one more does not."""
    plan = plan_of(spec, max_model_len=n)
    found = plan.capacity(budget)
    needed = plan.bytes_needed(n)
    assume(needed)

    assert found.max_sequences * needed <= budget < (found.max_sequences + 1) * needed
    assert found.fits == (found.max_sequences >= 1)
    assert found.max_sequences <= found.max_concurrency or found.max_concurrency > 2**53


@SETTINGS
@given(some.models(), BUDGETS, some.some_tokens)
def test_the_longest_that_fits(spec: ModelSpec, budget: int, n: int) -> None:
    """The inverse of the need: it fits, and one token more does not."""
    plan = plan_of(spec, max_model_len=n)
    assume(plan.bytes_needed(n))
    longest = plan.capacity(budget).max_model_len_that_fits

    assert 0 <= longest <= n
    if longest:
        assert plan.bytes_needed(longest) <= budget
    if longest < n:
        assert plan.bytes_needed(longest + 1) > budget


@SETTINGS
@given(some.plans(ranks=1), BUDGETS, st.integers(0, 3))
def test_a_shared_pool_serves_whole_sequences(plan: CachePlan, budget: int, kept: int) -> None:
    """In blocks too: as many sequences fit as there are units for, the reserved ones left out."""
    rank = plan.rank
    first = rank.pools[0]
    one = Pool(
        name=first.name,
        groups=first.groups,
        unit_bytes=first.unit_bytes,
        reserved_units=kept,
    )
    plan = msgspec.structs.replace(
        plan, ranks=(msgspec.structs.replace(rank, pools=(one,)),), split="one_pool"
    )
    found = plan.capacity(budget)
    (share,) = found.pools
    free = max(0, share.units - kept)
    assume(share.needed_units)

    assert found.max_sequences * share.needed_units <= free
    assert free < (found.max_sequences + 1) * share.needed_units
    assert share.units * share.unit_bytes <= budget


@SETTINGS
@given(some.checked_plans(), st.integers(1, 10**9), some.tokens, some.tokens)
def test_what_the_check_asks_rises_with_the_length(
    plan: CachePlan, budget: int, a: int, b: int
) -> None:
    """The search for the longest that starts rests on it; what it compares with does not move."""
    low, high = sorted((a, b))
    for rank in plan.ranks:
        assert start_up_need(plan, rank, low) <= start_up_need(plan, rank, high)
        limit, more = (start_up_limit(plan, rank, size) for size in (budget, 2 * budget))
        assert limit <= more


@SETTINGS
@given(some.checked_plans(), st.integers(1, 10**9))
def test_it_starts_where_the_check_lets_it(plan: CachePlan, budget: int) -> None:
    """On every rank; the longest that starts does, and one token more does not."""

    def starts(n: int) -> bool:
        return all(
            start_up_need(plan, rank, n) <= start_up_limit(plan, rank, budget)
            for rank in plan.ranks
            if rank.bytes_needed(n)
        )

    found = plan.capacity(budget)
    longest = found.max_model_len_that_fits

    assert found.fits == starts(plan.max_model_len)
    assert found.fits == (longest == plan.max_model_len)
    assert not longest or starts(longest)
    assert longest == plan.max_model_len or not starts(longest + 1)


@SETTINGS
@given(some.plans(), some.tokens)
def test_rows_of_a_group_share_its_units(plan: CachePlan, n: int) -> None:
    """Rows that fill units at other rates hold as many; each set has slots of its own."""
    for rank in plan.ranks:
        for group in rank.groups():
            local = rank.local(n)
            assert {rows.rule.held(local) for rows in group.rows} == {group.rule.held(local)}
            assert {rows.rule.peak(local) for rows in group.rows} == {group.rule.peak(local)}
            assert group.content_bytes <= group.unit_bytes


@SETTINGS
@given(some.plans(), some.some_tokens)
def test_a_summary_is_the_plan(plan: CachePlan, n: int) -> None:
    """A summary's units, bytes and wastes are the plan's at its maximum."""
    plan = msgspec.structs.replace(plan, max_model_len=n)
    found = summarise(plan)
    pools = {pool.name: pool for pool in plan.rank.pools}

    assert found.units_needed == sum(plan.need(n).values())
    assert found.needed_bytes == found.request.reserved_bytes == plan.bytes_needed(n)
    assert found.needed_bytes == sum(
        group.units_needed * pools[group.pool].unit_bytes for group in found.groups
    )
    assert [rank.needed_bytes for rank in found.ranks] == [r.bytes_needed(n) for r in plan.ranks]
    assert max(rank.needed_bytes for rank in found.ranks) == found.needed_bytes
    assert sum(rank.num_gpus for rank in found.ranks) == found.num_gpus


@SETTINGS
@given(some.models(), BUDGETS, some.some_lengths)
def test_a_larger_budget_never_holds_fewer(spec: ModelSpec, budget: int, lengths: Lengths) -> None:
    plan = plan_of(spec, max_model_len=100)
    assume(plan.wastes(lengths).reserved_bytes)

    small, large = (requests_that_fit(plan, size, lengths) for size in (budget, 2 * budget))
    assert small <= large
    assert plan.capacity(budget).max_sequences <= plan.capacity(2 * budget).max_sequences


@SETTINGS
@given(some.models(), some.some_lengths, some.some_tokens)
def test_both_ways_use_the_same(spec: ModelSpec, lengths: Lengths, longest: int) -> None:
    """A comparison's two sides differ in waste only."""
    found = compare(plan_of(spec, max_model_len=longest), lengths)

    assert found.paged_total.used_bytes == found.contiguous_total.used_bytes
    assert found.workload.used_bytes == found.paged_total.used_bytes
    for side in (found.paged_total, found.contiguous_total):
        assert side.waste_bytes == side.reserved_bytes - side.used_bytes
        assert 0.0 <= side.waste_ratio <= 1.0


@SETTINGS
@given(some.models(), some.some_lengths)
def test_the_mean_tail_is_within_the_largest(spec: ModelSpec, lengths: Lengths) -> None:
    """No request leaves more of its last blocks empty than the bound says (entries apart)."""
    plan = plan_of(spec, max_model_len=131_072)
    assume(not any(isinstance(g.rule, Compressed) for g in plan.rank.groups()))
    found = compare(plan, lengths).paged

    assert found.mean_tail_bytes <= found.max_tail_bytes


@SETTINGS
@given(some.lengths, some.some_tokens)
def test_policies_for_requests_over_the_maximum(lengths: Lengths, longest: int) -> None:
    """Clipping keeps the number, excluding keeps the tokens of the rest, keeping keeps all."""
    clipped, excluded = lengths.limited(longest, "clip"), lengths.limited(longest, "exclude")

    assert clipped.requests == lengths.requests
    assert excluded.requests == lengths.requests - lengths.requests_over(longest)
    assert max(clipped.longest, excluded.longest) <= longest
    assert lengths.limited(longest, "keep") == lengths


@SETTINGS
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.integers(1, 100))
def test_percentile(singles: list[int], percent: int) -> None:
    """The smallest length that so many do not exceed, counted one by one."""
    found = Lengths.of(singles).percentile(percent)

    assert found in singles
    assert 100 * sum(n <= found for n in singles) >= percent * len(singles)
    assert 100 * sum(n < found for n in singles) < percent * len(singles)


@SETTINGS
@given(st.integers(0, 2**140), st.sampled_from(UNIT_SYSTEMS))
def test_exact_bytes_are_read_back(value: int, units: UnitSystem) -> None:
    assert parse_bytes(format_bytes(value, units=units, exact=True)) == value


@SETTINGS
@given(st.integers(0, 2**62), st.sampled_from(UNIT_SYSTEMS))
def test_printed_bytes_are_near(value: int, units: UnitSystem) -> None:
    """What is printed for people is read back to within half of the last digit it has."""
    shown = parse_bytes(format_bytes(value, units=units))

    assert abs(shown - value) <= max(value // 100, 1)


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 200)), max_size=5))
def test_rates_add_up(rates: list[tuple[int, int]]) -> None:
    """Over any whole period the mean rate is the sum of its parts, in lowest terms."""
    size, period = add_rates(rates)
    horizon = period
    for _, every in rates:
        horizon *= every

    assert sum(part * (horizon // every) for part, every in rates) == size * (horizon // period)
    assert gcd(size, period) == 1
