"""Metrics pages as each engine writes them, with figures made up here."""

from __future__ import annotations

__all__ = ["PAGES", "vllm"]


def vllm(
    *,
    usage: float = 0.5,
    blocks: int = 8193,
    running: int = 7,
    engine: str = "0",
    name: str = "vllm:kv_cache_usage_perc",
    **labels: object,
) -> str:
    """Return a page of vLLM with one engine."""
    told = {
        "block_size": "16",
        "cache_dtype": "auto",
        "num_gpu_blocks": str(blocks),
        "num_cpu_blocks": "None",
        "enable_prefix_caching": "True",
        "sliding_window": "None",
        "mamba_block_size": "None",
        "engine": engine,
        **{key: str(value) for key, value in labels.items()},
    }
    inside = ",".join(f'{key}="{value}"' for key, value in told.items())
    of = f'{{engine="{engine}",model_name="org/some-model"}}'
    return f"""\
# HELP vllm:cache_config_info Configuration of the cache
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{{inside}}} 1.0
# TYPE {name} gauge
{name}{of} {usage!r}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{of} {running}.0
vllm:num_requests_waiting{of} 2.0
vllm:num_preemptions_total{of} 3.0
vllm:prefix_cache_queries_total{of} 1000.0
vllm:prefix_cache_hits_total{of} 250.0
"""


_SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="org/m",tp_rank="0",pp_rank="0",priority=""} 12.0
sglang:num_running_reqs{model_name="org/m",tp_rank="1",pp_rank="0",priority=""} 12.0
sglang:num_running_reqs{model_name="org/m",tp_rank="0",pp_rank="0",priority="high"} 99.0
sglang:num_queue_reqs{model_name="org/m",tp_rank="0",pp_rank="0",priority=""} 0.0
sglang:token_usage{model_name="org/m",tp_rank="0",pp_rank="0"} 0.25
sglang:num_used_tokens{model_name="org/m",tp_rank="0",pp_rank="0"} 25000
sglang:max_total_num_tokens{model_name="org/m",tp_rank="0",pp_rank="0"} 100000
sglang:page_size{model_name="org/m",tp_rank="0",pp_rank="0"} 16
sglang:num_pages{model_name="org/m",tp_rank="0",pp_rank="0"} 6250
sglang:cache_hit_rate{model_name="org/m",tp_rank="0",pp_rank="0"} 0.5
sglang:num_retracted_reqs{model_name="org/m",tp_rank="0",pp_rank="0"} 0
"""

_SGLANG_POOLS = """\
sglang:token_usage{model_name="h"} 0.9
sglang:max_total_num_tokens{model_name="h"} 1000
sglang:full_token_usage{model_name="h"} 0.3
sglang:swa_token_usage{model_name="h"} 0.9
sglang:kv_used_tokens{model_name="h"} 300
sglang:kv_available_tokens{model_name="h"} 600
sglang:kv_evictable_tokens{model_name="h"} 100
sglang:swa_used_tokens{model_name="h"} 90
sglang:swa_available_tokens{model_name="h"} 10
"""

_LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_total 300
llamacpp:prompt_tokens_cached_total 100
llamacpp:n_tokens_max 980
"""

_LLAMA_2024 = """\
llamacpp:kv_cache_usage_ratio 0.25
llamacpp:kv_cache_tokens 1024
llamacpp:requests_processing 2
"""

_TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 4
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 8
tgi_batch_current_max_tokens 2048
tgi_request_input_length_bucket{le="256"} 17
"""

_TRTLLM = """\
trtllm_kv_cache_utilization{model_name="m",engine_type="trtllm"} 0.25
trtllm_kv_cache_max_blocks{model_name="m"} 1000
trtllm_kv_cache_used_blocks{model_name="m"} 250
trtllm_kv_cache_free_blocks{model_name="m"} 750
trtllm_kv_cache_tokens_per_block{model_name="m"} 32
trtllm_num_requests_running{model_name="m"} 5
trtllm_num_requests_waiting{model_name="m"} 1
trtllm_kv_cache_hit_rate{model_name="m"} 0.125
"""

_TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="t",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="t",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="t",version="1"} 300
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="t",version="1"} 400
"""

PAGES = {
    "vllm": vllm(kv_cache_size_tokens=131088, kv_cache_max_concurrency=131088 / 8192),
    "vllm-v0": vllm(usage=0.25, blocks=2000, name="vllm:gpu_cache_usage_perc"),
    "sglang": _SGLANG,
    "sglang-pools": _SGLANG_POOLS,
    "llama.cpp": _LLAMA,
    "llama.cpp-2024": _LLAMA_2024,
    "tgi": _TGI,
    "trtllm": _TRTLLM,
    "triton": _TRITON,
}
"""Name -> page; the engine's name is the part before a dash, but for TensorRT-LLM's two."""
