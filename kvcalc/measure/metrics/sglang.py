"""SGLang's metrics page (--enable-metrics): token slots of each pool and their use.

SGLang 0.5 srt/observability/metrics_collector.py (SchedulerMetricsCollector): max_total_num_tokens,
num_used_tokens, token_usage (the fullest pool's), full/swa/mamba usage, kv_used, kv_available and
kv_evictable tokens; page_size and num_pages as metrics, in some releases as labels of
`sglang:cache_config_info`. Each rank reports; figures of a request's priority stand beside the
total, whose priority is empty.
"""

from __future__ import annotations

from kvcalc.core.server_metrics import PoolUse, PrefixCache, ServerMetrics
from kvcalc.core.units import format_count
from kvcalc.measure.metrics.series import Series, grouped
from kvcalc.models.text import printable

__all__ = ["PREFIX", "read"]

PREFIX = "sglang_"

_POOLS = (
    # pool: (usage, stem of its token counts)
    ("full attention", "sglang:full_token_usage", "sglang:kv"),
    ("sliding windows", "sglang:swa_token_usage", "sglang:swa"),
    ("states", "sglang:mamba_usage", "sglang:mamba"),
)


def read(series: Series) -> list[ServerMetrics]:
    """Return one reading for each group of data parallelism."""
    totals = series.only(lambda s: not s.labels.get("priority"))
    return [_engine(replica, one) for replica, one in grouped(totals, "dp_rank")]


def _engine(replica: str | None, series: Series) -> ServerMetrics:
    tokens = series.count("sglang:max_total_num_tokens")
    labels = (series.labels("sglang:cache_config_info") or [{}])[0]
    page = series.count("sglang:page_size") or series.label_count(labels, "page_size")
    pages = series.count("sglang:num_pages") or series.label_count(labels, "num_pages")
    product = page * pages if page and pages else None
    names = series.values_of("model_name")
    usage = series.ratio("sglang:token_usage")
    used = series.count("sglang:num_used_tokens")
    pools = tuple(_pools(series))
    are, why = _capacity(page, pages, tokens, pools)
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
        prefix_cache=_prefix_cache(series),
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


def _capacity(
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


def _prefix_cache(series: Series) -> PrefixCache | None:
    ratio = series.ratio("sglang:cache_hit_rate")
    return None if ratio is None else PrefixCache(queries=None, hits=None, hit_ratio=ratio)
