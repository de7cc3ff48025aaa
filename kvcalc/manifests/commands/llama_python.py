"""`python -m llama_cpp.server`: llama-cpp-python's server, one context for one request at a time.

Its settings are those of llama_cpp/server/settings.py: options with underscores, and variables.
"""

from __future__ import annotations

from kvcalc.manifests.commands.flags import Grammar, table
from kvcalc.manifests.commands.numbers import whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.commands.rules import Rule, many, model, number, one_of, text
from kvcalc.manifests.found import Word

__all__ = ["read"]

_FLAGS = table(
    one="""
        model model_alias n_gpu_layers split_mode main_gpu vocab_only use_mmap use_mlock seed n_ctx
        n_batch n_ubatch n_threads n_threads_batch rope_scaling_type rope_freq_base rope_freq_scale
        yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx mul_mat_q
        logits_all embedding offload_kqv flash_attn last_n_tokens_size lora_base lora_path numa
        chat_format clip_model_path cache cache_type cache_size hf_tokenizer_config_path
        hf_pretrained_model_name_or_path hf_model_repo_id draft_model draft_model_num_pred_tokens
        type_k type_v verbose host port ssl_keyfile ssl_certfile api_key interrupt_requests
        disable_ping_events root_path config_file
    """,
    many="tensor_split kv_overrides",
)
_GRAMMAR = Grammar("llama_cpp.server", _FLAGS, {}, "0.3", abbreviates=True)
_TYPES = {
    "0": "f32",
    "1": "f16",
    "2": "q4_0",
    "3": "q4_1",
    "6": "q5_0",
    "7": "q5_1",
    "8": "q8_0",
    "20": "iq4_nl",
    "30": "bf16",
}
"""ggml's numbers of cache types."""
_DEFAULT = 2048


def _truth(name: str) -> Rule:
    def rule(reading: Reading, given: Given) -> None:
        said = given.word.text.strip().lower() in ("true", "1")
        reading.put(name, "on" if said else "off", "arg", given.written, given.word)

    return rule


_RULES: dict[str, Rule] = {
    "model": model,
    "hf_model_repo_id": model,
    "model_alias": text("served_model_name", "other"),
    "n_ctx": number("ctx_size", "arg", whole, 0),
    "n_batch": number("batch_size", "arg", whole, 1),
    "n_ubatch": number("ubatch_size", "arg", whole, 1),
    "n_gpu_layers": number("n_gpu_layers", "arg", whole, -1),
    "main_gpu": number("main_gpu", "arg", whole, 0),
    "type_k": one_of("cache_type_k", "arg", _TYPES),
    "type_v": one_of("cache_type_v", "arg", _TYPES),
    "flash_attn": _truth("flash_attn"),
    "offload_kqv": _truth("kv_offload"),
    "tensor_split": many("tensor_split", "arg"),
}


def read(reading: Reading, start: Start) -> None:
    """Read a command of llama-cpp-python's server."""
    place = Word("", reading.invocation.line)
    reading.put("ctx_size", _DEFAULT, "arg", "llama_cpp.server's default", place)
    reading.put("parallel", 1, "arg", "llama_cpp.server's default", place)
    for name, word in reading.env.items():
        known = _FLAGS.get("--" + name.lower()) if name.isupper() else None
        rule = _RULES.get(known[0].name) if known is not None else None
        if rule is not None:
            rule(reading, Given(name.lower(), name, (word,)))
    found = split(start.words, _GRAMMAR, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        if (rule := _RULES.get(given.name)) is not None:
            rule(reading, given)
