"""A plan in the figures that people ask of it: groups, blocks a request, and what a cache makes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvcalc.answers.results import (
    Difference,
    PlanGroup,
    PlanPool,
    PlanRank,
    PlanSummary,
    StartUp,
    Totals,
)
from kvcalc.core.capacity import capacity, short_of
from kvcalc.core.plan import CachePlan, Floor, Group, Pool, Rank
from kvcalc.core.rules import (
    Chunk,
    Compressed,
    Fixed,
    Form,
    Grow,
    Ring,
    Rule,
    Slots,
    Stepped,
    Whole,
    Window,
)
from kvcalc.core.units import format_count, format_number_of

__all__ = ["kept_in_words", "notes_without", "summarise", "too_much"]


def summarise(
    plan: CachePlan,
    *,
    kv_cache_bytes: int | None = None,
    card_bytes: int | None = None,
    longest_that_fits: int | None = None,
    log: tuple[str, ...] = (),
    differences: tuple[Difference, ...] = (),
    flags: tuple[str, ...] = (),
) -> PlanSummary:
    """Return the summary of a plan.

    Args:
        plan: whose rules decide; figures are those of its binding rank.
        kv_cache_bytes: the cache of each rank; a plan whose pools the settings fix needs none.
        card_bytes: memory of the card, where one is named: what cannot be on it does not start.
        longest_that_fits: where the settings fix a size that cannot be: the longest sequence of a
            plan that would fit, which this plan does not tell.
        log: what the engine prints about that cache.
        differences: why it is not like another engine's plan.
        flags: what sets it apart from other plans.
    """
    rank, longest = plan.rank, plan.max_model_len
    grown, period = plan.growth()
    groups = tuple(
        _group(pool.name, group, rank.local(longest))
        for pool in rank.pools
        for group in pool.groups
    )
    start_up, block_bytes = None, plan.block_bytes
    notes = plan.notes
    if plan.sized or kv_cache_bytes is not None:
        start_up, block_bytes = _start_up(plan, kv_cache_bytes, log, card_bytes)
        short = short_of(plan, start_up.kv_cache_bytes)
        said = list(_of_size(plan, start_up, short))
        faults = too_much(plan, kv_cache_bytes, card_bytes)
        if faults:
            start_up = _failed(plan, start_up, longest_that_fits)
        notes = (*faults, *said, *notes_without(short, notes))
    return PlanSummary(
        model=plan.model,
        engine=plan.engine,
        engine_version=plan.engine_version,
        kv_cache_dtype=plan.kv_cache_dtype,
        num_gpus=plan.num_gpus,
        block_size=plan.block_size,
        block_bytes=block_bytes,
        max_model_len=longest,
        bytes_per_token=grown if period == 1 else None,
        reuse_tokens=plan.reuse_tokens,
        units_needed=sum(group.units_needed for group in groups),
        needed_bytes=plan.bytes_needed(longest),
        request=Totals.of(plan.wastes_at_admission(longest)),
        groups=groups,
        ranks=tuple(
            PlanRank(
                name=r.name,
                num_gpus=0 if r.on_host else r.multiplicity,
                block_bytes=r.pools[0].unit_bytes if len(r.pools) == 1 else None,
                needed_bytes=r.bytes_needed(longest),
                pools=_pools(r) if plan.split == "fixed" else (),
                weights_bytes=None if r.weights_more else r.weights_bytes,
            )
            for r in plan.ranks
        ),
        start_up=start_up,
        floors=plan.floors,
        notes=notes,
        unsupported=plan.unsupported,
        convention=plan.convention,
        source=plan.source,
        differences=differences,
        flags=flags,
    )


def _group(pool: str, group: Group, tokens: int) -> PlanGroup:
    return PlanGroup(
        pool=pool,
        name=group.name,
        layers=group.layers,
        block_size=_tokens_a_unit(group),
        keeps=kept_in_words(group),
        page_bytes=group.page_bytes,
        group_bytes=group.unit_bytes,
        content_bytes=group.content_bytes,
        units_held=group.rule.held(tokens),
        units_needed=group.rule.peak(tokens),
    )


def kept_in_words(group: Group) -> str:
    """Return which tokens a group's units are held for, in words."""
    rules = [rows.rule for rows in group.rows]
    growing = [rule for rule in rules if isinstance(rule, Grow)]
    read = list(dict.fromkeys(_read(rule) for rule in growing if rule.limit is not None))
    if len(growing) == len(rules) and read:
        what = " or ".join(read)
        if all(rule.limit is not None for rule in growing):
            return f"every token, of which {what} are read"
        return f"every token, of which some layers read {what}"
    return " or ".join(dict.fromkeys(_keeps(rule) for rule in rules))


def _read(rule: Grow) -> str:
    """Return which of the tokens that a rule keeps are read, in words."""
    limit = format_count(rule.limit or 0)
    return f"those of a chunk of {limit}" if rule.restarts else f"the last {limit}"


def _pools(rank: Rank) -> tuple[PlanPool, ...]:
    """Return what a rank allocates; nothing where a budget decides on some of it."""
    if any(pool.units is None for pool in rank.pools):
        return ()
    return tuple(_pool(pool, pool.units or 0) for pool in rank.pools)


def _pool(pool: Pool, units: int) -> PlanPool:
    rows: dict[str, int] = {}
    for group in pool.groups:
        for part in group.rows:
            for role, size in part.payload.items():
                rows[role] = rows.get(role, 0) + units * part.rule.slots_per_unit * size
    return PlanPool(
        name=pool.name,
        layers=sum(group.layers for group in pool.groups),
        units=units,
        role_bytes=rows,
        total_bytes=pool.total_bytes(units),
    )


def _tokens_a_unit(group: Group) -> int | None:
    """Return tokens of a sequence that a unit stands for: as the engine says, else as its rule."""
    if group.block_size is not None:
        return group.block_size
    match group.rule:
        case Grow(block_tokens=block) | Window(block_tokens=block) | Chunk(block_tokens=block):
            return block
        case Form(block_tokens=block):
            return block
        case Compressed(block_entries=entries, ratio=ratio):
            return entries * ratio
    return None


def _keeps(rule: Rule) -> str:
    """Return which tokens a rule holds units for, in words."""
    match rule:
        case Grow():
            return "every token"
        case Compressed(ratio=ratio):
            return f"1 entry in {format_count(ratio)} tokens"
        case Window() | Chunk() | Ring():
            return _keeps_newest(rule)
        case Form(since=since, until=until):
            bound = f"from {format_count(since)}" if until is None else f"under {until:,}"
            return f"every token of sequences {bound} tokens"
        case Fixed(tokens=tokens):
            return f"{format_count(tokens)} encoder tokens"
        case Slots():
            return _keeps_states(rule)
        case Stepped(rest=rest, step=step):
            newest = f"up to {format_count(step - 1)} tokens not settled yet"
            return newest if rest else f"every token, settled {format_count(step)} at a time"
        case Whole(slots=slots):
            return f"{format_count(slots)} slots, whole"


def _keeps_newest(rule: Window | Chunk | Ring) -> str:
    match rule:
        case Window(window=window, in_flight=flight):
            room = f" + {format_count(flight)} in flight" if flight > 1 else ""
            return f"last {format_count(window)} tokens{room}"
        case Chunk(chunk=chunk, in_flight=flight):
            room = f" + {format_count(flight)} in flight" if flight else ""
            return f"chunk of {format_count(chunk)} tokens{room}"
        case Ring(window=window, step=step):
            return f"last {format_count(window)} tokens, {format_count(step)} rows at a time"


def _keeps_states(rule: Slots) -> str:
    if rule.beside is not None:
        return "1 state beside every block"
    more = f", one more every {format_count(rule.every)} tokens" if rule.every else ""
    return format_number_of(rule.count, "state") + more


def notes_without(
    short: tuple[Floor, int] | None, notes: tuple[str, ...], of: str = ""
) -> tuple[str, ...]:
    """Return notes without the condition of a floor that is said to be in the way.

    Args:
        short: the floor, and the units that there are.
        notes: of a plan.
        of: what each begins with.
    """
    return tuple(note for note in notes if short is None or note != of + short[0].condition)


def _of_size(plan: CachePlan, start: StartUp, short: tuple[Floor, int] | None) -> Iterator[str]:
    """Yield what a cache of that size means and its figures alone do not say."""
    longest = format_count(plan.max_model_len)
    if short is not None:
        floor, units = short
        yield floor.told(units)
    if start.kv_cache_bytes is not None and any(rank.on_host for rank in plan.ranks):
        yield (
            f"the {format_count(start.kv_cache_bytes)} B given are a device's: what the host keeps"
            " is not held against them"
        )
    if plan.start == "shortens" and start.fits and start.max_model_len_served < plan.max_model_len:
        yield (
            f"it starts and serves no sequence over {format_count(start.max_model_len_served)}"
            f" tokens: {plan.engine} shortens the maximum of {longest} to what its cache holds"
        )
    elif plan.start == "never_checks" and start.max_model_len_that_fits < plan.max_model_len:
        yield (
            f"{plan.engine} starts without comparing the cache with the maximum: it has no room for"
            f" a sequence of more than {format_count(start.max_model_len_that_fits)} tokens"
        )
    elif start.fits and not start.max_sequences and plan.check == "window":
        yield (
            f"it starts, and has no room for a prompt of {longest}: its check asks for a window,"
            " and a step of a prompt takes more"
        )
    elif start.fits and not start.max_sequences:
        yield (
            f"it starts, and never has room for a sequence of {longest}:"
            " blocks that no sequence can have are counted in the start-up check"
        )


def too_much(
    plan: CachePlan, kv_cache_bytes: int | None, card_bytes: int | None = None
) -> tuple[str, ...]:
    """Return what cannot be allocated, whatever the engine's own check says; empty: all can.

    Args:
        plan: whose pools and tables are allocated.
        kv_cache_bytes: the cache of each GPU, where that is given.
        card_bytes: memory of a GPU, where its rank does not tell its own.
    """
    fixed = [line for rank in plan.ranks for line in _too_much_on(plan, rank, kv_cache_bytes)]
    return (*fixed, *_beyond_card(plan, kv_cache_bytes, card_bytes))


def _too_much_on(plan: CachePlan, rank: Rank, given: int | None) -> Iterator[str]:
    """Yield what cannot be allocated of what the settings fix on a rank."""
    fixed = sum(
        pool.total_bytes(pool.units)
        for pool in rank.pools
        if pool.units is not None and not pool.beside
    )
    where = f" on {rank.name}" if len(plan.ranks) > 1 else ""
    what = "blocks" if plan.block_size or plan.split != "fixed" else "cells"
    if given is not None and not rank.on_host and fixed > given:
        yield (
            f"the {what} that are set come to {format_count(fixed)} B{where}, more than the"
            f" {format_count(given)} B given: allocating them would fail"
        )
    total = fixed + rank.fixed_bytes + rank.outside_bytes
    weights = rank.weights_bytes or 0
    if rank.memory_bytes is not None and total + weights > rank.memory_bytes:
        beside = f" with {format_count(weights)} B of weights beside them," if weights else ""
        yield (
            f"the {what} that are set come to {format_count(total)} B{where},{beside} more than"
            f" the {format_count(rank.memory_bytes)} B of the device: allocating them would fail"
        )


def _beyond_card(plan: CachePlan, given: int | None, card_bytes: int | None) -> Iterator[str]:
    """Yield what the cache given and what lies beside it come to, where a card has less."""
    rank = plan.rank
    beside = rank.beside_bytes
    total = (given or 0) + beside
    if card_bytes is None or rank.on_host or rank.memory_bytes is not None or total <= card_bytes:
        return
    what = f", {format_count(beside)} B of them beside the cache," if beside else ""
    yield (
        f"{format_count(total)} B{what} are more than the card's {format_count(card_bytes)} B:"
        " allocating them would fail"
    )


def _failed(plan: CachePlan, start: StartUp, longest: int | None) -> StartUp:
    """Return what a start that fails comes to: of a size that the settings fix, nothing."""
    if plan.split != "fixed":
        return msgspec.structs.replace(start, fits=False)
    return msgspec.structs.replace(
        start,
        fits=False,
        num_blocks=None if start.num_blocks is None else 0,
        kv_cache_tokens=0,
        max_concurrency=0.0,
        max_sequences=0,
        overhead_bytes=0,
        max_model_len_that_fits=longest or 0,
        max_model_len_served=0,
    )


def _start_up(
    plan: CachePlan, kv_cache_bytes: int | None, log: tuple[str, ...], gpu_bytes: int | None
) -> tuple[StartUp, int | None]:
    """Return a start, and the bytes of a block of the rank that decides in it."""
    found = capacity(plan, kv_cache_bytes)
    start = StartUp(
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=found.num_blocks,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_sequences=found.max_sequences,
        fits=found.starts,
        needed_bytes=found.needed_bytes,
        max_model_len_that_fits=found.max_model_len_that_fits,
        overhead_bytes=found.overhead_bytes,
        start=plan.start,
        max_model_len_served=found.max_model_len_served,
        beside_bytes=plan.rank.beside_bytes,
        log=log,
        gpu_bytes=gpu_bytes,
    )
    return start, found.block_bytes
