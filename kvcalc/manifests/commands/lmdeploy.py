"""`lmdeploy serve api_server MODEL`.

LMDeploy cli/serve.py and cli/utils.py at 1263d5c (0.16).
"""

from __future__ import annotations

from kvcalc.engines.lmdeploy.settings import POLICIES
from kvcalc.manifests.commands.flags import Grammar, table
from kvcalc.manifests.commands.numbers import decimal, whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.commands.rules import Rule, each, number, one_of, switch, text

__all__ = ["GRAMMAR", "read"]

_FLAGS = table(
    one="""
        server-name server-port proxy-url max-concurrent-requests backend log-level model-name
        max-log-len chat-template tool-call-parser reasoning-parser revision download-dir
        generation-config device logprobs-mode dllm-block-length dllm-unmasking-strategy
        dllm-denoising-steps dllm-confidence-threshold distributed-executor-backend
        kernel-block-size prefix-cache-state-budget prefix-cache-decode-state-interval dtype tp
        session-len max-batch-size cache-max-entry-count cache-block-seq-len max-prefill-token-num
        quant-policy model-format hf-overrides dp ep cp role migration-backend node-rank nnodes
        rope-scaling-factor num-tokens-per-iter max-prefill-iters async communicator dist-init-addr
        vision-max-batch-size speculative-algorithm speculative-draft-model
        speculative-num-draft-tokens
    """,
    switch="""
        allow-credentials ssl disable-fastapi-docs allow-terminate-by-client enable-abort-handling
        trust-remote-code eager-mode enable-return-routed-experts language-model-only
        enable-prefix-caching disable-metrics enable-microbatch enable-eplb
    """,
    many="""
        allow-origins allow-methods allow-headers allowed-media-domains api-keys adapters
        cudagraph-capture-batch-sizes
    """,
)
GRAMMAR = Grammar("LMDeploy", _FLAGS, {}, "0.16", abbreviates=True, dotted=True)

_FIELDS = {
    "tp": "tensor_parallel_size",
    "dp": "data_parallel_size",
    "session_len": "max_model_len",
    "max_batch_size": "max_num_seqs",
    "cache_block_seq_len": "block_size",
}
_CACHES = {"int4": "int4", "int8": "int8", "fp8": "fp8", "fp8_e5m2": "fp8_e5m2"}
_NOT_MODELLED = {
    "cp": "ranks that share a sequence are not modelled",
    "hf_overrides": "changes of the model's config are not looked at",
    "adapters": "adapters take memory beside the cache",
    "speculative_algorithm": "LMDeploy's speculation is not modelled",
    "language_model_only": "an encoder that is left out is counted",
}


def _entries(reading: Reading, given: Given) -> None:
    """Set the share of what is free; from 1 on it is a number of TurboMind's blocks."""
    value = reading.number("cache_max_entry_count", "arg", given, decimal, 1e-9)
    if value is None or value < 1:
        return
    del reading.settings["cache_max_entry_count"]
    if value == int(value) and value < 2**31:
        reading.put("num_gpu_blocks_override", int(value), "field", given.written, given.word)
        reading.find(
            "blocks-not-share",
            "note",
            f"{given.written} from 1 on is a number of blocks, which TurboMind alone takes",
            "write a share below 1 if that is meant",
            given.word,
        )
    else:
        reading.bad(given.written, given.word, "write a share of the free memory below 1")


def _policy(reading: Reading, given: Given) -> None:
    word = reading.text("quant_policy", "arg", given)
    if word is None:
        return
    numbers = {str(number): name for name, number in POLICIES.items()}
    name = numbers.get(word, "fp8" if word.lower() == "fp8_e4m3" else word.lower())
    del reading.settings["quant_policy"]
    if name not in POLICIES:
        reading.bad(given.written, given.word, f"write one of {', '.join(POLICIES)}")
    elif name in _CACHES:
        reading.put("kv_cache_dtype", _CACHES[name], "field", given.written, given.word)
    elif name != "none":
        reading.put("quant_policy", name, "arg", given.written, given.word)


_TEXTS = ("revision", "model_format", "device", "role")
_SHOWN = ("ep", "cp", "nnodes", "node_rank", "num_tokens_per_iter")
_RULES: dict[str, Rule] = {
    **{name: number(field, "field", whole, 1) for name, field in _FIELDS.items()},
    "kernel_block_size": number("kernel_block_size", "arg", whole, 1),
    "max_prefill_token_num": number("max_prefill_token_num", "arg", whole, 1),
    "prefix_cache_state_budget": number("prefix_cache_state_budget", "arg", whole, 0),
    "cache_max_entry_count": _entries,
    "quant_policy": _policy,
    "dtype": text("dtype", "field"),
    "backend": one_of("backend", "arg", {"pytorch": "pytorch", "turbomind": "turbomind"}),
    "enable_prefix_caching": switch("enable_prefix_caching", "field"),
    "eager_mode": switch("eager_mode", "other"),
    "model_name": text("served_model_name", "other"),
    **each(_SHOWN, lambda name: number(name, "other", whole, 0)),
    **each(_TEXTS, lambda name: text(name, "other")),
}


def read(reading: Reading, start: Start) -> None:
    """Read a command of LMDeploy's."""
    found = split(start.words, GRAMMAR, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        if (rule := _RULES.get(given.name)) is not None:
            rule(reading, given)
        if given.name in _NOT_MODELLED and given.word.text != "1":
            reading.not_modelled(given.written, given.word, _NOT_MODELLED[given.name])
    if found.alone:
        reading.named("MODEL", found.alone[0])
    cure = "join it with its flag by =, or quote the value that it is part of"
    reading.stray(found.alone[1:], "lmdeploy", cure)
