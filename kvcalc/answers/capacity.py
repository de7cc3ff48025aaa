"""What a capacity question comes to: figures with their bounds, levers, solutions, layouts."""

from __future__ import annotations

from kvcalc.core.memory import HostPart
from kvcalc.core.values import Value

__all__ = [
    "At",
    "CapacityAnswer",
    "DeploymentTotals",
    "Figures",
    "Layout",
    "Lever",
    "RankBudget",
    "RefusedLever",
    "Solution",
    "StartRefusal",
    "TermBounds",
]


class Figures(Value, frozen=True, kw_only=True):
    """What a cache of so many bytes on each GPU holds.

    Attributes:
        kv_cache_bytes: of the GPU that decides; None where the settings fix the cache.
        num_blocks: blocks that the engine makes; None where it has no blocks.
        block_bytes: of each of them, on the GPU that decides.
        kv_cache_tokens: tokens as the engine logs them.
        max_concurrency: sequences of the maximum at once, as it logs them.
        max_sequences: whole ones that really fit.
        starts: the engine starts: its own check passes, or it shortens the maximum, or it does not
            check.
        fits: the goal is met: as many whole sequences of the maximum as are asked for have room
            and are run at once. None where the settings fix the cache and no GPU is named to hold
            it.
        max_model_len_that_fits: the longest length, up to the maximum, of which as many as are
            asked for (or as the engine runs, where that is less) fit at once; 0: none.
    """

    kv_cache_bytes: int | None
    num_blocks: int | None
    block_bytes: int | None
    kv_cache_tokens: int
    max_concurrency: float
    max_sequences: int
    starts: bool
    fits: bool | None
    max_model_len_that_fits: int


class StartRefusal(Value, frozen=True, kw_only=True):
    """What an engine refuses to start with.

    Attributes:
        code: the finding that it is reported as (answers.finding_codes).
        message: what is wrong.
        sure: whatever everything beside the cache takes; otherwise only if it takes its most.
    """

    code: str
    message: str
    sure: bool


class TermBounds(Value, frozen=True, kw_only=True):
    """What takes memory of a GPU beside the cache: at least and at most, and how it is known.

    `label` tells terms of one name apart.
    """

    name: str
    label: str
    low_bytes: int
    high_bytes: int
    source: str
    outside: bool = False


class RankBudget(Value, frozen=True, kw_only=True):
    """The memory of one GPU (of `num_gpus` equal ones; 0 for the host).

    Attributes:
        total_bytes: what counts as the card's memory.
        share_bytes: [low, high] that the engine lets itself have.
        share_source: the rule of the share.
        weights_bytes: exact; None where it is an interval (see terms).
        activation_bytes, graph_bytes, other_bytes: [low, high]; `other` is all the rest.
        cache_bytes: [low, high] left for the cache; below 0 where the rest takes more than there
            is.
        left_bytes: [low, high] of the share that neither terms nor cache take: at either end the
            terms within the share, the cache and this add up to it.
        beside_bytes: [with the least share, with the most] what of the card is not the share's.
        terms: every term with its source; `outside` is beside the share.
    """

    name: str
    num_gpus: int
    total_bytes: int
    share_bytes: tuple[int, int]
    share_source: str
    weights_bytes: int | None
    activation_bytes: tuple[int, int]
    graph_bytes: tuple[int, int]
    other_bytes: tuple[int, int]
    cache_bytes: tuple[int, int]
    left_bytes: tuple[int, int]
    beside_bytes: tuple[int, int]
    terms: tuple[TermBounds, ...]


class At(Value, frozen=True, kw_only=True):
    """Sequences of a given length, or requests of a trace, at once: expected and bounds.

    Attributes:
        tokens: the length; None for a workload's requests.
        workload: the trace's name; None for a length.
    """

    tokens: int | None
    workload: str | None
    max_concurrency: float
    low: float
    high: float


class DeploymentTotals(Value, frozen=True, kw_only=True):
    """All GPUs of a deployment together.

    Attributes:
        num_gpus: tensor x pipeline x data parallel.
        replicas: data-parallel copies; each has a cache of its own.
        instances: servers on each card, which have caches of their own too.
        kv_cache_tokens: distinct tokens that all of them keep.
        max_concurrency: sequences of the maximum at once on all of them.
        stored_bytes_per_token: bytes on all GPUs of a replica for one token.
        distinct_bytes_per_token: bytes of it that are there for the first time.
        duplication_factor: stored / distinct.
    """

    num_gpus: int
    replicas: int
    instances: int
    kv_cache_tokens: int
    max_concurrency: float
    stored_bytes_per_token: float
    distinct_bytes_per_token: float
    duplication_factor: float


class Lever(Value, frozen=True, kw_only=True):
    """One setting changed, and what it buys.

    Attributes:
        name: what is changed, in words.
        flags: the same in kvcalc's own flags; a plain run with them gives these figures. Empty
            where a flag is left out.
        figures: expected, of one replica.
        kv_cache_tokens: on all servers.
        max_concurrency: on all servers.
        tokens_gained: on all servers, against the question as it was asked.
        concurrency_gain: sequences of the maximum at once, on all servers, over those before; None
            where there were none.
        caution: what it costs.
        fits: the goal is surely met with it: what a plain run with its flags answers.
    """

    name: str
    flags: tuple[str, ...]
    figures: Figures
    kv_cache_tokens: int
    max_concurrency: float
    tokens_gained: int
    concurrency_gain: float | None
    caution: str
    fits: bool | None = None


class RefusedLever(Value, frozen=True, kw_only=True):
    """A setting that would be worth a try, and that cannot be changed here.

    Attributes:
        name: what would be changed, in words.
        flags: the same in kvcalc's own flags.
        reason: why the engine refuses it, or the memory.
    """

    name: str
    flags: tuple[str, ...]
    reason: str


class Solution(Value, frozen=True, kw_only=True):
    """The question turned round: the value of one setting with which the goal is met.

    Attributes:
        setting: what was asked for.
        value: with which it surely fits; None where there is none.
        possible: with which it fits if everything beside the cache takes its least.
        up_to: of a share of the card, the largest with which it surely fits; from `value` to it
            every share does. None for other settings, and where there is none.
        possible_up_to: the largest with which it fits if everything takes its least.
        flags: kvcalc's flags for `value`.
        reason: what stands in the way of one more (or of any).
        command: the engine's own command with `value`, where that is asked for.
    """

    setting: str
    value: int | float | None
    possible: int | float | None
    up_to: float | None = None
    possible_up_to: float | None = None
    flags: tuple[str, ...]
    reason: str
    command: str | None = None


class Layout(Value, frozen=True, kw_only=True):
    """One way to use the same GPUs.

    Attributes:
        name: `2 x TP4`.
        flags: kvcalc's flags.
        figures: of one replica; None where the engine refuses the layout.
        kv_cache_tokens: on all replicas.
        max_concurrency: on all replicas.
        duplication_factor: stored over distinct bytes of a token.
        why_not: the refusal.
    """

    name: str
    flags: tuple[str, ...]
    figures: Figures | None
    kv_cache_tokens: int
    max_concurrency: float
    duplication_factor: float | None
    why_not: str | None


class CapacityAnswer(Value, frozen=True, kw_only=True):
    """Will it fit, how much is there, and what would change it.

    Figures are those of one replica; expected ones are taken in the middle of what is left for the
    cache, `low` and `high` at its ends. Where the cache is given all three are the same.

    Attributes:
        verdict: the answer in a sentence; of what was solved for, the solution first.
        sequences: the goal: so many sequences of the maximum at once, on all servers together.
        fits: the goal is surely met: `low.fits`. Everything takes its most, within the share and
            outside it.
        may_fit: it is met if everything beside the cache takes its least: `high.fits`.
        missing_bytes: what one GPU lacks for it at the low end, in the cache and beside it; 0 where
            it fits, and where no memory would do (see verdict).
        refusals: what the engine refuses to start with.
        needed_bytes: what one sequence of the maximum needs on a GPU.
        bytes_per_token, fixed_bytes: needed is about fixed_bytes + tokens x bytes_per_token; None
            where a token adds no whole number of bytes.
        budget: of each kind of GPU; empty where the cache is given.
        host: what the server takes of the host's memory, each with its source.
        host_limit_bytes: what it may have of that; None where nobody says.
        host_fits: all that its settings allow has room there; None where no limit is known.
        host_may_fit: what it takes from the start has room there.
        levers: settings that gain something, the one that gains the most first; where the goal is
            not met those that meet it first, the cheapest of them before the others.
        refused_levers: settings that cannot be changed here, with the reason.
        suggested: the engine's own command; with what was solved for first, where that has a
            value. None where nothing that was asked fits, or no command starts the engine.
        suggested_notes: what to know of the command, or why there is none.
        log: what the engine prints with the expected figures.
        flags: what sets it apart from the others, where an option was given several values.
    """

    model: str
    engine: str
    engine_version: str | None
    gpu: str | None
    kv_cache_dtype: str
    block_size: int | None
    block_bytes: int | None
    max_model_len: int
    sequences: int
    verdict: str
    fits: bool | None
    may_fit: bool | None
    kv_cache_bytes: int | None
    num_blocks: int | None
    kv_cache_tokens: int
    max_concurrency: float
    max_sequences: int
    max_model_len_that_fits: int
    needed_bytes: int
    missing_bytes: int
    bytes_per_token: int | None
    fixed_bytes: int
    low: Figures
    high: Figures
    at: tuple[At, ...]
    deployment: DeploymentTotals
    budget: tuple[RankBudget, ...]
    host: tuple[HostPart, ...]
    host_limit_bytes: int | None
    host_fits: bool | None
    host_may_fit: bool | None
    levers: tuple[Lever, ...]
    refused_levers: tuple[RefusedLever, ...]
    solutions: tuple[Solution, ...]
    layouts: tuple[Layout, ...]
    suggested: str | None
    suggested_notes: tuple[str, ...]
    log: tuple[str, ...]
    notes: tuple[str, ...]
    unsupported: tuple[str, ...]
    convention: tuple[str, ...]
    source: str
    refusals: tuple[StartRefusal, ...] = ()
    flags: tuple[str, ...] = ()
