"""The keys of kvcalc.yaml: those of checks, and those that say how a model is deployed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

__all__ = [
    "BESIDE",
    "CHECK_KEYS",
    "COMMAND_KEYS",
    "DEPLOYMENT_KEYS",
    "ENTRY_KEYS",
    "FILE_VERSION",
    "TOP_BESIDE",
    "Form",
]

Form = Literal["tokens", "count", "bytes", "share", "switch", "text", "version", "number"]
"""How a value is written."""

FILE_VERSION = 1

DEPLOYMENT_KEYS: Mapping[str, tuple[str, Form]] = {
    "engine": ("engine", "text"),
    "engine_version": ("engine_version", "version"),
    "gpu": ("gpu", "text"),
    "dtype": ("dtype", "text"),
    "tensor_parallel_size": ("tensor_parallel_size", "count"),
    "pipeline_parallel_size": ("pipeline_parallel_size", "count"),
    "data_parallel_size": ("data_parallel_size", "count"),
    "decode_context_parallel_size": ("decode_context_parallel_size", "count"),
    "kv_cache_dtype": ("kv_cache_dtype", "text"),
    "block_size": ("block_size", "count"),
    "max_model_len": ("max_model_len", "tokens"),
    "max_num_seqs": ("max_num_seqs", "count"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "tokens"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "share"),
    "kv_cache_memory_bytes": ("kv_cache_memory_bytes", "bytes"),
    "num_gpu_blocks_override": ("num_gpu_blocks_override", "count"),
    "enable_prefix_caching": ("enable_prefix_caching", "switch"),
    "async_scheduling": ("async_scheduling", "switch"),
    "enforce_eager": ("enforce_eager", "switch"),
    "disable_hybrid_kv_cache_manager": ("disable_hybrid_kv_cache_manager", "switch"),
    "enable_expert_parallel": ("enable_expert_parallel", "switch"),
    "attention_backend": ("attention_backend", "text"),
    "mamba_cache_dtype": ("mamba_cache_dtype", "text"),
    "mamba_ssm_cache_dtype": ("mamba_ssm_cache_dtype", "text"),
    "num_speculative_tokens": ("num_speculative_tokens", "count"),
    "speculative_method": ("speculative_method", "text"),
    "draft_model": ("draft_model", "text"),
    # As the short flags say it.
    "tp": ("tensor_parallel_size", "count"),
    "pp": ("pipeline_parallel_size", "count"),
    "dp": ("data_parallel_size", "count"),
    "dcp": ("decode_context_parallel_size", "count"),
    "block": ("block_size", "count"),
    "max": ("max_model_len", "tokens"),
    "kv_memory": ("kv_cache_memory_bytes", "bytes"),
    # llama.cpp's own.
    "ctx_size": ("ctx_size", "tokens"),
    "parallel": ("parallel", "count"),
    "n_gpu_layers": ("n_gpu_layers", "count"),
}
"""Key -> the field of Deployment (or llama.cpp's argument) that it sets, and its form."""

BESIDE: Mapping[str, Form] = {
    "model": "text",
    "quantization": "text",
    "weights": "bytes",
    "sequences": "count",
    "instances": "count",
    "replicas": "count",
    "gpu_memory": "bytes",
    "gpu_free": "bytes",
    "host_memory": "bytes",
    "price_per_gpu_hour": "number",
}
"""What else a deployment says in one value."""

ENTRY_KEYS = ("name", "file", "server", "engine_args", "workload", "assert", "findings")
"""What else a deployment may have."""

CHECK_KEYS = (
    "version",
    "defaults",
    "models",
    "workloads",
    "assert",
    "findings",
    "deployments",
    "figures",
    "price_per_gpu_hour",
)
"""Keys at the top that checks alone read; other commands pass over them."""

TOP_BESIDE = tuple(key for key in BESIDE if key not in ("model", "replicas"))
"""What of that may stand at the top too, for every deployment and for kvcalc capacity."""

COMMAND_KEYS = ("lengths", "over", "units", "format", "preset", "at")
"""Keys at the top that checks pass over: defaults of other commands' options."""
