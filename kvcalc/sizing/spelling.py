"""How each engine spells a setting of a deployment, where it has a flag for it."""

from __future__ import annotations

__all__ = ["FIELDS", "KVCALC_ONLY", "ON_LOADING", "VARIABLES", "WORDS", "spelled"]

_VLLM = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--block-size",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "num_gpu_blocks_override": "--num-gpu-blocks-override",
    "enable_prefix_caching": "--enable-prefix-caching",
    "async_scheduling": "--async-scheduling",
    "enforce_eager": "--enforce-eager",
    "disable_hybrid_kv_cache_manager": "--disable-hybrid-kv-cache-manager",
    "enable_expert_parallel": "--enable-expert-parallel",
    "attention_backend": "--attention-backend",
    "mamba_cache_dtype": "--mamba-cache-dtype",
    "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
}
_SGLANG = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp-size",
    "pipeline_parallel_size": "--pp-size",
    "data_parallel_size": "--dp-size",
    "decode_context_parallel_size": "--dcp-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "block_size": "--page-size",
    "max_model_len": "--context-length",
    "max_num_seqs": "--max-running-requests",
    "max_num_batched_tokens": "--chunked-prefill-size",
    "attention_backend": "--attention-backend",
    "mamba_ssm_cache_dtype": "--mamba-ssm-dtype",
}
_TENSORRT = {
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "kv_cache_dtype": "--kv_cache_dtype",
    "max_model_len": "--max_seq_len",
    "max_num_seqs": "--max_batch_size",
}
_LMDEPLOY = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--tp",
    "data_parallel_size": "--dp",
    "kv_cache_dtype": "--quant-policy",
    "block_size": "--cache-block-seq-len",
    "max_model_len": "--session-len",
    "max_num_seqs": "--max-batch-size",
    "enable_prefix_caching": "--enable-prefix-caching",
}
_TGI = {
    "dtype": "--dtype",
    "tensor_parallel_size": "--num-shard",
    "kv_cache_dtype": "--kv-cache-dtype",
    "max_model_len": "--max-total-tokens",
    "max_num_seqs": "--max-batch-size",
    "max_num_batched_tokens": "--max-batch-prefill-tokens",
}
_LLAMA = {
    "max_num_seqs": "--parallel",
    "speculative_method": "--spec-type",
    "num_speculative_tokens": "--spec-draft-n-max",
}
FIELDS = {
    "vllm": _VLLM,
    "vllm-ascend": _VLLM,
    "vllm-tpu": _VLLM,
    "sglang": _SGLANG,
    "tensorrt-llm": _TENSORRT,
    "lmdeploy": _LMDEPLOY,
    "tgi": _TGI,
    "llama.cpp": _LLAMA,
}
"""Engine -> field of Deployment -> its flag."""

WORDS = {
    "sglang": {"fp8": "fp8_e4m3", "fp4": "fp4_e2m1"},
    "lmdeploy": {"int4": "4", "int8": "8", "fp8": "fp8", "fp8_e4m3": "fp8"},
    "tgi": {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn"},
    "llama.cpp": {"draft": "draft-simple", "draft_model": "draft-simple", "mtp": "draft-mtp"},
}
"""Engine -> kvcalc's word for a value -> its own."""

VARIABLES = {
    "vllm": {name: name for name in ("VLLM_PP_LAYER_PARTITION", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")},
    "sglang": {
        name: name
        for name in (
            *("SGLANG_MAMBA_CONV_DTYPE", "SGLANG_MAMBA_SSM_DTYPE", "SGLANG_SWA_EVICTION_INTERVAL"),
            *("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
        )
    },
    "tgi": {
        "attention_backend": "ATTENTION",
        "enable_prefix_caching": "PREFIX_CACHING",
        "wiggle_room": "TGI_WIGGLE_ROOM",
    },
}
"""Engine -> setting -> the variable that says it, where no flag does."""

KVCALC_ONLY = {
    "llama.cpp": ("device_memory", "compute_mib"),
    "lmdeploy": ("free_memory", "vocab_size", "flash_mla"),
    "tgi": ("free_memory", "total_memory"),
}
"""Engine -> engine_args that tell kvcalc of the machine, and nothing to the engine."""

ON_LOADING = {
    ("vllm", "fp8"): ("--quantization", "fp8"),
    ("vllm", "bnb-4bit"): ("--quantization", "bitsandbytes"),
    ("sglang", "fp8"): ("--quantization", "fp8"),
}
"""(engine, format) -> its flags, where it brings a checkpoint into that format as it loads it."""


def spelled(engine: str, name: str, value: object) -> str | None:
    """Return a setting as an engine's own flag; None where that is not known."""
    flag = FIELDS.get(engine, {}).get(name)
    if flag is None:
        return None
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {WORDS.get(engine, {}).get(str(value), value)}"
