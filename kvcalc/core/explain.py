"""The formula with the numbers put in, and the table of layers: what a plan charges, line by line.

Where a plan charges just what the model's own shapes come to, a line is a product of heads, widths
and bytes; elsewhere it is what the plan's groups hold, so that the lines add up in every case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvcalc.core.dtypes import (
    CacheDtype,
    KvDtype,
    Row,
    cache_dtype,
    element_bytes,
)
from kvcalc.core.errors import KvcalcError
from kvcalc.core.kind import All, Chunks, EveryNth, Once, Span, StateTensor, Windowed
from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec, row_bytes
from kvcalc.core.plan import CachePlan, Rows
from kvcalc.core.rules import (
    Chunk,
    Compressed,
    Fixed,
    Grow,
    Ring,
    Slots,
    Whole,
    Window,
)
from kvcalc.core.states import VLLM_STATES
from kvcalc.core.units import add_rates, format_count, format_number_of

__all__ = [
    "Held",
    "as_shaped",
    "beyond",
    "explain_model",
    "explain_plan",
    "held_by_layers",
    "keeps",
    "keeps_in_all",
]


def keeps(span: Span) -> str:
    """Return which tokens a span keeps, in words."""
    match span:
        case All():
            return "every token"
        case Windowed(tokens=tokens):
            return f"last {format_count(tokens)} tokens"
        case Chunks(tokens=tokens):
            return f"chunk of {format_count(tokens)} tokens"
        case EveryNth(ratio=ratio):
            return f"1 entry in {format_count(ratio)} tokens"
        case Once(tokens=tokens):
            return f"{format_count(tokens)} encoder tokens"


def keeps_in_all(caches: Sequence[Cache]) -> str:
    """Return what the caches of one layer keep, in words; `nothing` where there is none."""
    parts = list(dict.fromkeys(keeps(cache.span) for cache in caches if cache.rows()))
    if any(cache.states() for cache in caches):
        parts.append("one state")
    return " + ".join(parts) or "nothing"


def beyond(model: ModelSpec, tokens: int | None, *, stretched: bool = True) -> list[str]:
    """Say that a length is more than the model was made for: a line, or none where it is not.

    `stretched`: the engine counts positions as the config's rope scaling stretches them.
    """
    longest = model.longest if stretched else model.max_position_embeddings
    if longest is None or tokens is None or tokens <= longest:
        return []
    most = format_count(longest)
    return [f"{format_count(tokens)} tokens are more than the {most} that the model was made for"]


def _packed(dtype: CacheDtype, row: Row) -> str:
    """Say what one vector of a row costs: `128 x 2 B (bfloat16)`."""
    if row.dtype is not None:
        dtype = cache_dtype(row.dtype)
    size = dtype.row_bytes(row)
    packing = dtype.by_role.get(row.role, dtype.packing)
    if packing is not None and packing.elements == 1 and not packing.row_bytes:
        return f"{row.width} x {packing.bytes} B ({dtype.name})"
    return f"{size} B ({row.width} elements in {dtype.name})"


def _unit(ratio: int) -> str:
    """Name what is kept of so many tokens."""
    return "a token" if ratio == 1 else f"an entry of {format_number_of(ratio, 'token')}"


def _row_line(layers: int, cache: Cache, dtype: KvDtype) -> str:
    """Write one cache's rows as a product."""
    rows = cache.rows()
    times = format_number_of(layers, "layer")
    roles = [r.role for r in rows]
    if roles == ["k", "v"] and rows[0].width == rows[1].width and dtype.k == dtype.v:
        heads = format_number_of(rows[0].count, "KV head")
        product = f"2 (K and V) x {times} x {heads} x {_packed(dtype.k, rows[0])}"
    else:
        parts = []
        for row in rows:
            heads = format_number_of(row.count, "KV head")
            count = f"{heads} x " if row.role in ("k", "v") else ""
            used = dtype.v if row.role == "v" else dtype.k
            parts.append(
                f"{row.role.upper() if row.count > 1 else row.role} {count}{_packed(used, row)}"
            )
        product = f"{times} x ({' + '.join(parts)})" if len(parts) > 1 else f"{times} x {parts[0]}"
    unit = "a token in reach"
    match cache.span:
        case All():
            unit = _unit(1)
        case EveryNth(ratio=ratio):
            unit = _unit(ratio)
        case Once():
            unit = "an encoder token"
    return f"{product} = {format_count(layers * row_bytes(cache, dtype))} B {unit}"


def _state_line(layers: int, states: tuple[StateTensor, ...], model_dtype: str) -> str:
    parts, total = [], 0
    for state in states:
        size = VLLM_STATES.bytes_of(state, model_dtype)
        shape = " x ".join(format_count(n) for n in state.shape)
        dtype = state.dtype or model_dtype
        parts.append(f"{state.role} {shape} x {element_bytes(dtype)} B ({dtype})")
        total += size
    return (
        f"{layers} layers x ({' + '.join(parts)})"
        f" = {layers} x {format_count(total)} B = {format_count(layers * total)} B a sequence"
    )


def explain_model(model: ModelSpec, dtype: KvDtype) -> list[str]:
    """Return the formula of every cache that the model keeps, with its numbers put in.

    Equal caches of separate runs are put on one line; the lines add up to the model's bytes a
    token, state and encoder rows.
    """
    counts: dict[Cache, int] = {}
    for count, cache in model.caches():
        counts[cache] = counts.get(cache, 0) + count
    lines = []
    for cache, layers in counts.items():
        if cache.rows():
            lines.append(f"{cache.kind}: {_row_line(layers, cache, dtype)}")
        if cache.states():
            lines.append(f"{cache.kind}: {_state_line(layers, cache.states(), model.dtype)}")
    return lines


def as_shaped(plan: CachePlan) -> ModelSpec | None:
    """Return the binding rank's layers where the plan charges just what their shapes come to.

    None where the engine keeps more or less (packed rows, copies of states, rows kept twice), or
    where nothing says which layers the rank has.
    """
    rank = plan.rank
    if rank.share is None:
        return None
    try:
        grown, period = rank.share.growth(rank.share.resolve(plan.kv_cache_dtype))
    except KvcalcError:
        return None  # rows in an engine's own packing
    same = add_rates([(grown, period * rank.token_factor)]) == plan.growth()
    return rank.share if same and rank.share.state_bytes() == plan.fixed_bytes(Slots) else None


class Held(NamedTuple):
    """What some layers of a rank keep by one rule.

    Attributes:
        name: of their group.
        layers: how many.
        rows: bytes of one slot by role, all these layers together, and the rule.
    """

    name: str
    layers: int
    rows: Rows

    @property
    def product(self) -> str:
        """The bytes of a slot of one layer by role, or of all layers where they differ."""
        return " + ".join(
            f"{role.upper() if role in ('k', 'v') else role} {format_count(size)} B"
            for role, size in self.each.items()
        )

    @property
    def each(self) -> dict[str, int]:
        """Bytes of a slot by role: of one layer, or of all where they do not share them evenly."""
        sizes = self.rows.payload
        if not self.layers or any(size % self.layers for size in sizes.values()):
            return sizes
        return {role: size // self.layers for role, size in sizes.items()}

    @property
    def keeps(self) -> str:
        """Which tokens they keep, in words."""
        match self.rows.rule:
            case Slots() as slots:
                return "one state" if slots.used(1) == 1 else f"{slots.used(1)} states"
            case Window(window=n) | Ring(window=n) | Whole(limit=int(n)):
                return keeps(Windowed(tokens=n))
            case Chunk(chunk=n):
                return keeps(Chunks(tokens=n))
            case Compressed(ratio=n):
                return keeps(EveryNth(ratio=n))
            case Fixed(tokens=n):
                return keeps(Once(tokens=n))
            case _:
                return keeps(All())

    @property
    def line(self) -> str:
        """The product with its numbers put in."""
        rule, size = self.rows.rule, self.rows.slot_bytes
        grown, period = self.rows.growth(windows_open=False)
        unit = _unit(period) if grown else "a token in reach"
        if isinstance(rule, (Slots, Fixed)):
            unit = "a sequence"
        terms = self.product
        if self.each is not self.rows.payload:
            terms = f"({terms})" if len(self.each) > 1 else terms
            terms = f"{format_number_of(self.layers, 'layer')} x {terms}"
        times = rule.used(1) if isinstance(rule, (Slots, Fixed)) else 1
        if times > 1:
            terms += f" x {times} {'states' if isinstance(rule, Slots) else 'slots'}"
        return f"{self.name}: {terms} = {format_count(size * times)} B {unit}"


def held_by_layers(plan: CachePlan) -> tuple[Held, ...]:
    """Return what the binding rank's layers keep, as the plan's groups have it.

    Groups that an engine made of equal layers are put together again.
    """
    counts: dict[tuple[str, str, tuple[tuple[str, int], ...]], list[Held]] = {}
    for group in plan.rank.groups():
        for rows in group.rows:
            held = Held(_SPLIT.sub("", group.name), group.layers, rows)
            key = (held.name, str(rows.rule), tuple(held.each.items()))
            counts.setdefault(key, []).append(held)
    return tuple(_together(equal) for equal in counts.values())


_SPLIT = re.compile(r" \(\d+\)$")
"""Behind the name of one of several groups of equal layers."""


def _together(equal: Sequence[Held]) -> Held:
    """Return groups of equal layers as one."""
    first = equal[0]
    sizes = {role: sum(held.rows.payload[role] for held in equal) for role in first.rows.payload}
    rows = Rows(rule=first.rows.rule, payload=sizes)
    return Held(first.name, sum(held.layers for held in equal), rows)


def explain_plan(plan: CachePlan, tokens: Sequence[int]) -> tuple[str, ...]:
    """Return the formula of the binding rank's caches, its blocks, and sequences of `tokens`.

    The sentences that the engine's rules take for granted come last.
    """
    share = as_shaped(plan)
    if share is not None:
        lines = explain_model(share, share.resolve(plan.kv_cache_dtype))
    else:
        lines = [held.line for held in held_by_layers(plan)]
    grown, period = plan.growth()
    factor = plan.rank.token_factor
    lines.append(
        f"sum: {format_count(grown)} B"
        + (" a token" if period == 1 else f" for every {period} tokens")
        + (f", as each rank keeps one token in {factor}" if factor > 1 else "")
        + (", on the fullest rank" if plan.num_gpus > 1 or len(plan.ranks) > 1 else "")
    )
    pool = plan.growing_pool
    if pool is not None and plan.block_size:
        # Of groups that share blocks, the one that grows with the tokens tells what a block is.
        growing = (g for g in pool.groups if isinstance(g.rule, (Grow, Compressed)))
        group = next(growing, pool.groups[0])
        product = ""
        if group.content_bytes == pool.unit_bytes and not group.lookahead_bytes:
            parts = [
                f"{format_number_of(rows.rule.slots_per_unit, 'slot')}"
                f" x {format_count(rows.slot_bytes)} B"
                for rows in group.rows
            ]
            product = f"{' + '.join(parts)} = "
        lines.append(f"block: {product}{format_count(pool.unit_bytes)} B")
    for n in tokens:
        used = format_count(plan.bytes_used(n))
        lines.append(f"sequence of {format_count(n)} tokens: {_terms(plan, n)} = {used} B")
        lines.extend(_reserved(plan, n))
    return (*lines, *(f"assumed: {sentence}" for sentence in plan.convention))


def _reserved(plan: CachePlan, tokens: int) -> Iterator[str]:
    """Yield what is reserved for a sequence and is not in use, by cause."""
    wastes = plan.wastes_at_admission(tokens)
    parts = {name: size for name, size in wastes.by_name().items() if size}
    if not parts:
        return
    said = [f"{format_count(size)} B {name.replace('_', ' ')}" for name, size in parts.items()]
    yield (
        f"  reserved for it: {format_count(wastes.used_bytes)} B in use +"
        f" {' + '.join(said)} = {format_count(wastes.reserved_bytes)} B"
    )


def _terms(plan: CachePlan, tokens: int) -> str:
    """Write a sequence's bytes as a sum over the groups of the binding rank."""
    rank = plan.rank
    return " + ".join(
        f"{format_count(used)} x {format_count(rows.slot_bytes)} B"
        for rows in rank.rows()
        if (used := rows.rule.most_used(rank.local(tokens)))
    )
