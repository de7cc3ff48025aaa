"""What a running server says of its cache, and what kvcalc makes of it.

Fields ending in `_bytes` are exact ints; `_ratio` lies between 0 and 1; None means that the page
does not tell it, or that it cannot be known from what it tells.
"""

from __future__ import annotations

from kvcalc.core.values import Value

__all__ = [
    "MetricsDifference",
    "PoolUse",
    "PredictedCapacity",
    "PrefixCache",
    "ServerMetrics",
    "WasteNow",
    "said_name",
]


class PrefixCache(Value, frozen=True, kw_only=True):
    """Reuse of common beginnings since the start.

    Attributes:
        queries: tokens (or blocks) that were looked up; None where only the ratio is told.
        hits: those that were found.
        hit_ratio: hits over queries; None before the first query.
    """

    queries: int | None
    hits: int | None
    hit_ratio: float | None


class PoolUse(Value, frozen=True, kw_only=True):
    """One pool of a server whose layers keep different things.

    Attributes:
        name: full attention, sliding windows, states.
        tokens: its size in tokens (states: in states).
        used_tokens: held by requests.
        evictable_tokens: kept for reuse; counted as free.
        usage_ratio: as the server tells it.
    """

    name: str
    tokens: int | None
    used_tokens: int | None
    evictable_tokens: int | None
    usage_ratio: float | None


class WasteNow(Value, frozen=True, kw_only=True):
    """What of the cache holds nothing that a running request wrote.

    Attributes:
        held_tokens: tokens that the blocks in use have room for; None where a block is no fixed
            number of tokens of a sequence.
        running_tokens: tokens of the running requests, where they are given.
        unused_tokens: held without one of those.
        tail_tokens: the least and the most that last blocks of the running requests leave empty.
        idle_ratio: share of the cache that no request holds.
    """

    held_tokens: int | None
    running_tokens: int | None
    unused_tokens: int | None
    tail_tokens: tuple[int, int] | None
    idle_ratio: float | None


class PredictedCapacity(Value, frozen=True, kw_only=True):
    """What kvcalc says of the same server.

    Attributes:
        engine_version: whose rules were followed.
        block_bytes: one block over all layers of a rank.
        num_blocks: blocks of the budget that the page tells, else those of the page.
        num_cpu_blocks: of the swap space that the page tells.
        kv_cache_bytes: what that many blocks take on each rank.
        kv_cache_tokens: the engine's own figure for it.
        used_bytes: of the blocks in use.
    """

    engine_version: str | None
    kv_cache_dtype: str
    block_size: int | None
    max_model_len: int
    block_bytes: int | None
    num_blocks: int | None
    kv_cache_bytes: int | None
    kv_cache_tokens: int
    max_concurrency: float
    used_bytes: int | None
    num_cpu_blocks: int | None = None


class MetricsDifference(Value, frozen=True, kw_only=True):
    """A figure that the server reports otherwise than kvcalc predicts it.

    Of the model and of settings (`model`, `kv_cache_dtype`, `max_model_len`, ...) `predicted` is
    what was given, and both may be text.
    """

    name: str
    reported: float | str | None
    predicted: float | str | None
    explained_by: str


class ServerMetrics(Value, frozen=True, kw_only=True):
    """One engine behind a metrics page.

    Attributes:
        engine: whose metrics these are.
        model: the name under which it serves.
        replica: which of several engines behind one page; None where there is one.
        block_size: as reported.
        num_blocks: as reported, those that no sequence can have included.
        num_cpu_blocks: blocks in the host's memory, as reported.
        swap_space_bytes: the host's memory that they are in, of each rank, as reported.
        block_tokens: the product of the two, which is often taken for the capacity.
        block_tokens_are_capacity: whether it is; None where the page does not decide it.
        why: the reason.
        kv_cache_tokens: the capacity as the server tells it.
        kv_cache_bytes: of each rank, as the server tells it.
        max_concurrency: sequences of the maximum at once, as the server tells it.
        max_model_len: the maximum, where it is told or follows from the last two.
        usage_ratio: share of the cache in use.
        blocks_used: in use; None where usage does not give a whole number.
        tokens_used: as the server tells it.
        preemptions: requests that lost their cache since the start.
        agreed: figures that are as predicted.
        verdict: the answer in a sentence or two.
    """

    engine: str
    model: str | None = None
    replica: str | None = None
    kv_cache_dtype: str | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    num_cpu_blocks: int | None = None
    swap_space_bytes: int | None = None
    block_tokens: int | None = None
    block_tokens_are_capacity: bool | None = None
    why: str = ""
    kv_cache_tokens: int | None = None
    kv_cache_bytes: int | None = None
    max_concurrency: float | None = None
    max_model_len: int | None = None
    usage_ratio: float | None = None
    blocks_used: int | None = None
    tokens_used: int | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prefix_cache: PrefixCache | None = None
    pools: tuple[PoolUse, ...] = ()
    waste: WasteNow | None = None
    predicted: PredictedCapacity | None = None
    agreed: tuple[str, ...] = ()
    differences: tuple[MetricsDifference, ...] = ()
    verdict: str = ""
    notes: tuple[str, ...] = ()


def said_name(name: str) -> str:
    """Return how a figure's or setting's name is said.

    >>> said_name("kv_cache_dtype")
    'KV cache dtype'
    """
    return name.replace("_", " ").replace("kv cache", "KV cache")
