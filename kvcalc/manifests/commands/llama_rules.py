"""What becomes of each of llama-server's options.

Names are those of the engine's own settings (engine_args), which its options become.
"""

from __future__ import annotations

from kvcalc.manifests.commands.flags import names
from kvcalc.manifests.commands.numbers import whole
from kvcalc.manifests.commands.options import Given
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

__all__ = ["FLASH_WORDS", "ON", "QUIET", "RULES"]

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
_SWITCHES = ("kv_unified", "swa_full", "cpu_moe", "kv_offload", "no_kv_offload", "no_kv_unified")

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
    **each(_SWITCHES, _switch),
    "no_mmap": _mode("none"),
    "mlock": _mode("mmap+mlock"),
    **each(("embedding", "embeddings"), lambda _: switch("embeddings", "other")),
    **each(("rerank", "reranking"), lambda _: switch("reranking", "other")),
    **each(("pooling", "mmproj"), lambda name: text(name, "other")),
    **each(("hff", "hf_file"), lambda _: text("hf_file", "other")),
    **each(("a", "alias"), lambda _: text("served_model_name", "other")),
}
"""Option, in the engine's spelling -> what becomes of it."""
