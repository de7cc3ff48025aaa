"""`text-generation-launcher`, whose options are variables as well.

text-generation-inference launcher/src/main.rs at db931fc.
"""

from __future__ import annotations

from kvcalc.manifests.commands.flags import Grammar, flag_name, table
from kvcalc.manifests.commands.numbers import decimal, whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Kind, Reading
from kvcalc.manifests.commands.rules import Rule, model, number, one_of, text
from kvcalc.manifests.found import Word

__all__ = ["GRAMMAR", "read"]

_FLAGS = table(
    one="""
        model-id revision validation-workers sharded num-shard quantize speculate dtype
        kv-cache-dtype max-concurrent-requests max-best-of max-stop-sequences max-top-n-tokens
        max-input-tokens max-input-length max-total-tokens waiting-served-ratio
        max-batch-prefill-tokens max-batch-total-tokens max-waiting-tokens max-batch-size
        cuda-graphs hostname port|-p prometheus-port shard-uds-path master-addr master-port
        huggingface-hub-cache weights-cache-override cuda-memory-fraction rope-scaling rope-factor
        otlp-endpoint otlp-service-name cors-allow-origin api-key watermark-gamma watermark-delta
        ngrok-authtoken ngrok-edge tokenizer-config-path max-client-batch-size lora-adapters
        usage-stats payload-limit graceful-termination-timeout|-g
    """,
    switch="""
        trust-remote-code disable-custom-kernels json-output ngrok disable-grammar-support env|-e
        enable-prefill-logprobs
    """,
)
GRAMMAR = Grammar("text-generation-launcher", _FLAGS, {}, "3.3.6")

_FIELDS = {
    "max_total_tokens": "max_model_len",
    "num_shard": "tensor_parallel_size",
    "max_batch_prefill_tokens": "max_num_batched_tokens",
    "max_batch_size": "max_num_seqs",
}
_CACHES = {"fp8_e4m3fn": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
_ON = ("true", "1", "yes", "on", "t", "y")
_OFF = ("false", "0", "no", "off", "f", "n", "")


def _input(reading: Reading, given: Given) -> None:
    """Set the longest prompt; its old name beside the new one is refused."""
    before = reading.settings.get("max_input_tokens")
    reading.number("max_input_tokens", "arg", given, whole, 1)
    if before is not None and flag_name(before.written.lower()) != flag_name(given.written.lower()):
        reading.find(
            "contradiction",
            "error",
            f"{before.written} and {given.written} are one setting: TGI refuses both",
            "leave max-input-length out",
            given.word,
        )


def _speculate(reading: Reading, given: Given) -> None:
    if reading.number("speculate", "other", given, whole, 0) not in (None, 0):
        reading.not_modelled(given.written, given.word, "TGI's speculation is not modelled")


def _adapters(reading: Reading, given: Given) -> None:
    reading.not_modelled(given.written, given.word, "adapters take memory beside the cache")


def _truth(name: str, kind: Kind) -> Rule:
    def rule(reading: Reading, given: Given) -> None:
        if reading.unresolved(given.written, given.word):
            return
        said = given.word.text.strip().lower()
        if said in (*_ON, *_OFF):
            reading.put(name, said in _ON, kind, given.written, given.word)
        else:
            reading.bad(given.written, given.word, "write true or false")

    return rule


_RULES: dict[str, Rule] = {
    "model_id": model,
    **{name: number(field, "field", whole, 1) for name, field in _FIELDS.items()},
    "max_input_tokens": _input,
    "max_input_length": _input,
    "cuda_memory_fraction": number("cuda_memory_fraction", "arg", decimal, 1e-9, 1),
    "dtype": text("dtype", "field"),
    "kv_cache_dtype": one_of("kv_cache_dtype", "field", _CACHES),
    "quantize": text("quantization", "other"),
    "speculate": _speculate,
    "lora_adapters": _adapters,
    "sharded": _truth("sharded", "other"),
    "max_concurrent_requests": number("max_concurrent_requests", "other", whole, 1),
    "max_batch_total_tokens": number("max_batch_total_tokens", "other", whole, 1),
    "revision": text("revision", "other"),
    "rope_scaling": text("rope_scaling", "other"),
}
_VARIABLES: dict[str, Rule] = {
    "ATTENTION": text("attention_backend", "field"),
    "PREFIX_CACHING": _truth("enable_prefix_caching", "field"),
    "TGI_WIGGLE_ROOM": number("wiggle_room", "arg", decimal, 1e-9, 1),
}
"""Variables that are no options."""


def read(reading: Reading, start: Start) -> None:
    """Read a command of TGI's, over variables of the same names."""
    for name, word in reading.env.items():
        known = _FLAGS.get("--" + name.lower().replace("_", "-")) if name.isupper() else None
        own = known[0].name if known is not None else ""
        rule = _RULES.get(own) or _VARIABLES.get(name)
        if rule is not None and word.text.strip():
            rule(reading, Given(own or name, name, (word,)))
    found = split(start.words, GRAMMAR, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        if (rule := _RULES.get(given.name)) is not None:
            rule(reading, given)
    cure = "write the flag that it is a value of; the model is --model-id"
    reading.stray(found.alone, "text-generation-launcher", cure)
    _every_card(reading)
    _together(reading)


def _every_card(reading: Reading) -> None:
    """Take all the cards that are seen, as the launcher does (find_num_shards).

    It does so where neither num-shard is given nor sharded is false; TPUs it does not see.
    """
    gpu = reading.invocation.gpu
    seen = gpu.devices if gpu.visible is None else len(gpu.visible)
    told = "tensor_parallel_size" in reading.settings or reading.has("sharded") is False
    if told or seen is None or seen < 2 or "tpu" in (gpu.resource or ""):  # noqa: PLR2004
        return
    word = Word("", gpu.line or reading.invocation.line)
    reading.put("tensor_parallel_size", seen, "field", "num-shard", word)


def _together(reading: Reading) -> None:
    """Tell settings that cannot hold together."""
    longest, batch = reading.has("max_input_tokens"), reading.has("max_num_seqs")
    total, at_once = reading.has("max_model_len"), reading.has("max_concurrent_requests")
    if isinstance(longest, int) and isinstance(total, int) and longest >= total:
        setting = reading.settings["max_input_tokens"]
        reading.find(
            "contradiction",
            "error",
            f"{setting.written} {longest} is not below the {total} tokens of a request in all",
            "raise max-total-tokens, or lower max-input-tokens",
            Word("", setting.line, file=setting.file),
        )
    pool = reading.has("max_batch_total_tokens")
    if isinstance(pool, int) and isinstance(total, int) and pool < total:
        setting = reading.settings["max_batch_total_tokens"]
        reading.find(
            "contradiction",
            "error",
            f"{setting.written} {pool} is below the {total} tokens of one request: TGI refuses it",
            "raise max-batch-total-tokens, or lower max-total-tokens",
            Word("", setting.line, file=setting.file),
        )
    if isinstance(batch, int) and isinstance(at_once, int) and at_once < batch:
        setting = reading.settings["max_num_seqs"]
        reading.find(
            "unreachable",
            "warning",
            f"a batch of {batch} is never reached: no more than {at_once} requests are let in",
            "raise max-concurrent-requests, or lower max-batch-size",
            Word("", setting.line, file=setting.file),
        )
