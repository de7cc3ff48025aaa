"""Why two plans of one model differ: every byte of the difference under the name of its cause.

What a sequence needs is used + wastes in every plan, so the difference of two plans is the sum of
the differences of these parts, exactly. Each part is put down to the groups that make it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcalc.answers.plan_summary import kept_in_words
from kvcalc.answers.results import Difference
from kvcalc.core.capacity import PoolCapacity, capacity
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan, Group, Pool
from kvcalc.core.rules import Slots
from kvcalc.core.units import cdiv, format_bytes, format_count, format_number_of
from kvcalc.core.waste import WASTE_NAMES

__all__ = ["differences"]

_MOST_GROUPS = 2
"""Groups that a reason names, the ones with the most bytes first."""


def differences(
    plan: CachePlan, base: CachePlan, kv_cache_bytes: int | None = None
) -> tuple[Difference, ...]:
    """Return the causes for which `plan` needs other bytes, or serves others, than `base`.

    Args:
        plan: the one that is explained.
        base: what it is compared with; each has its own maximum.
        kv_cache_bytes: the cache of each rank; None where there is none to compare.
        sized: both plans can say what they serve, whether or not bytes are given.

    Returns:
        The parts that differ, by name; their bytes add up to the difference of what one sequence
        of the maximum needs. Then, where a cache is given, what decides on the sequences at once.
    """
    found = [*_lengths(plan, base)]
    mine, others = _parts(plan), _parts(base)
    for name in ("used", *WASTE_NAMES):
        bytes_more = sum(mine[name].values()) - sum(others[name].values())
        if bytes_more:
            reason = (
                _used(plan, base) if name == "used" else _wasted(name, mine, others, plan, base)
            )
            found.append(
                Difference(name=name, against=base.engine, bytes=bytes_more, reason=reason)
            )
    if kv_cache_bytes is not None or (plan.sized and base.sized):
        found.extend(_served(plan, base, kv_cache_bytes))
    return tuple(found)


def _lengths(plan: CachePlan, base: CachePlan) -> Iterator[Difference]:
    if plan.max_model_len != base.max_model_len:
        yield Difference(
            name="longest sequence",
            against=base.engine,
            bytes=None,
            reason=f"{format_count(plan.max_model_len)} tokens against"
            f" {format_count(base.max_model_len)}",
        )


_Parts = dict[str, dict[str, int]]
"""Part -> words of the groups that make it -> bytes of one sequence of the maximum."""


def _parts(plan: CachePlan) -> _Parts:
    rank = plan.rank
    one = Lengths({rank.local(plan.max_model_len): 1})
    parts: _Parts = {name: {} for name in ("used", *WASTE_NAMES)}
    alike: dict[tuple[str, str, str], list[tuple[Pool, Group]]] = {}
    for pool in rank.pools:
        for group in pool.groups:
            key = (pool.name, kept_in_words(group), _base_name(group.name))
            alike.setdefault(key, []).append((pool, group))
    for (_, _, name), members in alike.items():
        layers = sum(group.layers for _, group in members)
        for pool, group in members:
            wastes = group.wastes(one, pool.unit_bytes, admission=True)
            for part, said in parts.items():
                size = getattr(wastes, f"{part}_bytes")
                label = f"{format_number_of(layers, 'layer')} ({name}: {_how(part, pool, group)})"
                if size:
                    said[label] = said.get(label, 0) + size
    return parts


def _how(part: str, pool: Pool, group: Group) -> str:
    """Say what of a group makes such bytes."""
    if part == "tail" and group.block_size:
        return f"blocks of {format_number_of(group.block_size, 'token')}"
    if part == "page_padding":
        content = format_count(group.content_bytes)
        return f"units of {format_count(group.unit_bytes)} B for {content} B of rows"
    if part == "group_padding":
        return f"groups that share units {format_count(pool.unit_bytes)} B wide"
    return kept_in_words(group)


def _base_name(name: str) -> str:
    return name.partition(" (")[0].replace("_", " ")


def _used(plan: CachePlan, base: CachePlan) -> str:
    """Say which bytes a token and which states make the difference."""
    said = []
    for one in (plan, base):
        grown, tokens = one.growth(windows_open=False)
        rows = f"{_rate(grown, tokens)} B a token past windows" if grown else "no rows that grow"
        states = one.fixed_bytes(Slots)
        more = f" and {format_count(states)} B of state" if states else ""
        said.append(f"{one.engine} {one.kv_cache_dtype}, {rows}{more}")
    return "; ".join(said)


def _rate(grown: int, tokens: int) -> str:
    return format_count(grown) if tokens == 1 else f"{format_count(grown)} / {format_count(tokens)}"


def _wasted(name: str, mine: _Parts, others: _Parts, plan: CachePlan, base: CachePlan) -> str:
    said = []
    for one, parts in ((plan, mine), (base, others)):
        groups = sorted(parts[name].items(), key=lambda part: -part[1])
        if not groups:
            said.append(f"{one.engine} none")
            continue
        named = ", ".join(
            f"{format_bytes(size)} by {label}" for label, size in groups[:_MOST_GROUPS]
        )
        rest = len(groups) - _MOST_GROUPS
        said.append(f"{one.engine} {named}" + (f" and {rest} more" if rest > 0 else ""))
    return "; ".join(said)


def _served(plan: CachePlan, base: CachePlan, budget: int | None) -> Iterator[Difference]:
    """Say what decides on the sequences at once, where two plans serve different numbers."""
    found = [capacity(one, budget) for one in (plan, base)]
    if found[0].max_sequences == found[1].max_sequences:
        if found[0].kv_cache_tokens != found[1].kv_cache_tokens:
            said = [f"{p.engine} {_counted(p)}" for p in (plan, base)]
            yield Difference(
                name="tokens",
                against=base.engine,
                bytes=None,
                reason="; ".join(dict.fromkeys(said)),
            )
        return
    said = []
    for one, cap in zip((plan, base), found, strict=True):
        sequences = format_number_of(cap.max_sequences, "sequence")
        said.append(f"{one.engine} {sequences}: {_binds(one, cap.pools)}")
    yield Difference(name="sequences", against=base.engine, bytes=None, reason="; ".join(said))


def _counted(plan: CachePlan) -> str:
    """Say what the logged tokens are."""
    if plan.max_sequences is not None and plan.report == "exact":
        return f"has {plan.max_sequences} places of {format_count(plan.max_model_len)} tokens"
    words = {
        "concurrency": "logs sequences at once x maximum",
        "even_groups": "logs the blocks of one group in tokens",
        "tokens": "logs all blocks in tokens",
        "exact": "has room for sequences at once x maximum",
    }
    return words[plan.report]


def _binds(plan: CachePlan, pools: Sequence[PoolCapacity]) -> str:
    """Say which pool, or which number of places, lets no further sequence in."""
    local = [(p.units - p.reserved_units) // p.needed_units for p in pools if p.needed_units]
    if plan.max_sequences is not None and plan.max_sequences <= min(local, default=0):
        return f"it has {format_number_of(plan.max_sequences, 'place')}"
    asked = [p for p in pools if p.needed_units]
    if plan.split == "fungible" or not asked:
        return f"one needs {format_bytes(plan.bytes_needed(plan.max_model_len))}"
    tightest = min(asked, key=lambda p: (p.units - p.reserved_units) / p.needed_units)
    share = ""
    if len(asked) > 1:
        total = sum(p.total_bytes for p in pools)
        part = cdiv(100 * tightest.total_bytes, total) if total else 0
        share = f", {part} % of the cache"
    needed, units = format_count(tightest.needed_units), format_count(tightest.units)
    return (
        f"one needs {needed} of {units} units of {format_bytes(tightest.unit_bytes)}"
        f" ({tightest.name}{share})"
    )
