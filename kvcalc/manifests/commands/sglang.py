"""`python -m sglang.launch_server`, `sglang serve`, `python -m dynamo.sglang`.

SGLang 0.5.23 server_args.py and arg_groups/; which flags bear on memory is the engine's to say.
"""

from __future__ import annotations

import re

from kvcalc.engines.sglang.arguments import full_name
from kvcalc.engines.sglang.dtypes import KV_WORDS
from kvcalc.engines.sglang.flags import ON_HOST, REFUSED
from kvcalc.manifests.commands.flags import names
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
from kvcalc.manifests.commands.sglang_flags import GRAMMAR
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
