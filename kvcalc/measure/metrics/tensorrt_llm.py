"""TensorRT-LLM's metrics: of trtllm-serve (/prometheus/metrics) and of Triton's backend.

TensorRT-LLM 1.x tensorrt_llm/metrics/collector.py: trtllm_kv_cache_{max,free,used}_blocks,
_tokens_per_block, _utilization, _hit_rate, and requests running and waiting. Triton
(tensorrtllm_backend): nv_trt_llm_kv_cache_block_metrics by kv_cache_block_type and
nv_trt_llm_request_metrics by request_type. With attention windows of several sizes each has a pool
of its own, and blocks of the first alone are told.
"""

from __future__ import annotations

from kvcalc.core.server_metrics import PrefixCache, ServerMetrics
from kvcalc.measure.metrics.series import Series
from kvcalc.models.text import printable

__all__ = ["PREFIX", "TRITON", "read"]

PREFIX = "trtllm_"
TRITON = "nv_trt_llm_"

_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_REQUESTS = "nv_trt_llm_request_metrics"


def read(series: Series) -> list[ServerMetrics]:
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
