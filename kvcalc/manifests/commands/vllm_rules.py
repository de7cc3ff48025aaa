"""What becomes of each of vLLM's options, and since when there is which.

vLLM 0.33 engine/arg_utils.py; the releases are those of the wheels that were looked at.
"""

from __future__ import annotations

from kvcalc.core.errors import InvalidValueError
from kvcalc.engines.vllm.arguments import GRAPH_MODES, counts_of
from kvcalc.engines.vllm.dtypes import KV_DTYPES
from kvcalc.engines.vllm.options import SINCE
from kvcalc.engines.vllm.served import architecture_named
from kvcalc.manifests.commands.flags import number_of
from kvcalc.manifests.commands.numbers import decimal, short, whole
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.reading import Reading
from kvcalc.manifests.commands.rules import (
    Rule,
    each,
    many,
    model,
    number,
    one_of,
    same,
    switch,
    text,
)
from kvcalc.models.documents import Plain

__all__ = ["DTYPES", "NOT_MODELLED", "ON_HOST", "RULES", "SINCE"]


def _length(reading: Reading, given: Given) -> None:
    """Set the maximum; `auto` and -1 make it fit, which is no number yet."""
    if given.word.text.strip().lower() in ("auto", "-1"):
        reading.put("max_model_len", "auto", "other", given.written, given.word)
    else:
        reading.number("max_model_len", "field", given, short, 1)


def _devices(reading: Reading, given: Given) -> None:
    if not given.word.unresolved:
        devices = tuple(part.strip() for part in given.word.text.split(",") if part.strip())
        reading.show(devices)


def _load_format(reading: Reading, given: Given) -> None:
    if reading.text("load_format", "other", given) == "dummy":
        reading.find(
            "dummy-weights",
            "warning",
            "--load-format dummy makes weights up: no model is loaded",
            "leave it out",
            given.word,
        )


def _limits(reading: Reading, given: Given) -> None:
    """Set how many inputs a prompt may have: JSON, `image=2,video=0`, or a key behind a dot."""
    if reading.unresolved(given.written, given.word):
        reading.put("limit_mm_per_prompt", None, "arg", given.written, given.word)
        return
    text = given.word.text.strip()
    if given.path:
        before = reading.has("limit_mm_per_prompt")
        kinds = f"{before}," if isinstance(before, str) and before else ""
        text = f"{kinds}{given.path[0]}={text}"
    try:
        counts_of(text)
    except InvalidValueError as fault:
        reading.bad(given.written, given.word, fault.hint)
        return
    reading.put("limit_mm_per_prompt", text, "arg", given.written, given.word)


def _captured(reading: Reading, given: Given) -> None:
    """Set what is captured as CUDA graphs: by name, or by the number that it had at first."""
    if given.path:
        value: Plain = given.word.text if given.path == ("cudagraph_mode",) else None
    else:
        config = reading.json(given)
        value = config.get("cudagraph_mode") if isinstance(config, dict) else None
    word = str(value).strip().lower()
    mode = GRAPH_MODES[int(word)] if word in ("0", "1", "2") else word
    if mode in GRAPH_MODES:
        reading.put("cudagraph_mode", mode, "arg", given.written, given.word)


def _level(reading: Reading, given: Given) -> None:
    """Set what the level captures (config/vllm.py, OPTIMIZATION_LEVEL_00 and _01)."""
    level = reading.text("optimization_level", "other", given)
    at = number_of(reading.version)
    if level in ("0", "1") and (at is None or at >= _LEVELS) and not reading.has("cudagraph_mode"):
        mode = GRAPH_MODES[int(level)]
        reading.put("cudagraph_mode", mode, "arg", given.written, given.word)


def _overrides(reading: Reading, given: Given) -> None:
    """Set the architecture that a config is to be read as; other changes of it are told alone."""
    reading.text("hf_overrides", "arg" if architecture_named(given.word.text) else "other", given)


def _cache(reading: Reading, given: Given) -> None:
    """Set the cache's dtype; a fork's own words stay, and the engine tells what it has not."""
    known = reading.engine == "vllm" and not given.word.text.strip().startswith("octave_")
    (_KNOWN_CACHE if known else text("kv_cache_dtype", "field"))(reading, given)


_FIELDS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "block_size"),
    *("decode_context_parallel_size", "max_num_seqs", "num_gpu_blocks_override"),
)
_WORDS = ("attention_backend", "mamba_cache_dtype", "mamba_ssm_cache_dtype")
_LEVELS = (0, 12)
"""--optimization-level; before, -O is the level of compilation alone."""
_MEANT = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32"}
_MEANT_CACHES = {
    **dict.fromkeys(("int8", "q8_0"), "fp8, or int8_per_token_head"),
    **dict.fromkeys(("int4", "q4_0", "fp4"), "nvfp4, or int4_per_token_head"),
    "fp8_e4m3fn": "fp8_e4m3",
    **_MEANT,
}
_KNOWN_CACHE = one_of(
    "kv_cache_dtype", "field", same((*KV_DTYPES, "ultraquant_4bit")), _MEANT_CACHES
)
DTYPES = {
    **same(("auto", "float16", "bfloat16", "float32")),
    "half": "float16",
    "float": "float32",
}
"""Choices of --dtype -> what they are called here."""

_SWITCHES = (
    *("enable_prefix_caching", "async_scheduling", "enforce_eager", "enable_expert_parallel"),
    "disable_hybrid_kv_cache_manager",
)
_SHOWN_WHOLE = (
    *("data_parallel_size_local", "data_parallel_rank", "data_parallel_start_rank", "nnodes"),
    *("prefill_context_parallel_size", "mamba_block_size", "max_cpu_loras", "node_rank"),
    *("max_seq_len_to_capture", "num_scheduler_steps", "max_cudagraph_capture_size"),
    *("max_loras", "max_lora_rank"),
)
_COUNTS = ("max_num_active_seqs", "max_num_partial_prefills", "max_long_partial_prefills")
_ARG_SWITCHES = (
    *("language_model_only", "enable_lora", "enable_chunked_prefill", "disable_chunked_mm_input"),
)
_GIB = ("cpu_offload_gb", "kv_offloading_size", "swap_space")
_SHOWN_TEXT = (
    *("quantization", "revision", "distributed_executor_backend", "runner", "task", "convert"),
    *("performance_mode", "kv_offloading_backend", "device"),
    "rope_scaling",
)
_SHOWN_SWITCH = (
    *("disable_sliding_window", "headless"),
    *("mm_encoder_only", "skip_mm_profiling", "fully_sharded_loras"),
    "data_parallel_hybrid_lb",
)
_SHOWN_MANY = ("served_model_name", "kv_cache_dtype_skip_layers", "cudagraph_capture_sizes")

RULES: dict[str, Rule] = {
    "model": model,
    "max_model_len": _length,
    "gpu_memory_utilization": number("gpu_memory_utilization", "field", decimal, 1e-9, 1),
    "max_num_batched_tokens": number("max_num_batched_tokens", "field", short, 1),
    "kv_cache_memory_bytes": number("kv_cache_memory_bytes", "field", short, 1),
    "dtype": one_of("dtype", "field", DTYPES, _MEANT),
    "kv_cache_dtype": _cache,
    "device_ids": _devices,
    "load_format": _load_format,
    "max_num_scheduled_tokens": number("max_num_scheduled_tokens", "other", short),
    **each(_FIELDS, lambda name: number(name, "field", whole, 1)),
    **each(_WORDS, lambda name: text(name, "field")),
    **each(_SWITCHES, lambda name: switch(name, "field")),
    **each(_SHOWN_WHOLE, lambda name: number(name, "other", whole)),
    **each(_GIB, lambda name: number(name, "arg", decimal, 0)),
    **each(_COUNTS, lambda name: number(name, "arg", whole, 1)),
    "long_prefill_token_threshold": number("long_prefill_token_threshold", "arg", whole),
    **each(_ARG_SWITCHES, lambda name: switch(name, "arg")),
    "limit_mm_per_prompt": _limits,
    "compilation_config": _captured,
    "optimization_level": _level,
    "hf_overrides": _overrides,
    **each(_SHOWN_TEXT, lambda name: text(name, "other")),
    **each(_SHOWN_SWITCH, lambda name: switch(name, "other")),
    **each(_SHOWN_MANY, lambda name: many(name, "other")),
}
"""Option -> what becomes of it; the others decide nothing that is read here."""

ON_HOST = ("offload_group_size", "cpu_offload_params")
"""Options that move weights to the host, so that what is left for the cache is not known."""

NOT_MODELLED = {
    "prefill_context_parallel_size": "ranks that share a prefill are not modelled",
    **dict.fromkeys(ON_HOST, "which weights leave the GPU is not known"),
    "hf_overrides": "changes of the model's config are not looked at",
    "rope_scaling": "a longer maximum by scaling is not looked at",
    "disable_sliding_window": "windows are counted as the model has them",
    "kv_cache_dtype_skip_layers": "every layer is counted in the one cache dtype",
    "mamba_block_size": "the block of states is taken to be vLLM's own",
    "kv_transfer_config": "buffers of a connector take memory beside the cache",
    "mm_encoder_only": "a server of the encoder alone is not modelled",
    "enable_sleep_mode": "its allocator is not modelled",
}
"""Option that bears on memory and is not counted -> why its figures may be off."""
