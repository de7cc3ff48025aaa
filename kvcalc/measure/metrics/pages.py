"""Metrics pages of each engine: the size of its cache, its use, and the requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Self

from kvcalc.answers.server_metrics import PoolUse, PrefixCache, ServerMetrics
from kvcalc.core.errors import InputError
from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_RANKS
from kvcalc.measure.prometheus import Sample
from kvcalc.models.text import printable

__all__ = [
    "ABSENT",
    "LLAMACPP_PREFIX",
    "SGLANG_PREFIX",
    "TENSORRT_LLM_PREFIX",
    "TGI_PREFIX",
    "TRITON_PREFIX",
    "VLLM_PREFIX",
    "Series",
    "grouped",
    "read_llamacpp",
    "read_sglang",
    "read_tensorrt_llm",
    "read_tgi",
    "read_vllm",
    "vllm_settings",
    "whole",
]

ABSENT = ("", "None", "none", "null")
"""How a label tells that a setting is not set."""

_LARGEST = 2**53
"""Above it a float is no exact count any more, and no server has as many of anything."""

_DIGITS = 16  # of a count in a label; longer ones are no counts


class Series:
    """Samples, looked up by name.

    Names are matched with `:` written as `_`, as relays and collectors rename them, and without the
    `_total` that newer clients append to counters.
    """

    def __init__(self, samples: Iterable[Sample], refused: dict[str, str] | None = None) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        # Shared by the series of all replicas: metric -> what is wrong with its value.
        self.refused: dict[str, str] = {} if refused is None else refused
        for sample in samples:
            self._by_name.setdefault(_key(sample.name), []).append(sample)

    def all(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of a metric that have these label values."""
        return [
            sample
            for sample in self._by_name.get(_key(name), ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]

    def value(self, *names: str, **labels: str) -> float | None:
        """Return the value of the first of these metrics that is there.

        Ranks of one engine report the same figure each: the largest counts, as one that fills up
        first binds. Infinite and undefined values are none; the infinite ones are told.
        """
        for name in names:
            samples = self.all(name, **labels)
            endless = [s for s in samples if math.isinf(s.value)]
            if endless:
                self._refuse(endless[0], "no figure")
            found = [s.value for s in samples if math.isfinite(s.value)]
            if found:
                return max(found)
        return None

    def _refuse(self, sample: Sample, what: str) -> None:
        self.refused.setdefault(sample.name, f"{sample.value:g}, which is {what}")

    def _checked(self, found: float | None, names: Iterable[str], good: bool, what: str) -> None:
        """Remember the sample of a value that is not what it should be."""
        if found is None or good:
            return
        for name in names:
            for sample in self.all(name):
                if sample.value == found:
                    self._refuse(sample, what)
                    return

    def count(self, *names: str, **labels: str) -> int | None:
        """Return a metric that counts something; None where it is no whole number from 0."""
        found = self.value(*names, **labels)
        counted = whole(found)
        self._checked(found, names, counted is not None, "no whole number from 0")
        return counted

    def ratio(self, *names: str, **labels: str) -> float | None:
        """Return a share; None where it is not between 0 and 1."""
        found = self.value(*names, **labels)
        good = found is not None and 0 <= found <= 1
        self._checked(found, names, good, "no share from 0 to 1")
        return found if good else None

    def label_count(self, labels: Mapping[str, str], name: str) -> int | None:
        """Return a label that counts something; None where it is absent, or no whole number."""
        told = labels.get(name, "")
        counted = whole(told)
        if counted is None and told not in ABSENT:
            self.refused.setdefault(name, f"{printable(told)[:40]!r}, which is no whole number")
        return counted

    def only(self, keep: Callable[[Sample], bool]) -> Self:
        """Return the samples that satisfy a condition."""
        samples = (s for found in self._by_name.values() for s in found if keep(s))
        return type(self)(samples, self.refused)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples."""
        for found in self._by_name.values():
            yield from found

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the labels of each sample of a metric."""
        return [sample.labels for sample in self.all(name)]

    def values_of(self, label: str) -> list[str]:
        """Return the values of a label over all samples, each once, in the order of the page."""
        found = (s.labels.get(label) for group in self._by_name.values() for s in group)
        return list(dict.fromkeys(value for value in found if value))


_MOST_SHARED = 2_000
"""Samples of no engine, which belong to each of several."""


def grouped(series: Series, label: str) -> list[tuple[str | None, Series]]:
    """Return one series a value of a label; samples without the label belong to each of them."""
    values = series.values_of(label)
    if len(values) <= 1:
        return [(None, series)]
    own: dict[str, list[Sample]] = {value: [] for value in values}
    shared = []
    for sample in series.samples():
        value = sample.labels.get(label)
        if value:
            own[value].append(sample)
        elif value is None:
            shared.append(sample)
    if len(own) > MAX_RANKS or len(shared) > _MOST_SHARED:
        raise InputError(
            f"{format_count(len(own))} engines, and {format_count(len(shared))} samples of none",
            hint=f"give the page of one server, of {format_count(MAX_RANKS)} engines at most",
        )
    return [(value, Series([*mine, *shared], series.refused)) for value, mine in own.items()]


def whole(value: float | str | None) -> int | None:
    """Return a count that was told as a float or as text; None where it is none."""
    if isinstance(value, str):
        plain = value.strip()
        digits = plain.isascii() and plain.isdigit() and len(plain) <= _DIGITS
        return int(plain) if digits else None
    if value is None or not math.isfinite(value):
        return None
    return int(value) if 0 <= value <= _LARGEST and value == int(value) else None


def _key(name: str) -> str:
    return name.replace(":", "_").removesuffix("_total")


# --------------------------------------------------------------------- vLLM
#
# vLLM's metrics page: the cache it made, as labels of an information metric, and its use.
#
# vLLM 0.33 v1/metrics/loggers.py (PrometheusStatLogger) and config/cache.py (CacheConfig): all
# fields of the cache's configuration are labels of `vllm:cache_config_info`, texts each, "None" for
# none; kv_cache_size_tokens and kv_cache_max_concurrency since 0.26. `block_size` is the smallest
# of the groups' blocks (v1/engine/core.py), so that blocks x block size is no capacity where groups
# differ (issue 51163); in some releases the page shows what it was before the start raised it
# (42966). v1/core/block_pool.py, get_usage: 1 - free / (blocks - 1), as block 0 is nobody's; before
# V1, and in its first releases, 1 - free / blocks. Older names: vllm:gpu_cache_usage_perc,
# gpu_prefix_cache_*.

VLLM_PREFIX = "vllm_"

_SETTINGS = ("cache_dtype", "enable_prefix_caching", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
"""Labels that are settings of the server, and decide on its cache."""

_OFF = -1  # hit rate of V0 where no prefixes are cached
_WHOLE = 1e-6  # of a block: a usage that is a share of blocks comes as near as a float can


def read_vllm(series: Series) -> list[ServerMetrics]:
    """Return one reading for each engine behind the page (a replica each)."""
    return [_engine(replica, one) for replica, one in grouped(series, "engine")]


def vllm_settings(series: Series, replicas: Sequence[str | None]) -> list[dict[str, str]]:
    """Return the labels among _SETTINGS that are set, of each replica."""
    found = series.labels("vllm:cache_config_info")
    by_engine: dict[str | None, Mapping[str, str]] = {}
    for labels in found:
        by_engine.setdefault(labels.get("engine"), labels)
    first = by_engine.get(None, found[0] if found else {})
    return [
        {name: labels[name] for name in _SETTINGS if labels.get(name, "") not in ABSENT}
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


# --------------------------------------------------------------------- SGLang
#
# SGLang's metrics page (--enable-metrics): token slots of each pool and their use.
#
# SGLang 0.5 srt/observability/metrics_collector.py (SchedulerMetricsCollector):
# max_total_num_tokens, num_used_tokens, token_usage (the fullest pool's), full/swa/mamba usage,
# kv_used, kv_available and kv_evictable tokens; page_size and num_pages as metrics, in some
# releases as labels of `sglang:cache_config_info`. Each rank reports; figures of a request's
# priority stand beside the total, whose priority is empty.

SGLANG_PREFIX = "sglang_"

_POOLS = (
    # pool: (usage, stem of its token counts)
    ("full attention", "sglang:full_token_usage", "sglang:kv"),
    ("sliding windows", "sglang:swa_token_usage", "sglang:swa"),
    ("states", "sglang:mamba_usage", "sglang:mamba"),
)


def read_sglang(series: Series) -> list[ServerMetrics]:
    """Return one reading for each group of data parallelism."""
    totals = series.only(lambda s: not s.labels.get("priority"))
    return [_sglang_engine(replica, one) for replica, one in grouped(totals, "dp_rank")]


def _sglang_engine(replica: str | None, series: Series) -> ServerMetrics:
    tokens = series.count("sglang:max_total_num_tokens")
    labels = (series.labels("sglang:cache_config_info") or [{}])[0]
    page = series.count("sglang:page_size") or series.label_count(labels, "page_size")
    pages = series.count("sglang:num_pages") or series.label_count(labels, "num_pages")
    product = page * pages if page and pages else None
    names = series.values_of("model_name")
    usage = series.ratio("sglang:token_usage")
    used = series.count("sglang:num_used_tokens")
    pools = tuple(_pools(series))
    are, why = _sglang_capacity(page, pages, tokens, pools)
    notes = ["usage leaves out what is kept for reuse: a cache full of prefixes reads as empty"]
    return ServerMetrics(
        engine="sglang",
        model=printable(names[0]) if names else None,
        replica=replica and f"dp rank {printable(replica)}",
        block_size=page or None,
        num_blocks=pages or None,
        block_tokens=product,
        block_tokens_are_capacity=are,
        why=why,
        kv_cache_tokens=tokens,
        max_model_len=series.count("sglang:context_len") or None,
        usage_ratio=usage,
        blocks_used=-(-used // page) if used is not None and page else None,
        tokens_used=used,
        running=series.count("sglang:num_running_reqs"),
        waiting=series.count("sglang:num_queue_reqs"),
        preemptions=series.count("sglang:num_retracted_requests", "sglang:num_retracted_reqs"),
        prefix_cache=_sglang_prefix_cache(series),
        pools=pools if len(pools) > 1 else (),
        notes=tuple(notes) if any(pool.evictable_tokens for pool in pools) else (),
    )


def _pools(series: Series) -> list[PoolUse]:
    found = []
    for name, usage, stem in _POOLS:
        ratio = series.ratio(usage)
        used, free, kept = (
            series.count(f"{stem}_{what}_tokens") for what in ("used", "available", "evictable")
        )
        total = None if used is None or free is None else used + free + (kept or 0)
        if total or ratio:
            found.append(
                PoolUse(
                    name=name,
                    tokens=total,
                    used_tokens=used,
                    evictable_tokens=kept,
                    usage_ratio=ratio,
                )
            )
    return found


def _sglang_capacity(
    page: int | None, pages: int | None, tokens: int | None, pools: tuple[PoolUse, ...]
) -> tuple[bool | None, str]:
    others = [pool.name for pool in pools if pool.name != "full attention"]
    if others:
        return False, (
            f"{' and '.join(others)} have pools of their own, and the fuller pool binds;"
            " the product is the pool of full attention alone"
        )
    if not page or not pages:
        return None, (
            "the page names no pages; max_total_num_tokens is the capacity"
            if tokens
            else "the page names neither pages nor tokens"
        )
    if tokens is None:
        return None, "the page names no max_total_num_tokens, which is the capacity"
    if tokens // page == pages:
        return True, "these are the whole pages of max_total_num_tokens, the server's own figure"
    return False, f"max_total_num_tokens, the server's own figure, is {format_count(tokens)}"


def _sglang_prefix_cache(series: Series) -> PrefixCache | None:
    ratio = series.ratio("sglang:cache_hit_rate")
    return None if ratio is None else PrefixCache(queries=None, hits=None, hit_ratio=ratio)


# --------------------------------------------------------------------- llama-server
#
# llama-server's metrics page (--metrics): requests, and in older builds the cells in use.
#
# llama.cpp tools/server/server-task.cpp (server_task_result_metrics) of b11434, and server.cpp of
# older builds: kv_cache_usage_ratio and kv_cache_tokens were told until the middle of 2025. Nothing
# on the page tells the size of the cache: it is what -c, -np and the model come to.

LLAMACPP_PREFIX = "llamacpp_"


def read_llamacpp(series: Series) -> list[ServerMetrics]:
    """Return the one reading of a server."""
    names = series.values_of("model")
    longest = series.count("llamacpp:n_tokens_max")
    notes = ["the page tells no size of the cache: give the model and -c, -np as the server has"]
    if longest:
        notes.append(
            f"the longest sequence since the start had {format_count(longest)} tokens: -c and -np"
            " need give a slot no more than the longest that will come"
        )
    return [
        ServerMetrics(
            engine="llama.cpp",
            model=printable(names[0]) if names else None,
            why="llama.cpp has cells, one a token, and no blocks",
            usage_ratio=series.ratio("llamacpp:kv_cache_usage_ratio"),
            tokens_used=series.count("llamacpp:kv_cache_tokens"),
            running=series.count("llamacpp:requests_processing"),
            waiting=series.count("llamacpp:requests_deferred"),
            prefix_cache=_llamacpp_prefix_cache(series),
            notes=tuple(notes),
        )
    ]


def _llamacpp_prefix_cache(series: Series) -> PrefixCache | None:
    """Prompt tokens that were found in a slot; those that were computed are told apart."""
    computed = series.count("llamacpp:prompt_tokens")
    cached = series.count("llamacpp:prompt_tokens_cached")
    if computed is None or cached is None:
        return None
    queries = computed + cached
    ratio = cached / queries if queries else None
    return PrefixCache(queries=queries, hits=cached, hit_ratio=ratio)


# --------------------------------------------------------------------- TGI
#
# TGI's metrics page: the batch that runs and the queue.
#
# TGI docs, reference/metrics: tgi_batch_current_size, tgi_batch_current_max_tokens and
# tgi_queue_size are its gauges. A request reserves its prompt and all of max_new_tokens when it is
# admitted (backends/v3/src/queue.rs), so that the current maximum is what is reserved, not what is
# written.

TGI_PREFIX = "tgi_"


def read_tgi(series: Series) -> list[ServerMetrics]:
    """Return the one reading of a server."""
    return [
        ServerMetrics(
            engine="tgi",
            why="the page names neither blocks nor tokens",
            tokens_used=series.count("tgi_batch_current_max_tokens"),
            running=series.count("tgi_batch_current_size"),
            waiting=series.count("tgi_queue_size"),
            notes=(
                "the capacity is max_batch_total_tokens, which /info and the start-up log tell",
                "tokens in use are reserved: prompts of the running batch and all max_new_tokens",
            ),
        )
    ]


# --------------------------------------------------------------------- TensorRT-LLM
#
# TensorRT-LLM's metrics: of trtllm-serve (/prometheus/metrics) and of Triton's backend.
#
# TensorRT-LLM 1.x tensorrt_llm/metrics/collector.py: trtllm_kv_cache_{max,free,used}_blocks,
# _tokens_per_block, _utilization, _hit_rate, and requests running and waiting. Triton
# (tensorrtllm_backend): nv_trt_llm_kv_cache_block_metrics by kv_cache_block_type and
# nv_trt_llm_request_metrics by request_type. With attention windows of several sizes each has a
# pool of its own, and blocks of the first alone are told.

TENSORRT_LLM_PREFIX = "trtllm_"
TRITON_PREFIX = "nv_trt_llm_"

_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS = "nv_trt_llm_request_metrics"


def read_tensorrt_llm(series: Series) -> list[ServerMetrics]:
    """Return the reading of trtllm-serve or of Triton's backend."""
    if series.all(_BLOCKS) or series.all(_REQUESTS):
        return [
            _made(
                series,
                block=series.count(_BLOCKS, kv_cache_block_type="tokens_per"),
                blocks=series.count(_BLOCKS, kv_cache_block_type="max"),
                used=series.count(_BLOCKS, kv_cache_block_type="used"),
                free=series.count(_BLOCKS, kv_cache_block_type="free"),
                usage=series.ratio(_BLOCKS, kv_cache_block_type="fraction"),
                running=series.count(_REQUESTS, request_type="scheduled"),
                waiting=series.count(_REQUESTS, request_type="waiting"),
            )
        ]
    return [
        _made(
            series,
            block=series.count("trtllm_kv_cache_tokens_per_block"),
            blocks=series.count("trtllm_kv_cache_max_blocks"),
            used=series.count("trtllm_kv_cache_used_blocks"),
            free=series.count("trtllm_kv_cache_free_blocks"),
            usage=series.ratio("trtllm_kv_cache_utilization", "trtllm_kv_cache_usage_perc"),
            running=series.count("trtllm_num_requests_running"),
            waiting=series.count("trtllm_num_requests_waiting"),
        )
    ]


def _made(
    series: Series,
    *,
    block: int | None,
    blocks: int | None,
    used: int | None,
    free: int | None,
    usage: float | None,
    running: int | None,
    waiting: int | None,
) -> ServerMetrics:
    names = series.values_of("model_name")
    product = block * blocks if block and blocks else None
    notes = ["with attention data parallelism the page tells the first rank's cache alone"]
    if None not in (used, free, blocks) and (used or 0) + (free or 0) != blocks:
        notes.append("blocks used and free do not add up to the maximum: read at different times")
    if usage is None and used is not None and blocks and used <= blocks:
        usage = used / blocks
    ratio = series.ratio("trtllm_kv_cache_hit_rate")
    return ServerMetrics(
        engine="tensorrt-llm",
        model=printable(names[0]) if names else None,
        block_size=block or None,
        num_blocks=blocks or None,
        block_tokens=product,
        why=(
            "true where every layer keeps every token; with windows each size has blocks of its"
            " own, which this page does not tell: name the model to have it computed"
            if product
            else "the page names no blocks"
        ),
        usage_ratio=usage,
        blocks_used=used,
        running=running,
        waiting=waiting,
        prefix_cache=None
        if ratio is None
        else PrefixCache(queries=None, hits=None, hit_ratio=ratio),
        notes=tuple(notes),
    )
