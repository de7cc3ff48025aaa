"""llama-server's flags that kvcalc does not read: those without a size, and those refused by name.

llama.cpp b11434 common/arg.cpp. Names are those of `args`: underscores, without dashes in front.
"""

from __future__ import annotations

__all__ = ["HARMLESS", "REFUSED"]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


HARMLESS = frozenset(
    _names("""
        version cl cache_list completion_bash list_devices offline
        t threads tb threads_batch threads_http C cpu_mask Cr cpu_range cpu_strict prio poll
        Cb cpu_mask_batch Crb cpu_range_batch cpu_strict_batch prio_batch poll_batch numa
        spec_draft_threads td threads_draft spec_draft_threads_batch tbd threads_batch_draft
        spec_draft_cpu_mask Cd cpu_mask_draft spec_draft_cpu_range Crd cpu_range_draft
        spec_draft_cpu_strict cpu_strict_draft spec_draft_prio prio_draft spec_draft_poll poll_draft
        spec_draft_cpu_mask_batch Cbd cpu_mask_batch_draft spec_draft_cpu_strict_batch
        cpu_strict_batch_draft spec_draft_prio_batch prio_batch_draft spec_draft_poll_batch
        poll_batch_draft
        lcs lookup_cache_static lcd lookup_cache_dynamic n predict n_predict keep
        cms checkpoint_min_step cache_idle_slots no_cache_idle_slots context_shift no_context_shift
        cb cont_batching nocb no_cont_batching cache_prompt no_cache_prompt cache_reuse
        dt defrag_thold perf no_perf warmup no_warmup check_tensors
        lzm lazy_mode repack nr no_repack no_host
        p prompt f file bf binary_file e escape no_escape r reverse_prompt sp special spm_infill
        samplers s seed sampler_seq sampling_seq ignore_eos temp temperature top_k top_p min_p
        top_nsigma top_n_sigma xtc_probability xtc_threshold typical typical_p repeat_last_n
        repeat_penalty presence_penalty frequency_penalty dry_multiplier dry_base dry_allowed_length
        dry_penalty_last_n dry_sequence_breaker adaptive_target adaptive_decay dynatemp_range
        dynatemp_exp mirostat mirostat_lr mirostat_ent l logit_bias grammar grammar_file
        j json_schema jf json_schema_file
        rope_scaling rope_scale rope_freq_base rope_freq_scale yarn_orig_ctx yarn_ext_factor
        yarn_attn_factor yarn_beta_slow yarn_beta_fast
        mmproj_auto no_mmproj no_mmproj_auto mmproj_offload no_mmproj_offload image_min_tokens
        image_max_tokens mtmd_batch_max_tokens video_fps video_timestamp_interval video_ffmpeg_dir
        a alias tags embd_normalize host port reuse_port path cors_origins cors_methods cors_headers
        cors_credentials no_cors_credentials api_prefix ui_config webui_config ui_config_file
        webui_config_file ui_mcp_proxy webui_mcp_proxy no_ui_mcp_proxy no_webui_mcp_proxy tools
        tools_runtime mcp_servers_config mcp_servers_json ag agent no_ag no_agent ui webui no_ui
        no_webui api_key api_key_file ssl_key_file ssl_cert_file chat_template_kwargs to timeout
        sse_ping_interval metrics props slots no_slots slot_save_path media_path
        models_autoload no_models_autoload jinja no_jinja reasoning_format rea reasoning
        reasoning_effort reasoning_budget reasoning_budget_message reasoning_preserve
        no_reasoning_preserve chat_template chat_template_file skip_chat_parsing
        no_skip_chat_parsing prefill_assistant no_prefill_assistant sps slot_prompt_similarity
        sleep_idle_seconds log_disable log_file log_jsonl no_log_jsonl log_prompts_dir log_colors
        v verbose log_verbose lv verbosity log_verbosity log_prefix no_log_prefix log_timestamps
        no_log_timestamps hft hf_token
        spec_draft_n_min draft_min draft_n_min spec_synth_len spec_synth_rates spec_draft_p_split
        draft_p_split spec_draft_p_min draft_p_min spec_draft_sampling
        spec_ngram_mod_n_min spec_ngram_mod_n_max spec_ngram_mod_n_match spec_ngram_simple_size_n
        spec_ngram_simple_size_m spec_ngram_simple_min_hits spec_ngram_map_k_size_n
        spec_ngram_map_k_size_m spec_ngram_map_k_min_hits spec_ngram_map_k4v_size_n
        spec_ngram_map_k4v_size_m spec_ngram_map_k4v_min_hits spec_ngram_size_n spec_ngram_size_m
        spec_ngram_min_hits
    """)
)
"""What changes no size that kvcalc tells: taken, and not looked at. Context checkpoints are told
up to their number, whatever lies between them."""

_MODEL = "it names a model; give that as MODEL"
_DRAFT = "it names a draft; give draft_model (--draft-model)"
_PRESET = "it stands for several settings; give them one by one"
_DRAFT_WEIGHTS = "it moves a draft's weights, which kvcalc does not place so; leave it out"
_EMBEDDING = "a server of embeddings makes other batches; kvcalc plans one that generates"

REFUSED: dict[str, str] = {
    **dict.fromkeys(
        _names("m model mu model_url dr docker_repo hf hfr hf_repo hff hf_file"),
        _MODEL,
    ),
    **dict.fromkeys(
        _names("md model_draft spec_draft_model hfd hfrd hf_repo_draft spec_draft_hf"), _DRAFT
    ),
    **dict.fromkeys(
        _names("mm mmproj mmu mmproj_url"),
        "its weights and buffers lie beside the cache; take them off the device's device_memory",
    ),
    **dict.fromkeys(
        _names("lora lora_scaled lora_init_without_apply control_vector control_vector_scaled"),
        "adapters take memory beside the cache; take it off the device's device_memory",
    ),
    "control_vector_layer_range": "it belongs to control vectors, which are not modelled",
    "rpc": "devices of other hosts: name them in device, with device_memory",
    "override_kv": "it changes the model's own keys; give a file that has them so",
    **dict.fromkeys(
        _names(
            "op_offload no_op_offload bs backend_sampling spec_draft_backend_sampling"
            " no_spec_draft_backend_sampling"
        ),
        "it changes buffers of the graph; leave it out",
    ),
    **dict.fromkeys(_names("embedding embeddings rerank reranking pooling"), _EMBEDDING),
    **dict.fromkeys(
        _names("models_dir models_preset models_max"),
        "a router starts a server a model; plan each of them",
    ),
    **dict.fromkeys(
        _names("spec_draft_n_max draft draft_n draft_max"),
        "give num_speculative_tokens (--num-speculative-tokens)",
    ),
    "spec_type": "give speculative_method (--speculative-method): mtp, draft or ngram",
    **dict.fromkeys(
        _names(
            "spec_draft_device devd device_draft spec_draft_override_tensor otd"
            " override_tensor_draft spec_draft_cpu_moe cmoed cpu_moe_draft spec_draft_n_cpu_moe"
            " spec_draft_ncmoe ncmoed n_cpu_moe_draft"
        ),
        _DRAFT_WEIGHTS,
    ),
    **dict.fromkeys(
        _names(
            "embd_gemma_default fim_qwen_1.5b_default fim_qwen_3b_default fim_qwen_7b_default"
            " fim_qwen_7b_spec fim_qwen_14b_spec fim_qwen_30b_default gpt_oss_20b_default"
            " gpt_oss_120b_default vision_gemma_4b_default vision_gemma_12b_default"
            " spec_default"
        ),
        _PRESET,
    ),
}
"""What sizes memory and is not modelled -> what to do instead."""
