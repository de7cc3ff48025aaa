"""A plan in the figures that people ask of it: groups, blocks a request, and what a cache makes."""

from __future__ import annotations

from collections.abc import Iterator

from kvcalc.core.capacity import capacity
from kvcalc.core.plan import CachePlan, Group
from kvcalc.core.results import PlanGroup, PlanRank, PlanSummary, StartUp, Totals
from kvcalc.core.rules import Chunk, Compressed, Fixed, Grow, Rule, Slots, Stepped, Whole, Window
from kvcalc.core.units import format_count, format_number_of

__all__ = ["summarise"]


def summarise(
    plan: CachePlan,
    *,
    kv_cache_bytes: int | None = None,
    sized: bool = False,
    log: tuple[str, ...] = (),
) -> PlanSummary:
    """Return the summary of a plan.

    Args:
        plan: whose rules decide; figures are those of its binding rank.
        kv_cache_bytes: the cache of each rank.
        sized: the settings fix the cache, so that its figures need no bytes.
        log: what the engine prints about that cache.
    """
    rank, longest = plan.rank, plan.max_model_len
    grown, period = plan.growth()
    groups = tuple(
        _group(pool.name, group, rank.local(longest))
        for pool in rank.pools
        for group in pool.groups
    )
    start_up = None
    notes = plan.notes
    if sized or kv_cache_bytes is not None:
        start_up = _start_up(plan, kv_cache_bytes, log)
        notes = (*_of_size(plan, start_up), *notes)
    return PlanSummary(
        model=plan.model,
        engine=plan.engine,
        engine_version=plan.engine_version,
        kv_cache_dtype=plan.kv_cache_dtype,
        num_gpus=plan.num_gpus,
        block_size=plan.block_size,
        block_bytes=plan.block_bytes,
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
                num_gpus=r.multiplicity,
                block_bytes=r.pools[0].unit_bytes if len(r.pools) == 1 else None,
                needed_bytes=r.bytes_needed(longest),
            )
            for r in plan.ranks
        ),
        start_up=start_up,
        notes=notes,
        unsupported=plan.unsupported,
        convention=plan.convention,
        source=plan.source,
    )


def _group(pool: str, group: Group, tokens: int) -> PlanGroup:
    return PlanGroup(
        pool=pool,
        name=group.name,
        layers=group.layers,
        block_size=_tokens_a_unit(group),
        keeps=" or ".join(dict.fromkeys(_keeps(rows.rule) for rows in group.rows)),
        page_bytes=group.page_bytes,
        group_bytes=group.unit_bytes,
        content_bytes=group.content_bytes,
        units_held=group.rule.held(tokens),
        units_needed=group.rule.peak(tokens),
    )


def _tokens_a_unit(group: Group) -> int | None:
    """Return tokens of a sequence that a unit stands for: as the engine says, else as its rule."""
    if group.block_size is not None:
        return group.block_size
    match group.rule:
        case Grow(block_tokens=block) | Window(block_tokens=block) | Chunk(block_tokens=block):
            return block
        case Compressed(block_entries=entries, ratio=ratio):
            return entries * ratio
    return None


def _keeps(rule: Rule) -> str:
    """Return which tokens a rule holds units for, in words."""
    match rule:
        case Grow(limit=None):
            return "every token"
        case Grow(limit=limit):
            return f"every token, {format_count(limit or 0)} of them read"
        case Compressed(ratio=ratio):
            return f"1 entry in {format_count(ratio)} tokens"
        case Window(window=window, in_flight=flight):
            room = f" + {format_count(flight)} in flight" if flight > 1 else ""
            return f"last {format_count(window)} tokens{room}"
        case Chunk(chunk=chunk, in_flight=flight):
            room = f" + {format_count(flight)} in flight" if flight else ""
            return f"chunk of {format_count(chunk)} tokens{room}"
        case Fixed(tokens=tokens):
            return f"{format_count(tokens)} encoder tokens"
        case Slots():
            return _keeps_states(rule)
        case Stepped(rest=rest, step=step):
            newest = f"up to {format_count(step - 1)} tokens not settled yet"
            return newest if rest else f"every token, settled {format_count(step)} at a time"
        case Whole(slots=slots):
            return f"{format_count(slots)} slots, whole"


def _keeps_states(rule: Slots) -> str:
    if rule.beside is not None:
        return "1 state beside every block"
    more = f", one more every {format_count(rule.every)} tokens" if rule.every else ""
    return format_number_of(rule.count, "state") + more


def _of_size(plan: CachePlan, start: StartUp) -> Iterator[str]:
    """Yield what a cache of that size means and its figures alone do not say."""
    if start.fits and not start.max_sequences:
        yield (
            f"it starts, and never has room for a sequence of {format_count(plan.max_model_len)}:"
            " blocks that no sequence can have are counted in the start-up check"
        )
    fixed = [pool.total_bytes(pool.units) for pool in plan.rank.pools if pool.units is not None]
    given = start.kv_cache_bytes
    beside = plan.split == "tokens"  # there, the budget does not pay for what the settings fix
    if given is not None and sum(fixed) > given and not beside:
        yield (
            f"the blocks that are set come to {format_count(sum(fixed))} B, more than the"
            f" {format_count(given)} B given: allocating them would fail"
        )


def _start_up(plan: CachePlan, kv_cache_bytes: int | None, log: tuple[str, ...]) -> StartUp:
    found = capacity(plan, kv_cache_bytes)
    return StartUp(
        kv_cache_bytes=kv_cache_bytes,
        num_blocks=found.num_blocks,
        kv_cache_tokens=found.kv_cache_tokens,
        max_concurrency=found.max_concurrency,
        max_sequences=found.max_sequences,
        fits=found.fits,
        needed_bytes=found.needed_bytes,
        max_model_len_that_fits=found.max_model_len_that_fits,
        overhead_bytes=found.overhead_bytes,
        log=log,
    )
