"""`llama-server`, by its words and by the variables LLAMA_ARG_*.

llama.cpp common/arg.cpp (common_params_parse_ex) at b11434 to b11549.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import nearest, printable
from kvcalc.engines.llamacpp.args import KNOWN, OLLAMA, OWN, full_name
from kvcalc.engines.llamacpp.flags import HARMLESS, REFUSED
from kvcalc.manifests.commands.flags import Flag, Grammar, Takes, gone, names, number_of
from kvcalc.manifests.commands.numbers import whole
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
from kvcalc.manifests.found import Word

__all__ = ["read", "variables"]


_PREFIX = "LLAMA_ARG_"
_BARE_UNTIL, _BARE_GONE = 6303, 6341
"""Builds on either side of the change by which -fa wants a value."""


def read(reading: Reading, start: Start) -> None:
    """Read a command of llama-server's."""
    words = start.words
    if words and words[0].text in ("--server", "-s") and start.how == "image":
        words = words[1:]  # the script of the full image
    variables(reading)
    found = split(_flash(reading, words), GRAMMAR, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        _option(reading, given)
    reading.stray(found.alone, "llama-server", "write the flag that it is a value of")
    _speculation(reading)


def _option(reading: Reading, given: Given) -> None:
    name = full_name(given.name)
    rule = RULES.get(name)
    if rule is not None:
        rule(reading, given)
    if name in REFUSED and name not in QUIET and given.on:
        reading.not_modelled(given.written, given.word, REFUSED[name])


def _speculation(reading: Reading) -> None:
    """Leave the number of tokens out where nothing proposes any."""
    given = reading.settings.get("num_speculative_tokens")
    drafts = {"speculative_method", "draft_model"} & reading.settings.keys()
    if given is not None and not drafts:
        reading.settings["num_speculative_tokens"] = given._replace(kind="other")


def _flash(reading: Reading, words: Sequence[Word]) -> list[Word]:
    """Return words with a value for each bare -fa, which builds before b6341 took so."""
    found: list[Word] = []
    for at, word in enumerate(words):
        found.append(word)
        if word.text not in ("-fa", "--flash-attn", "--flash_attn"):
            continue
        after = words[at + 1] if at + 1 < len(words) else None
        if after is None or not (after.text.lower() in FLASH_WORDS or after.unresolved):
            found.append(word._replace(text="on"))
            _bare(reading, word, after)
    return found


def _bare(reading: Reading, word: Word, after: Word | None) -> None:
    build = (number_of(reading.version) or (_BARE_GONE,))[0]
    if build <= _BARE_UNTIL or reading.fork:
        return
    taken = ""
    if after is not None:
        shown = "the next word" if after.variables else printable(after.text)[:40]
        taken = f": it takes {shown} for it"
    reading.find(
        "bad-value",
        "error" if build >= _BARE_GONE else "warning",
        f"{word.text} wants a value since about b{_BARE_GONE}{taken}",
        f"write {word.text} on",
        word,
    )


def variables(reading: Reading, skip: frozenset[str] = frozenset()) -> None:
    """Read LLAMA_ARG_*, over which the command wins.

    Args:
        reading: takes what they say.
        skip: options that somebody else gives, in the engine's spelling.
    """
    for name, word in reading.env.items():
        if not name.startswith(_PREFIX):
            continue
        short = name.removeprefix(_PREFIX).lower()
        off = short.startswith("no_") and short not in VARIABLE_NAMES
        short = short.removeprefix("no_") if off else short
        own = full_name(VARIABLES.get(short, short))
        if short not in VARIABLE_NAMES:
            _unread(reading, name, word)
        elif own not in skip and (off or word.text.strip()):
            on = not off and word.text.strip().lower() in ON
            _option(reading, Given(own, name, (word,), on))


def _unread(reading: Reading, name: str, word: Word) -> None:
    near = nearest(name, [_PREFIX + known.upper() for known in VARIABLE_NAMES], 1)
    reading.find(
        "ignored-variable",
        "warning",
        f"llama-server {GRAMMAR.newest} does not read {printable(name)[:60]}",
        f"write {near[0]} if that is meant" if near else "leave it out",
        word,
    )


# llama-server's options and variables: every one of b11434 to b11549, and what they replaced.
#
# Their names are the engine's own tables; here is how they are spelled, and how many words each
# takes (llama.cpp common/arg.cpp; the variables are those that the library of b11549 names).

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


# What becomes of each of llama-server's options.
#
# Names are those of the engine's own settings (engine_args), which its options become.

ON = ("on", "true", "1", "enabled", "yes")
FLASH_WORDS = (*ON, "off", "false", "0", "disabled", "no", "auto", "-1")
_MODELS = names("m model mu model_url dr docker_repo")
_HUB = names("hf hfr hf_repo")
_DRAFTS = names("""
    md model_draft spec_draft_model hfd hfrd hf_repo_draft spec_draft_hf spec_draft_hf_repo
""")
_DRAFTED = names("spec_draft_n_max draft draft_n draft_max")
QUIET = _MODELS | _HUB | _DRAFTS | _DRAFTED | {"spec_type", "hff", "hf_file"}
"""Refused as engine_args, and read here in another way."""
_METHODS = ("mtp", "ngram", "eagle3", "dflash", "dspark", "draft")
_TWINS = {
    "kv_unified": "no_kv_unified",
    "no_kv_unified": "kv_unified",
    "kv_offload": "no_kv_offload",
    "no_kv_offload": "kv_offload",
}


def _layers(name: str) -> Rule:
    def rule(reading: Reading, given: Given) -> None:
        said = given.word.text.strip().lower()
        if said in ("auto", "all"):
            reading.put(name, said, "arg", given.written, given.word)
        else:
            reading.number(name, "arg", given, whole, -2)

    return rule


def _choice(name: str) -> Rule:
    def rule(reading: Reading, given: Given) -> None:
        word = given.word.text.strip().lower()
        if reading.unresolved(given.written, given.word):
            reading.put(name, None, "arg", given.written, given.word)
        elif word in FLASH_WORDS:
            value = "on" if word in ON else "auto" if word in ("auto", "-1") else "off"
            reading.put(name, value, "arg", given.written, given.word)
        else:
            reading.bad(given.written, given.word, "write on, off or auto")

    return rule


def _method(reading: Reading, given: Given) -> None:
    said = reading.text("speculative_method", "field", given)
    if said is None:
        return
    found = next((method for method in _METHODS if method in said), None)
    if found is not None:
        reading.put("speculative_method", found, "field", given.written, given.word)
    elif said in ("none", "off", ""):
        del reading.settings["speculative_method"]


def _tensors(reading: Reading, given: Given) -> None:
    """Set where tensors go; several of these count together."""
    before = reading.has("override_tensor")
    said = reading.text("override_tensor", "arg", given)
    if isinstance(before, str) and said is not None:
        reading.put("override_tensor", f"{before},{said}", "arg", given.written, given.word)


def _cache_type(name: str) -> Rule:
    known = one_of(name, "arg", _TYPES, _MEANT_TYPES)

    def rule(reading: Reading, given: Given) -> None:  # forks have types of their own
        (text(name, "arg") if reading.fork else known)(reading, given)

    return rule


def _stretched(reading: Reading, given: Given) -> None:
    """Note that positions are stretched: sequences may be longer than those of the training."""
    said = given.word.text.strip()
    if not given.word.unresolved and said not in ("", "1", "1.0", "0"):
        reading.put("rope_scaling", said, "other", given.written, given.word)


def _switch(name: str) -> Rule:
    def rule(reading: Reading, given: Given) -> None:
        reading.settings.pop(_TWINS.get(name, ""), None)
        reading.put(name, given.on, "arg", given.written, given.word)

    return rule


def _mode(mode: str) -> Rule:
    """Set the loading mode that a switch of builds before b11434 stands for."""

    def rule(reading: Reading, given: Given) -> None:
        if given.on:
            reading.put("load_mode", mode, "arg", given.written, given.word)

    return rule


_WHOLE = {
    "ctx_size": 0,
    "parallel": -1,
    "kv_unified_per_slot": 1,
    "batch_size": 1,
    "ubatch_size": 1,
    "main_gpu": 0,
    "n_cpu_moe": 0,
    "n_cpu_ffn": 0,
    "fit_ctx": 1,
    "ctx_checkpoints": 0,
    "cache_ram": -1,
}
"""Setting -> the least that makes sense."""
_CACHES = ("cache_type_k", "cache_type_v", "cache_type_k_draft", "cache_type_v_draft")
_TYPES = same(("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"))
_MEANT_TYPES = {
    **dict.fromkeys(("q8", "q8_k", "int8", "fp8", "fp8_e4m3", "fp8_e5m2"), "q8_0"),
    **dict.fromkeys(("q4", "q4_k", "q4_k_m", "int4", "fp4", "nvfp4"), "q4_0"),
    "q5": "q5_0",
    "q5_k": "q5_0",
    "q6_k": "q8_0",
    "fp16": "f16",
    "float16": "f16",
    "bfloat16": "bf16",
    "fp32": "f32",
    "float32": "f32",
    "auto": "f16, the default",
}
_TEXTS = ("tensor_split", "split_mode", "device", "fit_target", "load_mode")
_OF_CACHE = (
    "kv_unified",
    "swa_full",
    "cpu_moe",
    "kv_offload",
    "no_kv_offload",
    "no_kv_unified",
)
RULES: dict[str, Rule] = {
    **each(_MODELS | _HUB, lambda _: model),
    **each(_DRAFTS, lambda _: text("draft_model", "field")),
    **each(_DRAFTED, lambda _: number("num_speculative_tokens", "field", whole, 1)),
    "spec_type": _method,
    "override_tensor": _tensors,
    **each(("n_gpu_layers", "n_gpu_layers_draft"), _layers),
    **{name: number(name, "arg", whole, low) for name, low in _WHOLE.items()},
    **each(("flash_attn", "fit"), _choice),
    **each(_TEXTS, lambda name: text(name, "arg")),
    **each(_CACHES, _cache_type),
    **each(("rope_scale", "rope_freq_scale"), lambda _: _stretched),
    **each(_OF_CACHE, _switch),
    "no_mmap": _mode("none"),
    "mlock": _mode("mmap+mlock"),
    **each(("embedding", "embeddings"), lambda _: switch("embeddings", "other")),
    **each(("rerank", "reranking"), lambda _: switch("reranking", "other")),
    **each(("pooling", "mmproj"), lambda name: text(name, "other")),
    **each(("hff", "hf_file"), lambda _: text("hf_file", "other")),
    **each(("a", "alias"), lambda _: text("served_model_name", "other")),
}
"""Option, in the engine's spelling -> what becomes of it."""
