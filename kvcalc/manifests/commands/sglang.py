"""`python -m sglang.launch_server`, `sglang serve`, `python -m dynamo.sglang`.

SGLang 0.5.23 server_args.py and arg_groups/; which flags bear on memory is the engine's to say.
"""

from __future__ import annotations

import re

from kvcalc.engines.sglang.arguments import KNOWN_ARGUMENTS, full_name
from kvcalc.engines.sglang.dtypes import KV_WORDS
from kvcalc.engines.sglang.flags import HARMLESS, ON_HOST, REFUSED
from kvcalc.manifests.commands.flags import Flag, Grammar, Takes, flag_name, gone, names
from kvcalc.manifests.commands.numbers import decimal, iec_or_si, whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.commands.rules import (
    Rule,
    each,
    model,
    number,
    one_of,
    same,
    switch,
    text,
)
from kvcalc.manifests.commands.vllm_flags import DYNAMO
from kvcalc.manifests.commands.yaml_words import with_config

__all__ = ["read"]


def _chunk(reading: Reading, given: Given) -> None:
    """Set the tokens of a prefill's part; -1 puts it off, which only SGLang's own word says."""
    if given.word.text.strip() == "-1":
        reading.put("chunked_prefill_size", -1, "arg", given.written, given.word)
    else:
        reading.number("max_num_batched_tokens", "field", given, whole, 1)


def _overrides(reading: Reading, given: Given) -> None:
    """Note changes of the model's config that bear on its longest sequence."""
    said = reading.text("json_model_override_args", "other", given)
    if said is not None and re.search(r"rope|max_position|seq_length|context", said):
        reading.put("hf_overrides", said, "other", given.written, given.word)


def _experts(reading: Reading, given: Given) -> None:
    if reading.number("ep_size", "other", given, whole, 1) not in (None, 1):
        reading.put("enable_expert_parallel", True, "field", given.written, given.word)


_FIELDS = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "dcp_size": "decode_context_parallel_size",
    "page_size": "block_size",
    "max_running_requests": "max_num_seqs",
}
_WHOLE = (
    *("attn_dp_size", "max_mamba_cache_size", "cuda_graph_max_bs", "speculative_num_steps"),
    *("speculative_eagle_topk", "speculative_num_draft_tokens"),
)
_TEXTS = (
    *("mamba_radix_cache_strategy", "mamba_ssm_dtype", "hicache_host_memory_mode"),
    *("disaggregation_mode", "dsv4_attn_backend", "prefill_kv_cache_dequant_dtype"),
    *("speculative_algorithm", "prefill_attention_backend", "decode_attention_backend"),
    *("dsa_prefill_backend", "dsa_decode_backend"),
)
_SWITCHES = (
    *("enable_dp_attention", "enable_hierarchical_cache", "disable_overlap_schedule"),
    *("disable_hybrid_swa_memory", "enable_deepseek_v4_fp4_indexer"),
)
_SHOWN = ("quantization", "revision", "load_format", "served_model_name", "schedule_policy")
_CACHES = same((*KV_WORDS, "bf16", "fp4_e2m1"))
_DTYPES = {
    **same(("auto", "float16", "bfloat16", "float32")),
    "half": "float16",
    "float": "float32",
}
_MEANT = {
    "fp8": "fp8_e4m3 or fp8_e5m2",
    "fp8_e4m3fn": "fp8_e4m3",
    "bf16": "bfloat16",
    "fp16": "float16",
    **dict.fromkeys(("int8", "q8_0"), "fp8_e4m3, or mxfp8"),
    **dict.fromkeys(("int4", "fp4", "q4_0"), "fp4_mx_block16, or nvfp4"),
}
_RULES: dict[str, Rule] = {
    "model_path": model,
    "model": model,
    "context_length": number("max_model_len", "field", iec_or_si, 1),
    "max_total_tokens": number("max_total_tokens", "arg", iec_or_si, 1),
    "max_prefill_tokens": number("max_prefill_tokens", "other", iec_or_si),
    "chunked_prefill_size": _chunk,
    "mem_fraction_static": number("mem_fraction_static", "arg", decimal, 1e-9, 1),
    "swa_full_tokens_ratio": number("swa_full_tokens_ratio", "arg", decimal, 1e-9, 1),
    "mamba_full_memory_ratio": number("mamba_full_memory_ratio", "arg", decimal, 1e-9),
    "hicache_ratio": number("hicache_ratio", "arg", decimal, 1e-9),
    "hicache_size": number("hicache_size", "arg", whole, 0),
    "disaggregation_decode_extra_slots": number(
        "disaggregation_decode_extra_slots", "arg", whole, 0
    ),
    "kv_cache_dtype": one_of("kv_cache_dtype", "field", _CACHES, _MEANT),
    "attention_backend": text("attention_backend", "field"),
    "dtype": one_of("dtype", "field", _DTYPES, _MEANT),
    "json_model_override_args": _overrides,
    "disable_radix_cache": switch("enable_prefix_caching", "field", inverted=True),
    "disable_cuda_graph": switch("enforce_eager", "field"),
    "speculative_draft_model_path": text("draft_model", "field"),
    "speculative_draft_model": text("draft_model", "field"),
    "ep_size": _experts,
    **{name: number(field, "field", whole, 1) for name, field in _FIELDS.items()},
    **each(_WHOLE, lambda name: number(name, "arg", whole, 1)),
    **each(_TEXTS, lambda name: text(name, "arg")),
    **each(_SWITCHES, lambda name: switch(name, "arg")),
    **each(("nnodes", "node_rank"), lambda name: number(name, "other", whole, 0)),
    **each(_SHOWN, lambda name: text(name, "other")),
}
_NOTHING = ("0", "0.0")
_QUIET = names("quantization ep_size speculative_draft_model_path speculative_draft_model config")
"""Refused as engine_args, and read here in another way."""
_VARIABLES: dict[str, Rule] = {
    "SGLANG_SWA_EVICTION_INTERVAL": number("SGLANG_SWA_EVICTION_INTERVAL", "arg", whole, 0),
    **each(
        (
            *("SGLANG_MAMBA_CONV_DTYPE", "SGLANG_MAMBA_SSM_DTYPE"),
            "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
        ),
        lambda name: text(name, "arg"),
    ),
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": text(
        "allow_overwrite_longer_context_len", "other"
    ),
}


def read(reading: Reading, start: Start) -> None:
    """Read a command of SGLang's."""
    grammar = GRAMMAR
    if start.how.startswith("dynamo"):
        grammar = GRAMMAR._replace(flags={**DYNAMO, **GRAMMAR.flags})
    if start.how == "image":
        reading.find(
            "no-program",
            "error",
            "nothing starts the server: SGLang's image runs no server by itself",
            "put sglang serve, or python3 -m sglang.launch_server, in front",
            start.words[0] if start.words else None,
        )
    words = with_config(reading, start.words, grammar.flags, inline=True)
    found = split(words, grammar, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        _option(reading, given)
    alone = found.alone
    if alone and reading.model is None and start.how == "sglang serve":
        reading.named("MODEL", alone[0])
        alone = alone[1:]
    cure = "join it with its flag by =, or quote the value that it is part of"
    reading.stray(alone, "SGLang", cure)
    for name, rule in _VARIABLES.items():
        if name in reading.env:
            rule(reading, Given(name, name, (reading.env[name],)))


def _option(reading: Reading, given: Given) -> None:
    name = full_name(given.name)
    rule = _RULES.get(name)
    if rule is not None:
        rule(reading, given)
    if name not in REFUSED or name in _QUIET or not given.on:
        return
    words = given.words
    if rule is None and not any(word.unresolved for word in words):
        switched = GRAMMAR.flags[given.written][0].takes in ("switch", "pair")
        value = given.on if switched else ",".join(word.text.strip() for word in words)
        used = name in ON_HOST and given.word.text not in _NOTHING
        reading.put(name, value, "arg" if used else "other", given.written, given.word)
    if given.word.text not in _NOTHING:
        reading.not_modelled(given.written, given.word, REFUSED[name] or "it is not counted")


# SGLang's options: every one of 0.5.23, and those that older releases had.
#
# Their names are the engine's own tables; here is how many words each takes (server_args.py,
# arg_groups/fields), and what wheels of 0.4.4 to 0.5.22 had.

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
_BARE_SWITCHES = names("""
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
    if name in _BARE_SWITCHES:
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
