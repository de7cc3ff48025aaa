"""TensorRT-LLM's other settings: what changes the cache and is not modelled, and the harmless.

llmapi/llm_args.py (KvCacheConfig, BaseLlmArgs, TorchLlmArgs) of 1.2; what is modelled is in
`settings`.
"""

from __future__ import annotations

__all__ = ["HARMLESS", "NOT_MODELLED"]

NOT_MODELLED = {
    "context_parallel_size": "context parallelism",
    "cp_config": "context parallelism",
    "cross_kv_cache_fraction": "caches of cross-attention",
    "kv_connector_config": "blocks kept outside the engine",
    "max_gpu_total_bytes": "say it as the bytes of the cache (kv_cache_bytes)",
    "max_util_for_resume": "when KVCacheManagerV2 takes requests up again",
    "model_kwargs": "change the model's own file",
    "pp_partition": "layers of each pipeline stage",
    "sink_token_length": "tokens kept beside a window",
    "sparse_attention_config": "sparse attention that the model was not made with",
    "speculative_config": "say it as num_speculative_tokens and speculative_method",
    "use_uvm": "a cache in managed memory",
}
"""Setting -> what it is about, or what to give in its place."""

_HARMLESS = """
    attention_dp_events_gather_period_ms cache_transceiver_config copy_on_partial_reuse
    cuda_graph_config custom_tokenizer disable_overlap_scheduler enable_chunked_prefill
    enable_lm_head_tp_in_adp enable_lora enable_partial_reuse event_buffer_max_size gpus_per_node
    guided_decoding_backend iter_stats_max_iterations load_format lora_config
    max_num_tokens moe_cluster_parallel_size moe_expert_parallel_size moe_tensor_parallel_size
    onboard_blocks peft_cache_config request_stats_max_iterations revision scheduler_config
    secondary_offload_min_priority skip_tokenizer_init tokenizer tokenizer_mode tokenizer_revision
    trust_remote_code
    """

HARMLESS = frozenset(_HARMLESS.split())
"""Settings that leave the cache as it is: accepted, and not read."""
