"""Names of TensorRT-LLM's settings, with the class of llmapi/llm_args.py that they come from.

KvCacheConfig: every field of the 1.3 release candidates of early 2026, and those of later ones that
its documents (features/kvcache.md) and managers name. TorchLlmArgs: those that bear on the cache.
"""

from __future__ import annotations

KV_CACHE_CONFIG = (
    "attention_dp_events_gather_period_ms",
    "avg_seq_len",
    "block_reuse_config",
    "copy_on_partial_reuse",
    "cross_kv_cache_fraction",
    "dtype",
    "enable_block_reuse",
    "enable_partial_reuse",
    "event_buffer_max_size",
    "free_gpu_memory_fraction",
    "host_cache_size",
    "mamba_ssm_cache_dtype",
    "mamba_ssm_philox_rounds",
    "mamba_ssm_stochastic_rounding",
    "mamba_state_cache_interval",
    "mamba_state_config",
    "max_attention_window",
    "max_gpu_total_bytes",
    "max_tokens",
    "max_util_for_resume",
    "onboard_blocks",
    "pool_ratio",
    "secondary_offload_min_priority",
    "sink_token_length",
    "tokens_per_block",
    "use_kv_cache_manager_v2",
    "use_uvm",
)

TORCH_LLM_ARGS = (
    "enable_attention_dp",
    "kv_cache_config",
    "max_batch_size",
    "max_beam_width",
    "max_num_tokens",
    "max_seq_len",
    "pipeline_parallel_size",
    "sparse_attention_config",
    "speculative_config",
    "tensor_parallel_size",
)
