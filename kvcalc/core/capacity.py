"""From bytes to units, tokens and concurrency, and back to the length that fits."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.lengths import Lengths, whole_number
from kvcalc.core.plan import CachePlan, Floor, Pool, Rank
from kvcalc.core.rules import Rule, Window
from kvcalc.core.search import first_near, last_that
from kvcalc.core.units import cdiv
from kvcalc.core.values import Value

__all__ = [
    "BUDGET_HINT",
    "Budgets",
    "Capacity",
    "Logged",
    "PoolCapacity",
    "allocated",
    "binding_rank",
    "capacity",
    "holds",
    "least_of",
    "logged_figures",
    "longest",
    "longest_held",
    "pool_units",
    "requests_that_fit",
    "short_of",
    "smallest_budget",
    "start_up_limit",
    "start_up_need",
]

Budgets = int | tuple[int, ...] | None
"""Bytes of every rank's cache, or of each in the order of the plan's; None: the settings fix it."""

BUDGET_HINT = "give bytes as an int: 10 * 2**30, or int(10e9)"
"""What to do about a budget that is no whole number."""

_UNBOUNDED = 2**80  # bytes; where the settings bound what an engine makes of them


class Logged(NamedTuple):
    """Blocks (None where there are none), tokens and sequences at once, as an engine logs them."""

    num_blocks: int | None
    kv_cache_tokens: int
    max_concurrency: float


class PoolCapacity(Value, frozen=True, kw_only=True):
    """One pool's share of a budget.

    Attributes:
        units: units the engine makes, reserved ones included unless they come on top.
        reserved_units: units no sequence can have.
        total_bytes: bytes allocated, extra units included.
        needed_units: units that admission wants for one sequence of the asked length.
    """

    name: str
    unit_bytes: int
    units: int
    reserved_units: int
    total_bytes: int
    needed_units: int


class Capacity(Value, frozen=True, kw_only=True):
    """What a budget holds, per rank; the rank that holds the least decides.

    Attributes:
        kv_cache_bytes: the budget of the rank that decides; None where the settings fix the units.
        max_model_len: the length asked about.
        num_blocks: units of the growing pool; None where no pool grows in blocks of its own.
        kv_cache_tokens: the engine's own start-up figure; concurrency x max_model_len, rounded
            down, where it has no other.
        max_concurrency: sequences of max_model_len at once, as a ratio (vLLM counts its null
            block in it).
        max_sequences: whole sequences that really fit.
        needed_bytes: what one sequence of max_model_len needs.
        fits: by the engine's own check one sequence of max_model_len fits.
        starts: the engine starts: one fits, or it shortens the maximum, or it does not check; and
            no floor of the plan is missed.
        max_model_len_that_fits: the longest up to max_model_len of which one fits; 0: none.
        max_model_len_served: the longest sequence that it serves once it has started.
        overhead_bytes: budget that no sequence can use (null block, remainder below one unit).
        pools: the binding rank's pools.
    """

    kv_cache_bytes: int | None
    max_model_len: int
    block_size: int | None
    block_bytes: int | None
    num_blocks: int | None
    kv_cache_tokens: int
    max_concurrency: float
    max_sequences: int
    needed_bytes: int
    fits: bool
    starts: bool
    max_model_len_that_fits: int
    max_model_len_served: int
    overhead_bytes: int
    pools: tuple[PoolCapacity, ...]


def pool_units(plan: CachePlan, rank: Rank, budget: int | None) -> tuple[int, ...]:
    """Return the units of each pool of a rank under a budget in bytes.

    Raises:
        UsageError: a budget is needed and none was given.
    """
    if plan.split == "fixed" or (plan.split != "fungible" and rank.units_are_set):
        return tuple(_fixed_units(pool) for pool in rank.pools)
    if budget is None and plan.sized:
        budget = _UNBOUNDED
    if budget is None:
        raise UsageError(
            f"the size of a {plan.engine} cache depends on the memory it is given",
            hint="give the bytes of the KV cache (--kv-memory; kv_cache_bytes in Python)",
        )
    usable = max(0, budget - rank.fixed_bytes)
    if plan.split == "one_pool":
        return tuple(p.units if p.units is not None else usable // p.unit_bytes for p in rank.pools)
    if plan.split == "ratio":
        return _ratio_units(rank, usable)
    if plan.split == "bytes":
        return tuple(
            usable * p.share[0] // (p.share[1] * (p.check_unit_bytes or p.unit_bytes))
            for p in rank.pools
        )
    if plan.split == "tokens":
        return _sized_units(rank, usable)
    return tuple(0 for _ in rank.pools)  # fungible bytes: pools have no size of their own


def _fixed_units(pool: Pool) -> int:
    if pool.units is None:
        raise InvalidValueError(f"pool {pool.name} has no fixed number of units")
    return pool.units


def _ratio_units(rank: Rank, usable: int) -> tuple[int, ...]:
    """Units in a ratio: the first pool's count rounded down, the others a share of it."""
    cost = sum((Fraction(*p.share) * p.unit_bytes for p in rank.pools), Fraction(0))
    first = int(usable / cost) if cost else 0
    first -= first % rank.pools[0].rounding
    units = []
    for pool in rank.pools:
        count = int(first * Fraction(*pool.share))
        units.append(count - count % pool.rounding)
    return tuple(units)


def _sized_units(rank: Rank, usable: int) -> tuple[int, ...]:
    """Units of each pool of what a budget comes to in states and tokens."""
    if rank.sizing is None:
        raise InvalidValueError(f"{rank.name} does not say how a budget becomes tokens")
    counts = rank.sizing.counts(usable)
    page = rank.sizing.page_tokens
    return tuple(
        pool.units
        if pool.units is not None
        else counts.of(pool.sized) // (page if pool.sized in ("tokens", "window") else 1)
        for pool in rank.pools
    )


def _concurrency(plan: CachePlan, rank: Rank, budget: int | None, n: int) -> Fraction | None:
    """Sequences of n tokens at once, as the engine counts them; None for no limit."""
    ratio = _room(plan, rank, budget, n)
    if plan.max_sequences is None:
        return ratio
    places = Fraction(plan.max_sequences)
    return places if ratio is None else min(ratio, places)


def _room(plan: CachePlan, rank: Rank, budget: int | None, n: int) -> Fraction | None:
    """Sequences of n tokens that the cache has room for; None for no limit."""
    if plan.split == "fungible":
        needed = rank.bytes_needed(n)
        return Fraction(max(0, (budget or 0) - rank.fixed_bytes), needed) if needed else None
    ratios = [
        Fraction(units, need)
        for pool, units in zip(rank.pools, pool_units(plan, rank, budget), strict=True)
        if (need := _need_as_reported(plan, pool, rank.local(n)))
    ]
    return min(ratios, default=None)


def _need_as_reported(plan: CachePlan, pool: Pool, n: int) -> int:
    """Units of a sequence of n local tokens as the logged concurrency counts them."""
    if not plan.weighs_groups:
        return pool.need(n)
    widths = sum(group.rule.peak(n) * group.unit_bytes for group in pool.groups)
    return cdiv(widths, pool.groups[0].unit_bytes)


def _whole_sequences(plan: CachePlan, rank: Rank, budget: int | None, n: int) -> int:
    if plan.split == "fungible":
        return int(_concurrency(plan, rank, budget, n) or 0)
    if plan.split == "fixed" and budget is not None and allocated(rank) > budget:
        return 0
    counts = [
        pool.usable(units) // need
        for pool, units in zip(rank.pools, pool_units(plan, rank, budget), strict=True)
        if (need := pool.need(rank.local(n)))
    ]
    if plan.max_sequences is not None:
        counts.append(plan.max_sequences)
    return max(0, min(counts, default=0))


def start_up_need(plan: CachePlan, rank: Rank, n: int) -> int:
    """Return the bytes that the engine's start-up check asks of a rank for n tokens."""
    local = rank.local(n)
    pools = _checked(rank)
    if plan.check == "layers":
        return sum(g.rule.peak(local) * g.unit_bytes for p in pools for g in p.groups)
    if plan.check == "first_group":
        return sum(
            p.groups[0].rule.peak(local) * (p.check_unit_bytes or p.unit_bytes) for p in pools
        )
    if plan.check == "window":
        return sum(_of_window(g.rule, local) * p.unit_bytes for p in pools for g in p.groups)
    return sum(p.need(local) * (p.check_unit_bytes or p.unit_bytes) for p in pools)


def _of_window(rule: Rule, n: int) -> int:
    """Units of the last n tokens, no more than a window holds before the token of a step."""
    if isinstance(rule, Window):
        return cdiv(min(n, rule.window - 1), rule.block_tokens)
    return rule.peak(n)


def start_up_limit(plan: CachePlan, rank: Rank, budget: int | None) -> int:
    """Return the bytes that the engine's start-up check compares with, for plans of one pool."""
    pools = _checked(rank)
    if all(p.units is not None for p in pools) and (plan.check_fixed_units or budget is None):
        found = sum((p.units or 0) * (p.check_unit_bytes or p.unit_bytes) for p in pools)
    else:
        found = max(0, (budget or 0) - rank.fixed_bytes)
    if plan.check_spares_reserved:
        found -= sum(p.reserved_units * p.unit_bytes for p in pools if not p.reserved_is_extra)
    return found


def _checked(rank: Rank) -> tuple[Pool, ...]:
    """Pools that the start-up check looks at: those that the budget pays for, if there are any."""
    within = tuple(p for p in rank.pools if not p.beside)
    return tuple(p for p in within if p.units is None) or within or rank.pools


def _starts(plan: CachePlan, rank: Rank, budget: int | None, n: int) -> bool:
    """Whether a sequence of n tokens fits by the engine's own start-up check."""
    if plan.split == "fungible":
        return _whole_sequences(plan, rank, budget, n) >= 1
    if plan.split == "one_pool":
        return start_up_need(plan, rank, n) <= start_up_limit(plan, rank, budget)
    if budget is not None and allocated(rank) > budget:
        return False  # the settings fix the size, and it is more than there is
    return all(
        pool.need(rank.local(n)) <= pool.usable(units)
        for pool, units in zip(rank.pools, pool_units(plan, rank, budget), strict=True)
    )


def allocated(rank: Rank) -> int:
    """Bytes of a rank whose units the settings fix; 0 where a budget decides on some of them."""
    within = [pool for pool in rank.pools if not pool.beside]
    if any(pool.units is None for pool in within):
        return 0
    return rank.fixed_bytes + sum(pool.total_bytes(pool.units or 0) for pool in within)


def _all_allocated(plan: CachePlan, budgets: tuple[int | None, ...]) -> bool:
    """Whether every rank has room for what the settings fix."""
    return all(
        budget is None or allocated(rank) <= budget
        for rank, budget in zip(plan.ranks, budgets, strict=True)
    )


def longest(plan: CachePlan, rank: Rank, budget: int | None, high: int) -> int:
    """Return the longest length up to `high` of which a rank holds one sequence; 0 for none.

    What a sequence needs rises with its length.
    """
    return _last(high, lambda n: _starts(plan, rank, budget, n))


def short_of(plan: CachePlan, budgets: Budgets) -> tuple[Floor, int] | None:
    """Return the first of a plan's floors that budgets do not reach, and the units that there are.

    Raises:
        UsageError, InvalidValueError: as `capacity`.
    """
    return _short_of(plan, _by_rank(plan, budgets)) if plan.floors else None


def _short_of(plan: CachePlan, budgets: tuple[int | None, ...]) -> tuple[Floor, int] | None:
    for floor in plan.floors:
        units = [
            count
            for rank, budget in zip(plan.ranks, budgets, strict=True)
            for pool, count in zip(rank.pools, pool_units(plan, rank, budget), strict=True)
            if pool.name == floor.pool
        ]
        fewest = min(units, default=floor.units)
        if fewest < floor.units:
            return floor, fewest
    return None


def _starts_everywhere(plan: CachePlan, budgets: tuple[int | None, ...], n: int) -> bool:
    """Whether a sequence of n tokens fits on every rank by the engine's own start-up check."""
    # A pipeline stage may keep nothing at all (layers that borrow another's cache).
    return all(
        _starts(plan, rank, budget, n)
        for rank, budget in zip(plan.ranks, budgets, strict=True)
        if rank.bytes_needed(n)
    )


def least_of(budgets: Budgets) -> int | None:
    """Return the smallest budget; None where the settings fix every size."""
    if not isinstance(budgets, tuple):
        return budgets
    return min((budget for budget in budgets if budget is not None), default=None)


def _by_rank(plan: CachePlan, budgets: Budgets) -> tuple[int | None, ...]:
    """Return the budget of each rank; None for one whose size the settings fix.

    Raises:
        InvalidValueError: not one for every rank, or one that is no whole number from 1.
    """
    if budgets is None:
        return (None,) * len(plan.ranks)
    if not isinstance(budgets, tuple):
        found = whole_number(budgets, "kv_cache_bytes", BUDGET_HINT)
        if found < 1:
            raise InvalidValueError("capacity is asked for a length and a budget of at least 1")
        # It is a GPU's: of the host, whose cache the settings fix, it says nothing.
        return tuple(None if rank.on_host else found for rank in plan.ranks)
    if len(budgets) != len(plan.ranks):
        raise InvalidValueError(f"{len(budgets)} budgets for {len(plan.ranks)} ranks")
    each = tuple(whole_number(b, "kv_cache_bytes", BUDGET_HINT) for b in budgets)
    if min(each) < 1:
        raise InvalidValueError("capacity is asked for a length and a budget of at least 1")
    return each


def _served(plan: CachePlan, budgets: tuple[int | None, ...], n: int) -> int:
    """Return the longest sequence up to n tokens that the engine serves."""
    spared = plan.start_spares_tokens
    held = _last(n + spared, lambda m: _starts_everywhere(plan, budgets, m))
    return max(0, held - spared)


def _last(high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest n up to `high` that fits, where all below it fit too; 0 for none."""
    return high if fits(high) else last_that(fits, 0, high)


def capacity(plan: CachePlan, kv_cache_bytes: Budgets, *, at: int | None = None) -> Capacity:
    """Return what a budget of `kv_cache_bytes` holds for sequences of `at` tokens.

    Args:
        plan: whose rules decide.
        kv_cache_bytes: the cache pool of every rank, or of each in the order of `plan.ranks`; None
            where the settings fix the units.
        at: the length asked about; the plan's max_model_len by default.

    Raises:
        UsageError: a budget is needed and none was given.
        InvalidValueError: a length or budget below 1, or that is not a whole number.
    """
    n = plan.max_model_len if at is None else whole_number(at, "at", "give a number of tokens")
    if n < 1:
        raise InvalidValueError("capacity is asked for a length and a budget of at least 1")
    budgets = _by_rank(plan, kv_cache_bytes)
    rank, budget = _binding(plan, budgets, n)
    concurrency = _concurrency(plan, rank, budget, n) or Fraction(0)
    whole = _whole_sequences(plan, rank, budget, n)
    units = pool_units(plan, rank, budget)
    pools = tuple(
        PoolCapacity(
            name=pool.name,
            unit_bytes=pool.unit_bytes,
            units=count,
            reserved_units=pool.reserved_units,
            total_bytes=pool.total_bytes(count),
            needed_units=pool.need(rank.local(n)),
        )
        for pool, count in zip(rank.pools, units, strict=True)
    )
    tokens, times = _logged(plan, rank, units, concurrency, n)
    blocks = _blocks(plan, rank, units)
    if plan.split == "fixed" and not _all_allocated(plan, budgets):
        tokens, times, whole = 0, 0.0, 0  # all of it or nothing
        blocks = None if blocks is None else 0
    fits = _starts_everywhere(plan, budgets, n)
    reached = _short_of(plan, budgets) is None
    longest_served = _served(plan, budgets, n) if reached else 0
    starts = (
        reached
        and {"refuses": fits, "shortens": longest_served > 0, "never_checks": True}[plan.start]
    )
    return Capacity(
        kv_cache_bytes=budget,
        max_model_len=n,
        block_size=plan.block_size,
        block_bytes=_block_bytes(plan, rank),
        num_blocks=blocks,
        kv_cache_tokens=tokens,
        max_concurrency=times,
        max_sequences=whole,
        needed_bytes=rank.bytes_needed(n),
        fits=fits,
        starts=starts,
        max_model_len_that_fits=_last(n, lambda m: _starts_everywhere(plan, budgets, m)),
        max_model_len_served=longest_served,
        overhead_bytes=_overhead(plan, rank, budget, pools),
        pools=pools,
    )


def binding_rank(plan: CachePlan, budgets: Budgets) -> Rank:
    """Return the rank that binds: the one that holds the fewest sequences of the maximum.

    Where there is no memory to hold any, or none is given, the plan's own: it needs the most.
    """
    least = least_of(budgets)
    if least is None or least < 1:
        return plan.rank
    return _binding(plan, _by_rank(plan, budgets), plan.max_model_len)[0]


def _block_bytes(plan: CachePlan, rank: Rank) -> int | None:
    pool = rank.block_pool if plan.block_size else None
    return None if pool is None else pool.unit_bytes


def _binding(plan: CachePlan, budgets: tuple[int | None, ...], n: int) -> tuple[Rank, int | None]:
    """Return the rank that holds the fewest sequences of n tokens, with its budget."""

    def served(pair: tuple[Rank, int | None]) -> Fraction | float:
        found = _concurrency(plan, *pair, n)
        return float("inf") if found is None else found

    return min(zip(plan.ranks, budgets, strict=True), key=served)


def _blocks(plan: CachePlan, rank: Rank, units: tuple[int, ...]) -> int | None:
    """Return the units of the pool that grows; None where no pool grows in blocks of its own."""
    growing = rank.block_pool
    if growing is None or plan.split == "fungible" or not plan.block_size:
        return None
    counts = zip(rank.pools, units, strict=True)
    return next((count for pool, count in counts if pool.name == growing.name), None)


def logged_figures(plan: CachePlan, kv_cache_bytes: Budgets) -> Logged:
    """Return what an engine logs of a budget, without the lengths that fit, which take longer.

    Raises:
        UsageError, InvalidValueError: as `capacity`.
    """
    n = plan.max_model_len
    rank, budget = _binding(plan, _by_rank(plan, kv_cache_bytes), n)
    concurrency = _concurrency(plan, rank, budget, n) or Fraction(0)
    units = pool_units(plan, rank, budget)
    tokens, times = _logged(plan, rank, units, concurrency, n)
    return Logged(_blocks(plan, rank, units), tokens, times)


def holds(plan: CachePlan, budgets: Budgets, sequences: int = 1, *, at: int | None = None) -> bool:
    """Return whether so many sequences at once pass a plan's own check, have room and are run.

    The check alone is not enough: some let start what blocks that no sequence can have pay for.

    Args:
        plan: whose rules decide.
        budgets: as in `capacity`; one below 1 holds nothing.
        sequences: at once, each whole.
        at: tokens of each; the plan's max_model_len by default.
    """
    least = least_of(budgets)
    if least is not None and least < 1:
        return False
    if plan.places is not None and sequences > plan.places:
        return False
    n, each = at or plan.max_model_len, _by_rank(plan, budgets)
    if _short_of(plan, each) is not None or not _starts_everywhere(plan, each, n):
        return False
    return all(
        _whole_sequences(plan, rank, budget, n) >= sequences
        for rank, budget in zip(plan.ranks, each, strict=True)
        if rank.bytes_needed(n)
    )


def longest_held(plan: CachePlan, budgets: Budgets, sequences: int = 1) -> int:
    """Return the longest length up to the plan's maximum of which it `holds` so many; 0: none."""
    return _last(plan.max_model_len, lambda n: holds(plan, budgets, sequences, at=n))


def smallest_budget(plan: CachePlan, sequences: int = 1) -> int | None:
    """Return the fewest bytes on every rank with which `holds` is true; None where none are enough.

    What a budget holds rises with it.
    """
    high = 1 << 60
    if not holds(plan, high, sequences):
        return None
    guess = max(_pays_for(rank, plan.max_model_len, sequences) for rank in plan.ranks)
    return first_near(lambda budget: holds(plan, budget, sequences), min(max(1, guess), high), high)


def _pays_for(rank: Rank, n: int, sequences: int) -> int:
    """Return the bytes that sequences of n tokens need, and units that none can have."""
    local = rank.local(n)
    units = sum(
        (pool.need(local) * sequences + pool.reserved_units) * pool.unit_bytes
        for pool in rank.pools
        if not pool.beside
    )
    return rank.fixed_bytes + units


def _logged(
    plan: CachePlan, rank: Rank, units: tuple[int, ...], concurrency: Fraction, n: int
) -> tuple[int, float]:
    """Return tokens and concurrency as the engine logs them."""
    times = float(concurrency)
    if plan.report == "concurrency":
        # As the engine computes it: a quotient that is no binary fraction can lose a token.
        return int(times * n), times
    if plan.report in ("even_groups", "tokens") and rank.block_pool is not None:
        groups = rank.pools[0].groups
        block = min((group.block_size for group in groups if group.block_size), default=0)
        tokens = units[0] // len(groups) * block * rank.token_factor
        return tokens, tokens / n if plan.report == "tokens" else times
    return int(concurrency * n), times


def _overhead(
    plan: CachePlan, rank: Rank, budget: int | None, pools: tuple[PoolCapacity, ...]
) -> int:
    reserved = sum(
        (q.reserved_units if p.reserved_is_extra else min(q.reserved_units, q.units)) * q.unit_bytes
        for p, q in zip(rank.pools, pools, strict=True)
        if not p.beside
    )
    if budget is None or plan.split == "fungible":
        return reserved
    paid = sum(q.total_bytes for p, q in zip(rank.pools, pools, strict=True) if not p.beside)
    return reserved + max(0, budget - rank.fixed_bytes - paid)


def requests_that_fit(plan: CachePlan, kv_cache_bytes: int, lengths: Lengths) -> Fraction:
    """Return how many requests of such lengths a budget holds at once, all at full length.

    The mean request decides: units of a pool over units of the mean request. A plan that reserves
    the same for every request gives a whole number when rounded down.

    Raises:
        InvalidValueError: no request, or requests that hold nothing.
    """
    ratios = []
    for rank in plan.ranks:
        local = lengths.map(rank.local) if rank.token_factor > 1 else lengths
        if plan.split == "fungible":
            held = sum(
                group.rule.tally(local).units * pool.unit_bytes
                for pool in rank.pools
                for group in pool.groups
            )
            if held:
                usable = max(0, kv_cache_bytes - rank.fixed_bytes)
                ratios.append(Fraction(usable * lengths.requests, held))
            continue
        for pool, units in zip(rank.pools, pool_units(plan, rank, kv_cache_bytes), strict=True):
            usable = pool.usable(units)
            held = sum(group.rule.tally(local).units for group in pool.groups)
            if held:
                ratios.append(Fraction(max(0, usable) * lengths.requests, held))
    if not ratios:
        raise InvalidValueError("no request holds any cache")
    return min(ratios)
