"""llama-server's options and variables: every one of b11434 to b11549, and what they replaced.

Their names are the engine's own tables; here is how they are spelled, and how many words each takes
(llama.cpp common/arg.cpp; the variables are those that the library of b11549 names).
"""

from __future__ import annotations

from kvcalc.engines.llamacpp.args import KNOWN, OLLAMA, OWN, full_name
from kvcalc.engines.llamacpp.flags import HARMLESS, REFUSED
from kvcalc.manifests.commands.flags import Flag, Grammar, Takes, gone, names

__all__ = ["GRAMMAR", "VARIABLES", "VARIABLE_NAMES"]

_ONE_DASH = names("""
    a ag b bf bs C Cb Cbd Cd Cr Crb Crd c cb cl cmoe cmoed cms cram ctk ctkd ctv ctvd ctxcp dev devd
    dr dt e f fa fit fitc fitt hf hfd hff hfr hfrd hft j jf kvo kvu l lcd lcs lm lv lzm m md mg mm
    mmu mu n ncffn ncmoe ncmoed ngl ngld no_ag no_kvu nkvo nocb np nr ot otd p r rea s sm sp sps t
    tb tbd td to ts ub v
    """)
_ALSO = names("""
    gpu_layers swa_checkpoints spec_draft_type_k spec_draft_type_v spec_draft_ngl gpu_layers_draft
    b c cmoe cram ctk ctkd ctv ctvd ctxcp dev fa fitc fitt kvo kvu lm mg ncffn ncmoe ngl ngld no_kvu
    nkvo np ot sm ts ub
""")
"""Further spellings of what is modelled."""

_SWITCHES = names("""
    version cl cache_list completion_bash list_devices offline swa_full kvu kv_unified no_kvu
    no_kv_unified cache_idle_slots no_cache_idle_slots context_shift no_context_shift perf no_perf
    e escape no_escape sp special warmup no_warmup spm_infill ignore_eos bs backend_sampling kvo
    kv_offload nkvo no_kv_offload repack nr no_repack no_host cb cont_batching nocb no_cont_batching
    mmproj_auto no_mmproj no_mmproj_auto mmproj_offload no_mmproj_offload cmoe cpu_moe check_tensors
    op_offload no_op_offload reuse_port cors_credentials no_cors_credentials ui_mcp_proxy
    webui_mcp_proxy no_ui_mcp_proxy no_webui_mcp_proxy ag agent no_ag no_agent ui webui no_ui
    no_webui embedding embeddings rerank reranking cache_prompt no_cache_prompt metrics props slots
    no_slots models_autoload no_models_autoload jinja no_jinja reasoning_preserve
    no_reasoning_preserve skip_chat_parsing no_skip_chat_parsing prefill_assistant
    no_prefill_assistant lora_init_without_apply log_disable log_jsonl no_log_jsonl v verbose
    log_verbose log_prefix no_log_prefix log_timestamps no_log_timestamps spec_draft_cpu_moe cmoed
    cpu_moe_draft spec_draft_backend_sampling no_spec_draft_backend_sampling embd_gemma_default
    fim_qwen_1.5b_default fim_qwen_3b_default fim_qwen_7b_default fim_qwen_7b_spec fim_qwen_14b_spec
    fim_qwen_30b_default gpt_oss_20b_default gpt_oss_120b_default vision_gemma_4b_default
    vision_gemma_12b_default spec_default
    """)
_EACH = names("""
    ot override_tensor otd override_tensor_draft spec_draft_override_tensor lora lora_scaled
    control_vector control_vector_scaled override_kv l logit_bias dry_sequence_breaker r
    reverse_prompt f file api_key
    """)


def _takes(name: str) -> Takes:
    if name in _SWITCHES:
        return "switch"
    if name == "control_vector_layer_range":
        return "many"
    return "each" if name in _EACH else "one"


def _flags() -> dict[str, tuple[Flag, bool]]:
    found = {}
    known = {*HARMLESS, *REFUSED, *KNOWN, *_ALSO} - {*OWN, *OLLAMA, "rs_seq"}
    for name in sorted(known):
        dashes = name.replace("_", "-")
        own = full_name(name)
        spellings = [f"-{dashes}"] if name in _ONE_DASH else [f"--{dashes}"]
        if name == "fit":
            spellings.append("--fit")
        for spelling in spellings:
            found[spelling] = Flag(own, _takes(name), spelling), True
    return found


_GONE = gone("""
    - b9093 one draft|--draft-n|--draft-max = --spec-draft-n-max
    - b9093 one draft-min|--draft-n-min = --spec-draft-n-min
    - b9093 one spec-ngram-size-n = --spec-ngram-simple-size-n
    - b9093 one spec-ngram-size-m = --spec-ngram-simple-size-m
    - b9093 one spec-ngram-min-hits = --spec-ngram-simple-min-hits
    - b11434 one -cd|--ctx-size-draft
    b10488 b11434 switch mlock = --load-mode mlock
    b10488 b11434 switch no-mmap = --load-mode none
    b10488 b11434 switch mmap = --load-mode mmap
    b10488 b11434 switch -dio|--direct-io = --load-mode dio
    - - switch -cnv|--conversation -no-cnv|--no-conversation
""")

GRAMMAR = Grammar("llama-server", _flags(), _GONE, "b11549", folds=True, equals=False, greedy=True)

VARIABLES = {
    "batch": "batch_size",
    "ubatch": "ubatch_size",
    "n_parallel": "parallel",
    "spec_draft_cache_type_k": "cache_type_k_draft",
    "spec_draft_cache_type_v": "cache_type_v_draft",
    "draft_max": "spec_draft_n_max",
    "checkpoint_min_spacing_nt": "checkpoint_min_step",
}
"""Variable, without LLAMA_ARG_ -> the option, where it is not of the same name."""

VARIABLE_NAMES = names("""
    agent alias api_key_file api_prefix backend_sampling cache_idle_slots cache_prompt cache_ram
    cache_reuse cache_type_k cache_type_v chat_template chat_template_file chat_template_kwargs
    checkpoint_min_spacing_nt context_shift cont_batching cors_credentials cors_headers cors_methods
    cors_origins cpu_moe ctx_checkpoints ctx_size defrag_thold device docker_repo draft_max
    draft_min embeddings endpoint_metrics endpoint_props endpoint_slots fit fit_ctx fit_estimate
    fit_target flash_attn frequency_penalty grp_attn_n grp_attn_w hf_file hf_repo host
    image_max_tokens image_min_tokens jinja kv_offload kv_unified kv_unified_per_slot lazy_mode
    load_mode log_co log_colors log_file log_jsonl log_prefix log_timestamps log_verbosity main_gpu
    mcp_servers_config mcp_servers_json min_p mmproj mmproj_auto mmproj_offload mmproj_url model
    models_autoload models_dir models_max models_preset model_url moe_cache_mib
    mtmd_batch_max_tokens no_host numa n_cpu_ffn n_cpu_moe n_gpu_layers n_gpu_layers_draft
    n_parallel n_predict offline override_tensor perf pooling port prefill_assistant
    presence_penalty reasoning reasoning_effort reasoning_preserve repack repeat_penalty reranking
    reuse_port rope_freq_base rope_freq_scale rope_scale rope_scaling_type rpc show_timings
    skip_chat_parsing slot_save_path spec_draft_backend_sampling spec_draft_cache_type_k
    spec_draft_cache_type_v spec_draft_cpu_moe spec_draft_hf_repo spec_draft_model
    spec_draft_n_cpu_moe spec_draft_n_max spec_draft_n_min spec_draft_p_min spec_draft_p_split
    spec_draft_sampling spec_synth_len spec_synth_rates spec_type split_mode sse_ping_interval
    ssl_cert_file ssl_key_file static_path swa_full tags temperature tensor_split think think_budget
    think_budget_message threads threads_http timeout tools tools_runtime top_k top_p ubatch batch
    ui ui_config ui_config_file ui_mcp_proxy video_ffmpeg_dir video_fps video_timestamp_interval
    yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_ext_factor yarn_orig_ctx
    split_mode mlock mmap verbose
    """)
"""Variables without LLAMA_ARG_; those of switches have a twin with NO_ in front."""
