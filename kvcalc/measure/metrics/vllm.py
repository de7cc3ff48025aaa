"""vLLM's metrics page: the cache it made, as labels of an information metric, and its use.

vLLM 0.33 v1/metrics/loggers.py (PrometheusStatLogger) and config/cache.py (CacheConfig): all fields
of the cache's configuration are labels of `vllm:cache_config_info`, texts each, "None" for none;
kv_cache_size_tokens and kv_cache_max_concurrency since 0.26. `block_size` is the smallest of the
groups' blocks (v1/engine/core.py), so that blocks x block size is no capacity where groups differ
(issue 51163); in some releases the page shows what it was before the start raised it (42966).
v1/core/block_pool.py, get_usage: 1 - free / (blocks - 1), as block 0 is nobody's; before V1, and in
its first releases, 1 - free / blocks. Older names: vllm:gpu_cache_usage_perc, gpu_prefix_cache_*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcalc.core.server_metrics import PrefixCache, ServerMetrics
from kvcalc.core.units import format_count
from kvcalc.measure.metrics.series import ABSENT, Series, grouped, whole
from kvcalc.models.text import printable

__all__ = ["PREFIX", "SETTINGS", "read", "settings"]

PREFIX = "vllm_"

SETTINGS = ("cache_dtype", "enable_prefix_caching", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
"""Labels that are settings of the server, and decide on its cache."""

_OFF = -1  # hit rate of V0 where no prefixes are cached
_WHOLE = 1e-6  # of a block: a usage that is a share of blocks comes as near as a float can


def read(series: Series) -> list[ServerMetrics]:
    """Return one reading for each engine behind the page (a replica each)."""
    return [_engine(replica, one) for replica, one in grouped(series, "engine")]


def settings(series: Series, replicas: Sequence[str | None]) -> list[dict[str, str]]:
    """Return the labels among SETTINGS that are set, of each replica."""
    found = series.labels("vllm:cache_config_info")
    by_engine: dict[str | None, Mapping[str, str]] = {}
    for labels in found:
        by_engine.setdefault(labels.get("engine"), labels)
    first = by_engine.get(None, found[0] if found else {})
    return [
        {name: labels[name] for name in SETTINGS if labels.get(name, "") not in ABSENT}
        for labels in (by_engine.get(replica, first) for replica in replicas)
    ]


def _labels(series: Series, replica: str | None) -> Mapping[str, str]:
    found = series.labels("vllm:cache_config_info")
    of_it = [labels for labels in found if labels.get("engine", replica) == replica]
    return (of_it or found or [{}])[0]


def _engine(replica: str | None, series: Series) -> ServerMetrics:
    labels = _labels(series, replica)
    block, blocks, tokens, size = (
        series.label_count(labels, name)
        for name in (
            *("block_size", "num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_memory_bytes"),
        )
    )
    cpu_blocks, swap = (
        series.label_count(labels, name) for name in ("num_cpu_blocks", "swap_space_bytes")
    )
    product = block * blocks if block and blocks else None
    usage = series.ratio("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    concurrency = _positive(labels.get("kv_cache_max_concurrency"))
    are, why = _capacity(labels, product, tokens)
    dtype = labels.get("cache_dtype", "")
    return ServerMetrics(
        engine="vllm",
        model=_model(series),
        replica=replica and printable(replica),
        kv_cache_dtype=None if dtype in ABSENT else printable(dtype),
        block_size=block or None,
        num_blocks=blocks or None,
        num_cpu_blocks=cpu_blocks or None,
        swap_space_bytes=swap or None,
        block_tokens=product,
        block_tokens_are_capacity=are,
        why=why,
        kv_cache_tokens=tokens,
        kv_cache_bytes=size,
        max_concurrency=concurrency,
        max_model_len=_longest(tokens, concurrency),
        usage_ratio=usage,
        blocks_used=_used(usage, blocks),
        running=series.count("vllm:num_requests_running"),
        waiting=series.count("vllm:num_requests_waiting"),
        preemptions=series.count("vllm:num_preemptions"),
        prefix_cache=_prefix_cache(series),
        notes=_notes(series, labels, block),
    )


def _model(series: Series) -> str | None:
    names = series.values_of("model_name")
    return printable(names[0]) if names else None


def _capacity(
    labels: Mapping[str, str], product: int | None, tokens: int | None
) -> tuple[bool | None, str]:
    """Return whether block size x blocks is the capacity, and why."""
    if product is None:
        return None, "the page names no block size or no number of blocks"
    if tokens is not None:
        if tokens == product:
            return True, "the server's own figure (kv_cache_size_tokens) is the same"
        return False, (
            f"the server's own figure (kv_cache_size_tokens) is {format_count(tokens)}: layers of"
            " several kinds share the blocks, and the block size told is the smallest of theirs"
            " (vLLM issue 51163)"
        )
    for name in ("sliding_window", "mamba_block_size", "mamba_page_size_padded"):
        if labels.get(name, "") not in ABSENT:
            return None, (
                f"{name} is {printable(labels[name])[:20]}: with windows or states the product is"
                " no capacity; name the model to have it computed"
            )
    return None, (
        "true of models whose layers all keep every token, which this page does not tell (before"
        " 0.26 it has no kv_cache_size_tokens); name the model to have it computed"
    )


def _used(usage: float | None, blocks: int | None) -> int | None:
    """Return the blocks in use where the share of them is one of whole blocks."""
    if usage is None or not blocks:
        return None
    for shared in (blocks - 1, blocks):
        used = usage * shared
        if shared and abs(used - round(used)) < _WHOLE:
            return round(used)
    return None


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _longest(tokens: int | None, concurrency: float | None) -> int | None:
    """Return the maximum, as the server's tokens are its concurrency times it, rounded down."""
    if tokens is None or concurrency is None or concurrency < 1 or tokens > 10**15:
        return None
    near = round(tokens / concurrency)
    for length in (near, near + 1, near - 1):
        if length > 0 and int(concurrency * length) == tokens:
            return length
    return None


def _prefix_cache(series: Series) -> PrefixCache | None:
    queries = series.count("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
    hits = series.count("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits")
    if queries is not None and hits is not None:
        ratio = hits / queries if queries > 0 and hits <= queries else None
        return PrefixCache(queries=queries, hits=hits, hit_ratio=ratio)
    name = "vllm:gpu_prefix_cache_hit_rate"
    ratio = None if series.value(name) == _OFF else series.ratio(name)
    return None if ratio is None else PrefixCache(queries=None, hits=None, hit_ratio=ratio)


def _notes(series: Series, labels: Mapping[str, str], block: int | None) -> tuple[str, ...]:
    notes = []
    attention = whole(labels.get("effective_attention_block_size"))
    if attention and block and attention != block:
        notes.append(
            f"attention layers have blocks of {format_count(attention)} tokens; {block} is the"
            " smallest of all groups"
        )
    if not labels:
        notes.append("no vllm:cache_config_info on the page: it tells use, and no capacity")
    if series.value("vllm:num_requests_swapped"):
        notes.append("requests are swapped to the host, which V0 does")
    return tuple(notes)
