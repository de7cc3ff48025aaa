"""SGLang's options: every one of 0.5.23, and those that older releases had.

Their names are the engine's own tables; here is how many words each takes (server_args.py,
arg_groups/fields), and what wheels of 0.4.4 to 0.5.22 had.
"""

from __future__ import annotations

from kvcalc.engines.sglang.arguments import KNOWN_ARGUMENTS
from kvcalc.engines.sglang.flags import HARMLESS, REFUSED
from kvcalc.manifests.commands.flags import Flag, Grammar, Takes, flag_name, gone, names

__all__ = ["GRAMMAR"]

_SPELLED = {
    "tp_size": "--tp-size --tensor-parallel-size",
    "pp_size": "--pp-size --pipeline-parallel-size",
    "dp_size": "--dp-size --data-parallel-size",
    "attn_dp_size": "--attn-dp-size --attention-data-parallel-size",
    "dcp_size": "--dcp-size --decode-context-parallel-size",
    "cuda_graph_max_bs": "--cuda-graph-max-bs-decode",
    "enable_hierarchical_cache": "--enable-hierarchical-cache --enable-hicache",
    "ep_size": "--ep-size --expert-parallel-size --ep",
}
"""Spellings of the options that have others than their name."""

_SWITCHES = names("""
    abort_on_priority_when_disabled allow_auto_truncate checkpoint_engine_wait_weights_before_ready
    constrained_json_disable_any_whitespace debug_cuda_graph delete_ckpt_after_loading
    disable_aiter_allreduce_fusion_in_decode disable_aiter_allreduce_fusion_in_prefill
    disable_attn_tp_gather disable_chunked_prefix_cache disable_cuda_graph
    disable_cuda_graph_padding disable_custom_all_reduce disable_decode_cuda_graph
    disable_fast_image_processor disable_flashinfer_autotune
    disable_flashinfer_cutlass_moe_fp4_allgather disable_hybrid_swa_memory
    disable_outlines_disk_cache disable_overlap_schedule disable_prefill_cuda_graph
    disable_priority_preemption disable_radix_cache disable_shared_experts_fusion
    disable_tokenizer_batch_decode disaggregation_decode_enable_offload_kvcache
    disaggregation_decode_enable_radix_cache disaggregation_enable_kv_checksum
    enable_adaptive_dispatch_to_encoder enable_aiter_allreduce_fusion enable_amd_monokernel
    enable_attn_tp_input_scattered enable_broadcast_mm_inputs_process enable_cache_report
    enable_cp_decode_attn_tp enable_cudagraph_gc enable_custom_logit_processor
    enable_deepseek_v4_fp4_indexer enable_dense_mlp_attn_tp enable_deterministic_inference
    enable_dp_attention enable_dp_attention_local_control_broadcast enable_dp_lm_head
    enable_draft_weights_cpu_backup enable_dsa_cache_layer_split enable_dynamic_batch_tokenizer
    enable_dynamic_chunking enable_elastic_expert_backup enable_encoder_swa_bounded_replay
    enable_eplb enable_flashinfer_allreduce_fusion enable_flexkv enable_forward_pass_metrics
    enable_fp32_lm_head enable_fused_moe_sum_all_reduce enable_hierarchical_cache enable_hisparse
    enable_http2 enable_http_worker_reuseport enable_int8_mamba_checkpoint enable_kv_cache_sharding
    enable_layernorm_sp enable_layerwise_nvtx_marker enable_lean_attention enable_linear_replayssm
    enable_linear_replayssm_spec enable_linker_mla_dedup enable_lmcache enable_lora
    enable_lora_overlap_loading enable_mamba_cache_stochastic_rounding
    enable_megamoe_for_layernorm_sp enable_memory_saver enable_metrics
    enable_metrics_for_all_schedulers enable_mfu_metrics enable_mis enable_mixed_chunk
    enable_mm_global_cache enable_mscclpp enable_multi_layer_eagle enable_multimodal
    enable_nccl_nvls enable_nvidia_megakernel enable_p2p_check enable_page_major_kv_layout
    enable_paged_experts enable_pd_role_switch enable_pdmux enable_precise_embedding_interpolation
    enable_prefill_cp enable_prefill_delayer enable_prefix_mm_cache enable_priority_scheduling
    enable_profile_cuda_graph enable_quant_communications enable_request_time_stats_logging
    enable_response_store enable_return_aux_hidden_states enable_return_hidden_states
    enable_return_indexer_topk enable_return_routed_experts enable_scattered_sconv
    enable_session_radix_cache enable_shared_experts_attn_tp enable_single_batch_overlap
    enable_ssl_refresh enable_streaming_session enable_strict_thinking enable_symm_mem
    enable_tokenizer_batch_encode enable_torch_compile enable_torch_compile_debug_mode
    enable_torch_symm_mem enable_trace enable_two_batch_overlap
    enable_unified_cache_external_linker enable_unified_memory enable_w4a4_mxfp4_megamoe
    enable_waterfill enable_watermark enable_weights_cpu_backup encoder_only
    enforce_disable_flashinfer_allreduce_fusion enforce_shared_experts_fusion
    export_metrics_to_file flashinfer_mla_disable_ragged grpc_mode incremental_streaming_output
    is_embedding language_model_only language_only log_requests lora_use_virtual_experts
    mlx_enable_sampling pre_warm_nccl prefill_only_disable_kv_cache quantize_and_serve
    remote_instance_weight_loader_start_seed_via_transfer_engine return_input_ids return_output_ids
    schedule_low_priority_values_first show_time_cost skip_server_warmup skip_tokenizer_init
    sleep_on_idle smg_grpc_mode speculative_adaptive
    speculative_dspark_align_verify_tokens_to_graph_tier speculative_use_block_verification
    speculative_use_rejection_sampling stream_response_default_include_usage strip_thinking_cache
    triton_attention_reduce_in_fp32 trust_mm_content_hashes trust_remote_code
    trust_request_chat_template use_ray weight_loader_disable_mmap
    weight_loader_drop_cache_after_load weight_loader_prefetch_checkpoints
    """)
_PAIRS = names("""
    enable_tf32_matmul enable_decoder_swa_bounded_replay enable_fused_qk_norm_rope
    enable_dsa_fused_indexer ple_offload_embedding dllm_fdfo experts_shared_outer_loras
    lora_strict_loading mm_enable_dp_encoder dcp_replicate_q_proj enable_tp_lm_head_all_to_all
    speculative_enable_w4a4_mxfp4_megamoe
    """)
_MANY = names("""
    numa_node gc_threshold encoder_urls encoder_register_urls return_aux_hidden_state_layer_ids
    cuda_graph_bs_decode cuda_graph_bs_prefill allowed_media_domains log_requests_target
    tokenizer_metrics_allowed_custom_labels bucket_time_to_first_token bucket_inter_token_latency
    bucket_e2e_request_latency prompt_tokens_buckets generation_tokens_buckets
    debug_tensor_dump_layers prefill_delayer_forward_passes_buckets
    prefill_delayer_wait_seconds_buckets flashinfer_autotune_skip_ops lora_target_modules lora_paths
    custom_weight_loader uvicorn_access_log_exclude_prefixes
    """)


def _takes(name: str) -> Takes:
    if name in _SWITCHES:
        return "switch"
    if name in _PAIRS:
        return "pair"
    if name == "model_checksum":
        return "maybe"
    return "many" if name in _MANY else "one"


def _flags() -> dict[str, tuple[Flag, bool]]:
    found: dict[str, tuple[Flag, bool]] = {}
    aliases = {flag_name(each) for spelled in _SPELLED.values() for each in spelled.split()}
    for name in sorted({*HARMLESS, *REFUSED, *KNOWN_ARGUMENTS}):
        if name.isupper() or name.startswith("SGLANG"):
            continue  # a variable
        if name in aliases and name not in _SPELLED:
            continue
        dashes = "--" + name.replace("_", "-")
        spellings = _SPELLED.get(name, dashes).split()
        flag = Flag(name, _takes(name), spellings[0])
        for spelling in spellings:
            found[spelling] = flag, True
            if flag.takes == "pair":
                found[f"--no-{spelling[2:]}"] = flag, False
    return found


_GONE = gone(
    """
    0.5.2  0.5.9  switch enable-ep-moe enable-deepep-moe = --ep-size
    0.5.2  0.5.9  one max-micro-batch-size = --pp-max-micro-batch-size
    0.5.9  0.5.12 one disaggregation-prefill-pp disaggregation-decode-tp disaggregation-decode-dp
    0.5.12 0.5.18 one hybrid-kvcache-ratio
    0.5.18 0.5.20 one mamba-scheduler-strategy = --mamba-radix-cache-strategy
    0.5.18 0.5.20 one cuda-graph-max-bs = --cuda-graph-max-bs-decode
    0.5.18 0.5.20 many cuda-graph-bs = --cuda-graph-bs-decode
    0.5.18 0.5.20 switch prefill-round-robin-balance stream-output
    0.5.18 0.5.20 switch enable-piecewise-cuda-graph disable-piecewise-cuda-graph
    0.5.18 0.5.20 one piecewise-cuda-graph-max-tokens piecewise-cuda-graph-compiler
    0.5.18 0.5.20 many piecewise-cuda-graph-tokens
    0.5.18 0.5.20 one nsa-prefill-backend = --dsa-prefill-backend
    0.5.18 0.5.20 one nsa-decode-backend = --dsa-decode-backend
    """,
    {
        "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
        "nsa_prefill_backend": "dsa_prefill_backend",
        "nsa_decode_backend": "dsa_decode_backend",
    },
)

GRAMMAR = Grammar(
    "SGLang",
    _flags(),
    _GONE,
    "0.5.23",
    abbreviates=True,
    usual=frozenset(("--tp", "--dp")),
    meant={"--pp": "--pp-size", "--quant": "--quantization"},
)
