"""What commands answer: one frozen value a command, which reports print and JSON repeats.

Fields ending in `_bytes` are exact ints; `_ratio` lies between 0 and 1; None means "does not apply"
or "cannot be known", never zero.
"""

from __future__ import annotations

from kvcalc.allocator.state import AllocatorState
from kvcalc.core.plan import Floor
from kvcalc.core.size import ModelSize
from kvcalc.core.values import Value
from kvcalc.core.waste import Wastes

__all__ = [
    "Comparison",
    "Concurrency",
    "ContiguousRequest",
    "Difference",
    "EngineSummary",
    "FileFault",
    "Fragmentation",
    "Growth",
    "LayerDiff",
    "LayerDifference",
    "LayerGroup",
    "LayerMap",
    "LayerSpan",
    "PagedRequest",
    "PerToken",
    "PlanGroup",
    "PlanPool",
    "PlanRank",
    "PlanSummary",
    "PresetDetail",
    "PresetSummary",
    "PresetVariant",
    "RankTotals",
    "SequenceSize",
    "SequencesOfMax",
    "StartUp",
    "Totals",
    "WasteBytes",
    "WorkloadSummary",
]


class Growth(Value, frozen=True, kw_only=True):
    """`bytes` for every `tokens` tokens on average; tokens is 1 where a whole number is one's."""

    bytes: int
    tokens: int


class LayerGroup(Value, frozen=True, kw_only=True):
    """Layers that keep equal caches, on the binding rank.

    `bytes_per_token` and `state_bytes` are those of all `count` layers; the former counts windows
    as open and is None where a token adds no whole number of bytes.
    """

    kind: str
    count: int
    shape: str
    keeps: str
    bytes_per_token: int | None
    state_bytes: int


class SequenceSize(Value, frozen=True, kw_only=True):
    """A sequence of `tokens` tokens: its rows and state, and what the engine reserves for them.

    The latter is whole blocks, and what else the engine's rules make of them: tokens that a window
    no longer reads, spare states, widened pages.
    """

    tokens: int
    bytes: int
    allocated_bytes: int


class PerToken(Value, frozen=True, kw_only=True):
    """What a token, a block and a sequence cost on the rank that holds the most.

    Attributes:
        sequence_tokens_per_block: tokens of a sequence that pass while a rank fills a block: more
            than block_size where ranks share them (context parallelism).
        bytes_per_token: growth of one sequence by one token while every window is open; None where
            a token adds no whole number of bytes (then see `growth`).
        bytes_per_token_past_windows: the same once every window and chunk is full; None where that
            is no whole number (then see `growth_past_windows`).
        bytes_per_token_all_ranks: the same as the first over all GPUs of one replica.
        state_bytes: fixed, a sequence.
        encoder_bytes: rows of an encoder's output, a sequence.
        explain: the formula with the numbers put in, a line each; empty unless asked for.
        flags: what sets it apart from the others, where an option was given several values.
    """

    model: str
    engine: str
    kv_cache_dtype: str
    num_gpus: int
    block_size: int | None
    sequence_tokens_per_block: int | None
    max_model_len: int
    bytes_per_token: int | None
    growth: Growth
    bytes_per_token_past_windows: int | None
    growth_past_windows: Growth
    bytes_per_token_all_ranks: int | None
    state_bytes: int
    encoder_bytes: int
    block_bytes: int | None
    layers: tuple[LayerGroup, ...]
    sequences: tuple[SequenceSize, ...]
    explain: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class WasteBytes(Value, frozen=True, kw_only=True):
    """The eight wastes; see core.waste.WASTE_NAMES."""

    reservation_bytes: int
    future_bytes: int
    tail_bytes: int
    retention_bytes: int
    page_padding_bytes: int
    group_padding_bytes: int
    pool_overhead_bytes: int
    external_bytes: int


class Totals(Value, frozen=True, kw_only=True):
    """All requests of a workload together: reserved = used + wastes."""

    reserved_bytes: int
    used_bytes: int
    waste_bytes: int
    waste_ratio: float
    waste: WasteBytes

    @classmethod
    def of(cls, wastes: Wastes) -> Totals:
        """Take the figures of a Wastes."""
        parts = {f"{name}_bytes": size for name, size in wastes.by_name().items()}
        return cls(
            reserved_bytes=wastes.reserved_bytes,
            used_bytes=wastes.used_bytes,
            waste_bytes=wastes.waste_bytes,
            waste_ratio=wastes.waste_ratio,
            waste=WasteBytes(**parts),
        )


class ContiguousRequest(Value, frozen=True, kw_only=True):
    """What one request reserves in one piece, state and encoder rows included."""

    reserved_bytes_per_request: int


class PagedRequest(Value, frozen=True, kw_only=True):
    """A block, and what a last block can and on average does leave empty.

    `mean_tail_bytes` is that of this workload, rounded down to a byte; for lengths spread evenly
    it comes near half a block.
    """

    block_bytes: int | None
    max_tail_tokens: int
    max_tail_bytes: int
    mean_tail_bytes: int


class WorkloadSummary(Value, frozen=True, kw_only=True):
    """The requests that were compared, after the policy for those over the maximum.

    `over_requests` were longer than max_model_len before `over` (clip, exclude or keep) was
    applied to them; `used_bytes` is what all requests really need.
    """

    name: str
    requests: int
    tokens: int
    mean_tokens: float
    p50_tokens: int
    p95_tokens: int
    longest_tokens: int
    over: str
    over_requests: int
    used_bytes: int


class Concurrency(Value, frozen=True, kw_only=True):
    """How many requests a cache of `kv_cache_bytes` on each rank holds at once.

    `contiguous` is whole requests; `paged` whole requests of the workload's mean size, and
    `paged_mean` the same before rounding down. `gain` is paged over contiguous, None over 0.
    `max_sequences` is how many the engine has places for, whatever the cache: none of the figures
    is more; None where the cache alone decides.
    """

    kv_cache_bytes: int
    contiguous: int
    paged: int
    paged_mean: float
    gain: float | None
    max_sequences: int | None = None


class LayerSpan(Value, frozen=True, kw_only=True):
    """Layers first to last (counted from 0, both included), each of which keeps the same.

    `bytes_per_token` (None where no whole number) and `state_bytes` are those of one layer.
    """

    first: int
    last: int
    letter: str
    kind: str
    shape: str
    keeps: str
    bytes_per_token: int | None
    state_bytes: int
    note: str = ""


class LayerMap(Value, frozen=True, kw_only=True):
    """Which layer of a model keeps what.

    Attributes:
        strip: one letter a layer, in order; the spans say what a letter stands for.
        draft_spans: multi-token-prediction layers, kept apart and counted from 0.
    """

    model: str
    architecture: str | None
    num_hidden_layers: int
    kv_cache_dtype: str
    bytes_per_token: int | None
    state_bytes: int
    strip: str
    spans: tuple[LayerSpan, ...]
    draft_spans: tuple[LayerSpan, ...]
    notes: tuple[str, ...]


class LayerDifference(Value, frozen=True, kw_only=True):
    """Layers first to last where two models keep different things ("" past a model's end)."""

    first: int
    last: int
    left: str
    right: str


class LayerDiff(Value, frozen=True, kw_only=True):
    """Two models layer by layer."""

    left: str
    right: str
    kv_cache_dtype: tuple[str, str]
    equal_layers: int
    differences: tuple[LayerDifference, ...]
    bytes_per_token: tuple[int | None, int | None]
    state_bytes: tuple[int, int]


class EngineSummary(Value, frozen=True, kw_only=True):
    """An engine: the versions whose rules are followed, and how they were checked."""

    name: str
    follows: str
    checked: str


class PresetSummary(Value, frozen=True, kw_only=True):
    """A model preset in a line; bytes in the model's own dtype, on one GPU."""

    name: str
    title: str
    num_hidden_layers: int
    kinds: str
    bytes_per_token: int | None
    state_bytes: int
    max_position_embeddings: int | None


class PresetVariant(Value, frozen=True, kw_only=True):
    """Names of a preset whose own files differ in something, and in what."""

    names: tuple[str, ...]
    differs: dict[str, str | int | tuple[str, ...]]
    source: str


class PresetDetail(Value, frozen=True, kw_only=True):
    """A model preset resolved: what its layers keep, and where that was read.

    The `expect_` figures (by dtype where they depend on it) are what the preset is checked against
    on every load, and `confirmed_by` the engines, logs or papers that say so.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    variants: tuple[PresetVariant, ...] = ()
    architecture: str | None
    dtype: str
    num_hidden_layers: int
    max_position_embeddings: int | None
    layers: tuple[LayerGroup, ...]
    draft_layers: int
    size: ModelSize | None
    notes: tuple[str, ...]
    source: dict[str, str]
    expect_bytes_per_token: dict[str, int]
    expect_state_bytes: int
    confirmed_by: tuple[str, ...]
    file: str


class FileFault(Value, frozen=True, kw_only=True):
    """One fault of a file, or (without a message) a file without faults."""

    file: str
    line: int | None
    message: str | None


class RankTotals(Value, frozen=True, kw_only=True):
    """The same comparison over all GPUs of one replica."""

    num_gpus: int
    used_bytes: int
    contiguous_reserved_bytes: int
    paged_reserved_bytes: int


class AtOnce(Value, frozen=True, kw_only=True):
    """What runs at once in a cache of a fixed size, which all requests share in turn.

    Attributes:
        requests: of the mean request, how many there is room and a place for.
        allocated_bytes: what the engine allocates on the binding rank, whoever runs.
    """

    requests: int
    allocated_bytes: int


class Comparison(Value, frozen=True, kw_only=True):
    """An engine's plan against its contiguous twin, over the same requests (binding rank).

    `reserved_gain` is contiguous over paged reserved bytes, None when paged reserves nothing.
    Totals add up what each request reserves while it runs; `at_once` is told where the settings
    fix the size of the cache and not all requests run at once. `flags` set it apart from the
    others, where an option was given several values.
    """

    model: str
    engine: str
    kv_cache_dtype: str
    block_size: int | None
    max_model_len: int
    bytes_per_token: int | None
    state_bytes: int
    contiguous: ContiguousRequest
    paged: PagedRequest
    workload: WorkloadSummary
    contiguous_total: Totals
    paged_total: Totals
    reserved_gain: float | None
    all_ranks: RankTotals
    concurrency: Concurrency | None = None
    at_once: AtOnce | None = None
    explain: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class SequencesOfMax(Value, frozen=True, kw_only=True):
    """How many sequences of the maximum length fit, by bytes.

    `in_holes` needs every hole; without them it is None and `bounds` says between what it lies.
    """

    max_model_len: int
    bytes: int
    in_request: int
    in_free: int
    in_holes: int | None
    bounds: tuple[int, int]


class Fragmentation(Value, frozen=True, kw_only=True):
    """Free memory against the largest hole.

    Attributes:
        holes: number of holes, None when not given.
        fits_contiguous: the request fits into the largest hole.
        fits_paged: the request fits into the free memory, whatever its holes.
        assumes: what fits_paged takes for granted.
        free_over_request: free bytes as a multiple of the request.
        external_fragmentation_ratio: 1 - largest / free; None when nothing is free.
        unusable_ratio: share of the free bytes in holes smaller than the request; None when the
            holes are not given and it could be more than one number (see unusable_bounds).
        verdict: the answer in a sentence or two.
        allocator: what an allocator told of its holes, where one was asked.
    """

    model: str
    engine: str
    kv_cache_dtype: str
    block_size: int | None
    max_model_len: int
    free_bytes: int
    largest_free_bytes: int
    holes: int | None
    request_bytes: int
    fits_contiguous: bool
    fits_paged: bool
    assumes: str
    free_over_request: float
    external_fragmentation_ratio: float | None
    unusable_ratio: float | None
    unusable_bounds: tuple[float, float]
    sequences_of_max: SequencesOfMax
    verdict: str
    explain: tuple[str, ...] = ()
    allocator: AllocatorState | None = None


class PlanGroup(Value, frozen=True, kw_only=True):
    """Layers that hand out units by one rule, on the binding rank.

    Attributes:
        pool: the pool of units that it draws on.
        layers: layers of the model in it, on this rank.
        block_size: tokens of a sequence that a unit stands for; None where it stands for none.
        keeps: which tokens a unit is held for, in words.
        page_bytes: bytes of a unit of one layer; None where its layers differ, or have no page.
        group_bytes: bytes of one unit of these layers; the pool's unit is as wide as the widest
            group's.
        content_bytes: the same without widened pages.
        units_held: units that a sequence of the maximum holds once it is there.
        units_needed: units that admission reserves for it.
    """

    pool: str
    name: str
    layers: int
    block_size: int | None
    keeps: str
    page_bytes: int | None
    group_bytes: int
    content_bytes: int
    units_held: int
    units_needed: int


class PlanPool(Value, frozen=True, kw_only=True):
    """A pool whose size the settings fix, as it is allocated.

    Attributes:
        layers: layers of the model that keep something in it.
        units: units of all sequences (cells, states, blocks).
        role_bytes: bytes of the rows by role; what no row needs is not among them.
        total_bytes: bytes allocated.
    """

    name: str
    layers: int
    units: int
    role_bytes: dict[str, int]
    total_bytes: int


class PlanRank(Value, frozen=True, kw_only=True):
    """A pipeline stage: its GPUs, and bytes of a block over all its layers.

    Attributes:
        pools: what it allocates, where the settings fix the size of all of it.
        weights_bytes: of the model's weights on it; None where they are not known.
    """

    name: str
    num_gpus: int
    block_bytes: int | None
    needed_bytes: int
    pools: tuple[PlanPool, ...] = ()
    weights_bytes: int | None = None


class StartUp(Value, frozen=True, kw_only=True):
    """What the engine makes of a cache of `kv_cache_bytes` on each rank (None: settings fix it).

    Attributes:
        num_blocks: blocks that it makes, those that no sequence can have included.
        kv_cache_tokens: the figure that it logs.
        max_concurrency: sequences of the maximum at once, as it logs them.
        max_sequences: whole sequences of the maximum that really fit.
        fits: it starts, which some engines do without room for a sequence of the maximum (see
            `start`).
        start: what the engine does where one sequence of the maximum does not fit: refuses,
            shortens (the maximum to what fits) or never_checks.
        max_model_len_that_fits: the longest sequence up to the maximum that the cache holds.
        max_model_len_served: the longest that the engine serves: an engine that shortens may stay
            below what the cache holds.
        beside_bytes: bytes that the engine allocates beside this cache (states' slots, tables).
        overhead_bytes: bytes that no sequence can use.
        log: the lines that it prints, or its refusal; empty for an engine that prints none.
        gpu_bytes: memory of the GPU, where one is named.
    """

    kv_cache_bytes: int | None
    num_blocks: int | None
    kv_cache_tokens: int
    max_concurrency: float
    max_sequences: int
    fits: bool
    needed_bytes: int
    max_model_len_that_fits: int
    overhead_bytes: int
    start: str = "refuses"
    max_model_len_served: int = 0
    beside_bytes: int = 0
    log: tuple[str, ...] = ()
    gpu_bytes: int | None = None


class Difference(Value, frozen=True, kw_only=True):
    """One cause for which a plan is not like another of the same model.

    Attributes:
        name: `used`, a waste, or what differs otherwise (`longest sequence`, `tokens`,
            `sequences`).
        against: the engine that it is compared with.
        bytes: how much more one sequence of the maximum needs for this cause; None for what is no
            bytes.
        reason: what each of the two does.
    """

    name: str
    against: str
    bytes: int | None
    reason: str


class PlanSummary(Value, frozen=True, kw_only=True):
    """What an engine allocates and holds for a model, and why.

    Attributes:
        reuse_tokens: a shared prefix is reused in whole multiples of so many tokens.
        needed_bytes: what admission reserves for one sequence of the maximum (binding rank).
        request: the same taken apart: needed = used + wastes.
        start_up: with a cache of a given size.
        notes: a line for every rule that moved a number.
        unsupported: what is not modelled, with the size of the difference where it is known.
        convention: what the rules take for granted.
        source: engine, version, files and symbols that they follow.
        differences: where several engines are asked, the causes for which this one is not like the
            first.
        floors: units without which it does not start, whatever one sequence needs.
        flags: what sets it apart from the others, where an option was given several values.
    """

    model: str
    engine: str
    engine_version: str | None
    kv_cache_dtype: str
    num_gpus: int
    block_size: int | None
    block_bytes: int | None
    max_model_len: int
    bytes_per_token: int | None
    reuse_tokens: int | None
    units_needed: int
    needed_bytes: int
    request: Totals
    groups: tuple[PlanGroup, ...]
    ranks: tuple[PlanRank, ...]
    start_up: StartUp | None
    notes: tuple[str, ...]
    unsupported: tuple[str, ...]
    convention: tuple[str, ...]
    source: str
    differences: tuple[Difference, ...] = ()
    floors: tuple[Floor, ...] = ()
    flags: tuple[str, ...] = ()
