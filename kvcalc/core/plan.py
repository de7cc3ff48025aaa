"""What an engine allocates and holds: groups of layers in pools on ranks.

Everything kvcalc says is a question put to a CachePlan, so its answers cannot disagree. A group is
a set of layers that hand out units by one rule; a pool owns units of one size, and all groups of a
pool draw on the same unit ids (vLLM's shared block ids); a rank is one GPU's pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, SupportsIndex

import msgspec

from kvcalc.core.errors import InvalidValueError
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import HostPart
from kvcalc.core.model import ModelSpec
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
    Tally,
    Whole,
    Window,
)
from kvcalc.core.sizing import Sized, TokenBudget
from kvcalc.core.units import add_rates, cdiv, format_count
from kvcalc.core.values import NonNegative, Positive, Value
from kvcalc.core.waste import Wastes

if TYPE_CHECKING:
    from kvcalc.core.capacity import Budgets, Capacity

__all__ = [
    "CachePlan",
    "Check",
    "Floor",
    "Group",
    "Pool",
    "Rank",
    "Report",
    "Rows",
    "Split",
    "Start",
]

Split = Literal["one_pool", "fungible", "ratio", "bytes", "tokens", "fixed"]
"""How a budget becomes units: all of it to one pool; bytes that any pool may take; to pools in a
ratio of units (`Pool.share`); to each pool its share of the bytes (`Pool.share` again); to states
and then to tokens (`Rank.sizing`); or not at all, as the settings fix the units."""


Report = Literal["exact", "concurrency", "even_groups", "tokens"]
"""How an engine turns units into the two figures that it logs: sequences at once times the maximum,
without rounding on the way (`exact`) or in floating point (`concurrency`); units shared evenly by
the groups, in tokens of the smallest block (`even_groups`); or all units in tokens, over the
maximum (`tokens`)."""

Check = Literal["units", "layers", "first_group", "window"]
"""What an engine's start-up check asks for a sequence of the maximum: its units; what its layers
fill, without the places that groups lack; the units of the first group alone; or those of a window
before the token of a step, without the tokens in flight."""

Start = Literal["refuses", "shortens", "never_checks"]
"""What an engine does where one sequence of the maximum does not fit: it does not start; it starts
and lowers the maximum to what fits (`CachePlan.start_spares_tokens` below that); or it starts
unasked, and a sequence that grows too long fails when it gets there."""


class Floor(Value, frozen=True, kw_only=True):
    """The fewest units of a pool with which an engine starts, whatever one sequence needs.

    Attributes:
        code: the finding that fewer are reported as (answers.finding_codes).
        pool: the pool's name; of unequal ranks the one with the fewest units decides.
        units: the fewest, reserved ones counted, as the engine counts them.
        setting: the setting that asks for so many.
        message: what is wrong where there are fewer; `{units}` stands for those there are.
        line: what the engine logs then, `{units}` as well.
        lowers: the setting counts units, so that it may be lowered to those there are.
        instead: a setting and a value that makes enough of them, where the setting decides and
            not the memory.
    """

    code: str
    pool: str
    units: Positive
    setting: str
    message: str
    line: str
    lowers: bool = True
    instead: tuple[str, int | float] | None = None

    @property
    def condition(self) -> str:
        """Say how many units a start needs."""
        return (
            f"it does not start with fewer than {format_count(self.units)} blocks ({self.setting})"
        )

    def told(self, units: int) -> str:
        """Say that so many units are too few."""
        return self.message.replace("{units}", format_count(units))

    def logged(self, units: int) -> str:
        """Return what the engine logs with so many units."""
        return self.line.replace("{units}", str(units))


class Rows(Value, frozen=True, kw_only=True):
    """Rows of some layers, and the rule by which they fill units.

    Attributes:
        rule: how a sequence gets and holds units.
        payload: bytes of one slot by role, all layers together: what the rows really need.
    """

    rule: Rule
    payload: dict[str, int]

    @property
    def slot_bytes(self) -> int:
        """Bytes of the rows of one slot."""
        return sum(self.payload.values())

    def growth(self, token_factor: int = 1, *, windows_open: bool = True) -> tuple[int, int]:
        """Return (bytes, tokens): what the rows grow by on average.

        Args:
            token_factor: GPUs that share the tokens of a sequence.
            windows_open: windows and chunks still grow (False: they are full).
        """
        match self.rule:
            case Grow() | Stepped(rest=False) | Form(until=None):
                return self.slot_bytes, token_factor
            case Compressed(ratio=ratio) | Whole(limit=None, ratio=ratio):
                # What is reserved whole is written as the sequence grows all the same.
                return self.slot_bytes, token_factor * ratio
            case Window() | Chunk() | Ring() | Whole() if windows_open:
                return self.slot_bytes, token_factor
        return 0, 1


class Group(Value, frozen=True, kw_only=True):
    """Layers that hand out cache by one rule.

    Attributes:
        name: what a reader calls it ("full_attention", "state").
        layers: layers that keep something here.
        rule: how a sequence gets and holds units.
        payload: bytes of one slot by role, all layers together: what the rows really need.
        unit_bytes: bytes of one unit of these layers, widened pages included.
        lookahead_bytes: part of a unit that is room for tokens being proposed (speculation widens
            a convolution's window by their number).
        also: rows of further layers in the same units, which fill them at another rate (a cache
            with one entry for many tokens); their rules hand out as many units as `rule`.
        block_size: tokens of a sequence that a unit stands for; None where it stands for none.
        page_bytes: bytes of a unit of one layer, where all its layers have the same.
    """

    name: str
    layers: NonNegative
    rule: Rule
    payload: dict[str, int]
    unit_bytes: NonNegative
    lookahead_bytes: NonNegative = 0
    also: tuple[Rows, ...] = ()
    block_size: Positive | None = None
    page_bytes: Positive | None = None

    def __post_init__(self) -> None:
        if self.content_bytes > self.unit_bytes:
            raise InvalidValueError(
                f"group {self.name}: {self.content_bytes} B of rows in units of {self.unit_bytes} B"
            )

    @property
    def rows(self) -> tuple[Rows, ...]:
        """The group's rows by the rule that they fill its units by."""
        return (Rows(rule=self.rule, payload=self.payload), *self.also)

    @property
    def slot_bytes(self) -> int:
        """Bytes of the rows of one slot, further rows apart."""
        return sum(self.payload.values())

    @property
    def content_bytes(self) -> int:
        """Bytes of one full unit: its rows and the room for tokens being proposed."""
        full = self.rule.slots_per_unit * self.slot_bytes
        if self.also:
            full += sum(rows.rule.slots_per_unit * rows.slot_bytes for rows in self.also)
        return full + self.lookahead_bytes

    def wastes(self, lengths: Lengths, pool_unit_bytes: int, *, admission: bool = False) -> Wastes:
        """Take apart the units that requests hold (or that admission reserves) of a pool."""
        units, parts = 0, [0, 0, 0, 0]
        for rows in self.rows:
            tally = _peak_tally(rows.rule, lengths) if admission else rows.rule.tally(lengths)
            units = tally.units
            slot = rows.slot_bytes
            for i, slots in enumerate(tally[1:]):
                parts[i] += slots * slot
        used, reservation, tail, retention = parts
        return Wastes(
            reserved_bytes=units * pool_unit_bytes,
            used_bytes=used,
            reservation_bytes=reservation,
            tail_bytes=tail,
            retention_bytes=retention + units * self.lookahead_bytes,
            page_padding_bytes=units * (self.unit_bytes - self.content_bytes),
            group_padding_bytes=units * (pool_unit_bytes - self.unit_bytes),
        )


class Pool(Value, frozen=True, kw_only=True):
    """Units of one size; its groups draw on the same unit ids.

    Attributes:
        name: what a reader calls it.
        groups: who draws on it.
        unit_bytes: bytes of one unit: the widest group's, alignment included.
        units: how many there are where the settings fix it; None where a budget decides.
        reserved_units: units no sequence can have (null block, dump page).
        reserved_is_extra: the reserved units come on top of what the budget pays for.
        share: (numerator, denominator): units of this pool for every unit of the first one, under
            the `ratio` split; its part of the bytes under the `bytes` split.
        rounding: a budget's units are rounded down to a multiple of this under the `ratio` split.
        check_unit_bytes: bytes of a unit as the start-up check counts them, where that is not
            unit_bytes; under the `bytes` split, bytes of a unit as the engine prices it.
        sized: what of a sized budget these units are, under the `tokens` split.
        beside: the settings fix the units, and their bytes come beside the budget and not out of
            it.
        dtype: what its rows are kept in, `K:V` where the two differ; empty for the plan's.
    """

    name: str
    groups: tuple[Group, ...]
    unit_bytes: Positive
    units: NonNegative | None = None
    reserved_units: NonNegative = 0
    reserved_is_extra: bool = False
    share: tuple[NonNegative, Positive] = (1, 1)
    rounding: Positive = 1
    check_unit_bytes: Positive | None = None
    sized: Sized = "tokens"
    beside: bool = False
    dtype: str = ""

    def __post_init__(self) -> None:
        if not self.groups or max(g.unit_bytes for g in self.groups) > self.unit_bytes:
            raise InvalidValueError(f"pool {self.name}: a group is wider than the pool's unit")
        if self.beside and self.units is None:
            raise InvalidValueError(f"pool {self.name}: nothing says how much is beside the budget")

    def held(self, n: int) -> int:
        """Units that a sequence of n local tokens holds now."""
        return sum(g.rule.held(n) for g in self.groups)

    def need(self, n: int) -> int:
        """Units that admission reserves for a sequence on its way to n local tokens."""
        return sum(g.rule.peak(n) for g in self.groups)

    def usable(self, units: int) -> int:
        """Units that sequences can have of a pool with that many in the budget."""
        return units - (0 if self.reserved_is_extra else self.reserved_units)

    def total_bytes(self, units: int) -> int:
        """Bytes of a pool with that many units in the budget, extra ones included."""
        return (units + (self.reserved_units if self.reserved_is_extra else 0)) * self.unit_bytes


class Rank(Value, frozen=True, kw_only=True):
    """One GPU's pools.

    Attributes:
        name: "rank", or the pipeline stage.
        share: the layers that it keeps, as it keeps them (its stage, its heads).
        pools: what it allocates.
        multiplicity: how many GPUs are equal to it.
        token_factor: GPUs that share the tokens of a sequence (context parallelism); each keeps
            every token_factor-th token, and figures are those of the one with the most.
        fixed_bytes: tables that do not depend on the sequences, paid for by the budget.
        outside_bytes: tables that the engine allocates beside its budget.
        sizing: how a budget becomes states and tokens, under the `tokens` split.
        weights_bytes: of the model's weights on it, at least; None where they are not known.
        weights_more: what they may take beyond that, where no file tells them.
        memory_bytes: of the device; None where nothing tells it.
        on_host: it is the host's memory and no GPU: what is given for a GPU's cache says nothing
            of it.
    """

    name: str
    share: ModelSpec | None = None
    pools: tuple[Pool, ...]
    multiplicity: Positive = 1
    token_factor: Positive = 1
    fixed_bytes: NonNegative = 0
    outside_bytes: NonNegative = 0
    sizing: TokenBudget | None = None
    weights_bytes: NonNegative | None = None
    weights_more: NonNegative = 0
    memory_bytes: NonNegative | None = None
    on_host: bool = False

    @property
    def units_are_set(self) -> bool:
        """Whether the settings fix the units of every pool."""
        return all(pool.units is not None for pool in self.pools)

    @property
    def growing_pool(self) -> Pool | None:
        """The pool that grows with every token; None where nothing grows."""
        for rules in ((Grow, Compressed, Stepped, Form), (Window, Chunk, Ring)):
            for pool in self.pools:
                if any(isinstance(g.rule, rules) for g in pool.groups):
                    return pool
        return None

    @property
    def block_pool(self) -> Pool | None:
        """The pool of blocks: the one that grows, else one whose groups have any."""
        blocks = (p for p in self.pools if any(g.block_size for g in p.groups))
        return self.growing_pool or next(blocks, None)

    @property
    def beside_bytes(self) -> int:
        """Bytes that the engine allocates beside its budget: tables, and pools of a fixed size."""
        pools = sum(pool.total_bytes(pool.units or 0) for pool in self.pools if pool.beside)
        return self.outside_bytes + pools

    def groups(self) -> tuple[Group, ...]:
        """Return the groups of all pools."""
        return tuple(group for pool in self.pools for group in pool.groups)

    def rows(self) -> Iterator[Rows]:
        """Yield the rows of all groups."""
        for pool in self.pools:
            for group in pool.groups:
                yield from group.rows

    def local(self, n: int, position: int = 0) -> int:
        """Tokens of a sequence of n that the GPU at `position` of the token_factor keeps."""
        return cdiv(max(0, n - position), self.token_factor)

    def bytes_held(self, n: int) -> int:
        """Bytes that a sequence of n tokens holds now."""
        return sum(p.held(self.local(n)) * p.unit_bytes for p in self.pools)

    def bytes_needed(self, n: int) -> int:
        """Bytes that admission reserves for a sequence on its way to n tokens."""
        return sum(p.need(self.local(n)) * p.unit_bytes for p in self.pools)

    def growth(self, *, windows_open: bool = True) -> tuple[int, int]:
        """Return (bytes, tokens) in lowest terms: what the rows grow by on average.

        Args:
            windows_open: windows and chunks still grow (False: they are full).
        """
        return add_rates(
            rows.growth(self.token_factor, windows_open=windows_open) for rows in self.rows()
        )

    def bytes_used(self, n: int) -> int:
        """The most bytes of rows and state in use at once on the way to n tokens."""
        return sum(rows.rule.most_used(self.local(n)) * rows.slot_bytes for rows in self.rows())

    def bytes_readable(self, n: int) -> int:
        """Bytes of rows and state that a token still to come can read."""
        return sum(rows.rule.readable(self.local(n)) * rows.slot_bytes for rows in self.rows())

    def wastes(self, lengths: Lengths, *, position: int = 0, admission: bool = False) -> Wastes:
        """Take apart what all requests hold at their full length (or what admission reserves)."""
        local = lengths
        if self.token_factor > 1:
            local = lengths.map(lambda n: self.local(n, position))
        return Wastes.total(
            group.wastes(local, pool.unit_bytes, admission=admission)
            for pool in self.pools
            for group in pool.groups
        )

    def wastes_all(self, lengths: Lengths) -> Wastes:
        """Take apart what the requests hold on all GPUs equal to this rank."""
        sets = self.multiplicity // self.token_factor
        positions = range(self.token_factor)
        return Wastes.total(self.wastes(lengths, position=p).times(sets) for p in positions)


def _peak_tally(rule: Rule, lengths: Lengths) -> Tally:
    sums = [0, 0, 0, 0, 0]
    for n, count in lengths:
        for i, value in enumerate(rule.split_peak(n)):
            sums[i] += count * value
    return Tally(*sums)


class CachePlan(Value, frozen=True, kw_only=True):
    """What an engine makes of a model and a deployment.

    Attributes:
        engine, engine_version: whose rules these are.
        model: the model's name.
        kv_cache_dtype: resolved, `K:V` where the two differ.
        model_dtype: plain floats of the checkpoint are run in it; None: as they are stored.
        block_size: tokens a block of the pool that grows; None where the engine has no such unit.
        ranks: one entry a pipeline stage, equal GPUs counted.
        split: how a budget becomes units.
        max_model_len: the longest sequence; prompt and output together.
        max_sequences: the most sequences at once where the engine has so many places and no more;
            None where the cache alone decides.
        max_running: the most sequences that it runs at once, where that bounds what is served and
            not what it logs (max_num_seqs of vLLM); None: see max_sequences.
        loads_drafts: the model's own layers that propose tokens are loaded.
        reuse_tokens: a shared prefix is reused in multiples of so many tokens; None where none is.
        report: how units become the figures that the engine logs.
        weighs_groups: in those, a group's units count as much as they are wide beside the first's.
        check: what the engine's start-up check asks for.
        check_spares_reserved: that check leaves the reserved units out.
        check_fixed_units: where the settings fix the units, that check compares with them;
            otherwise with the memory all the same.
        start: what the engine does where one sequence of the maximum does not fit.
        start_spares_tokens: an engine that shortens the maximum stays so many tokens below what
            the cache holds.
        floors: units without which it does not start, beside that check.
        moved_bytes: of the weights, what the engine moves to the host to make room; 0: none.
        host: what the engine takes of the host's memory.
        notes: one line for every rule that moved a number.
        warnings: what may make its figures wrong, a line each.
        unsupported: what is not modelled, with the size of the difference where it is known.
        convention: what the engine's rules take for granted, a sentence each.
        doubt: what nobody looked up of whether the engine serves the model; empty where nothing.
        source: engine, version, file and symbol that the rules follow.
        resolved: the engine's settings with their defaults, for its own budgets alone.
    """

    engine: str
    engine_version: str | None = None
    model: str
    kv_cache_dtype: str
    model_dtype: str | None = None
    block_size: Positive | None
    ranks: tuple[Rank, ...]
    split: Split
    max_model_len: Positive
    max_sequences: Positive | None = None
    max_running: Positive | None = None
    loads_drafts: bool = False
    reuse_tokens: Positive | None = None
    report: Report = "exact"
    weighs_groups: bool = False
    check: Check = "units"
    check_spares_reserved: bool = True
    check_fixed_units: bool = True
    start: Start = "refuses"
    start_spares_tokens: NonNegative = 0
    floors: tuple[Floor, ...] = ()
    moved_bytes: NonNegative = 0
    host: tuple[HostPart, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    convention: tuple[str, ...] = ()
    doubt: str = ""
    source: str = ""
    resolved: object = None

    @property
    def rank(self) -> Rank:
        """The rank that binds: the one that holds the fewest sequences with as much as the others.

        Which needs the most for one of max_model_len; with memories of their own see
        core.capacity.binding_rank.
        """
        return max(self.ranks, key=lambda r: r.bytes_needed(self.max_model_len))

    @property
    def places(self) -> int | None:
        """The most sequences that run at once, whatever the cache holds; None for no limit."""
        bounds = [n for n in (self.max_sequences, self.max_running) if n is not None]
        return min(bounds, default=None)

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica; the host is none."""
        return sum(r.multiplicity for r in self.ranks if not r.on_host)

    @property
    def sized(self) -> bool:
        """Whether the settings fix (or bound) every pool, so that its figures need no bytes."""
        if self.split == "fungible":
            return False
        return all(
            rank.units_are_set
            or (self.split == "tokens" and rank.sizing is not None and rank.sizing.bounded)
            for rank in self.ranks
        )

    @property
    def growing_pool(self) -> Pool | None:
        """The binding rank's pool that grows with every token; None where nothing grows."""
        return self.rank.growing_pool

    @property
    def block_pool(self) -> Pool | None:
        """The binding rank's pool of blocks: the one that grows, else one whose groups have any."""
        return self.rank.block_pool

    @property
    def block_bytes(self) -> int | None:
        """Bytes of one block on the binding rank."""
        pool = self.block_pool if self.block_size else None
        return pool.unit_bytes if pool else None

    def growth(self, *, windows_open: bool = True) -> tuple[int, int]:
        """Return (bytes, tokens) that the binding rank's rows grow by; see Rank.growth."""
        return self.rank.growth(windows_open=windows_open)

    def growth_all_ranks(self) -> tuple[int, int]:
        """Return (bytes, tokens) that the rows on all GPUs grow by while windows are open."""
        rates = [(r.multiplicity, *r.growth()) for r in self.ranks]
        return add_rates((count * size, tokens) for count, size, tokens in rates)

    def fixed_bytes(self, rule: type[Slots | Fixed]) -> int:
        """Bytes of rows that a sequence keeps whatever its length (states, encoder rows)."""
        return sum(
            rows.rule.used(1) * rows.slot_bytes
            for rows in self.rank.rows()
            if isinstance(rows.rule, rule)
        )

    def held(self, n: int) -> dict[str, int]:
        """Units that a sequence of n tokens holds now, by pool of the binding rank."""
        rank = self.rank
        return {pool.name: pool.held(rank.local(n)) for pool in rank.pools}

    def need(self, n: int) -> dict[str, int]:
        """Units that admission reserves for a sequence of n tokens, by pool."""
        rank = self.rank
        return {pool.name: pool.need(rank.local(n)) for pool in rank.pools}

    def bytes_held(self, n: int) -> int:
        """Bytes that a sequence of n tokens holds now on the binding rank."""
        return self.rank.bytes_held(n)

    def bytes_needed(self, n: int) -> int:
        """Bytes that admission reserves for a sequence of n tokens on the binding rank."""
        return self.rank.bytes_needed(n)

    def bytes_used(self, n: int) -> int:
        """The most bytes in use at once on the way to n tokens, on the binding rank."""
        return self.rank.bytes_used(n)

    def bytes_readable(self, n: int) -> int:
        """Bytes that a token to come can read of a sequence of n, on the binding rank."""
        return self.rank.bytes_readable(n)

    def wastes(self, requests: int | Lengths | Iterable[int]) -> Wastes:
        """Take apart what requests of these lengths hold on the binding rank.

        Args:
            requests: tokens of one request or of each, or a histogram of them.

        Raises:
            InvalidValueError: a length that is negative or not a whole number.
        """
        return self.rank.wastes(_as_lengths(requests))

    def wastes_all_ranks(self, requests: int | Lengths | Iterable[int]) -> Wastes:
        """Take apart what requests of these lengths hold on all GPUs together."""
        lengths = _as_lengths(requests)
        return Wastes.total(rank.wastes_all(lengths) for rank in self.ranks)

    def wastes_at_admission(self, requests: int | Lengths | Iterable[int]) -> Wastes:
        """Take apart what admission reserves for requests of these lengths (binding rank)."""
        return self.rank.wastes(_as_lengths(requests), admission=True)

    def tail_slots(self) -> int:
        """The most slots that the last block of a growing group can leave empty."""
        pool = self.growing_pool
        return max((g.rule.most_tail for g in pool.groups), default=0) if pool else 0

    def max_tail_bytes(self) -> int:
        """Bytes of the last blocks when one token has been written to each (binding rank)."""
        return sum(
            rows.rule.most_tail * rows.slot_bytes
            for rows in self.rank.rows()
            if isinstance(rows.rule, (Grow, Window, Chunk, Compressed, Ring, Form))
        )

    def contiguous(self, max_model_len: int | None = None) -> CachePlan:
        """Return the twin of this plan that reserves every cache in one piece.

        A sequence gets room for max_model_len tokens (a window or chunk for no more than it can
        keep) in exact rows, and one state; nothing is shared and nothing is rounded.
        """
        length = max_model_len or self.max_model_len
        ranks = tuple(
            msgspec.structs.replace(
                rank,
                pools=_twin_pools(rank, rank.local(length)),
                fixed_bytes=0,
                outside_bytes=0,
                sizing=None,
            )
            for rank in self.ranks
        )
        return msgspec.structs.replace(
            self,
            block_size=None,
            ranks=ranks,
            split="fungible",
            max_model_len=length,
            max_sequences=None,
            max_running=None,
            reuse_tokens=None,
            report="exact",
            weighs_groups=False,
            start="refuses",
            start_spares_tokens=0,
            floors=(),
            notes=(),
            unsupported=(),
            source=f"contiguous twin of {self.source or self.engine}",
        )

    def capacity(self, kv_cache_bytes: Budgets = None, *, at: int | None = None) -> Capacity:
        """Return what `kv_cache_bytes` on each rank hold; see core.capacity.capacity."""
        from kvcalc.core.capacity import capacity  # capacity reads plans

        return capacity(self, kv_cache_bytes, at=at)


def _twin_pools(rank: Rank, length: int) -> tuple[Pool, ...]:
    pools = []
    for pool in rank.pools:
        for group in pool.groups:
            for rows in group.rows:
                rule = rows.rule.contiguous(length)
                unit = rule.slots_per_unit * rows.slot_bytes
                if not unit:
                    continue  # a group without rows has nothing to reserve
                twin = Group(
                    name=group.name,
                    layers=group.layers,
                    rule=rule,
                    payload=rows.payload,
                    unit_bytes=unit,
                )
                pools.append(Pool(name=group.name, groups=(twin,), unit_bytes=unit))
    return tuple(pools)


def _as_lengths(requests: int | Lengths | Iterable[int]) -> Lengths:
    if isinstance(requests, Lengths):
        return requests
    if isinstance(requests, SupportsIndex) and not isinstance(requests, Iterable):
        return Lengths({requests: 1})  # makes numpy's ints plain ones
    return Lengths.of(requests)
