"""What the other rooms ask of TensorRT-LLM: see `engines.engine`."""

from __future__ import annotations

import json

from kvcalc.core.model import ModelSpec
from kvcalc.engines.command import Words
from kvcalc.engines.engine import Engine

__all__ = ["ENGINE"]

_CONFIG = "kvcalc-trtllm.yaml"

_FLAGS = {
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "kv_cache_dtype": "--kv_cache_dtype",
    "max_model_len": "--max_seq_len",
    "max_num_seqs": "--max_batch_size",
}

_IN_CACHE_CONFIG = {
    "block_size": "tokens_per_block",
    "enable_prefix_caching": "enable_block_reuse",
    "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
}


class _TensorRtLlm(Engine):
    share = "free_gpu_memory_fraction"
    page_block_size = True
    running = "max_batch_size"
    runs_replicas = True
    config_keys = {
        "block_size": "kv_cache_config.tokens_per_block",
        "free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "max_seq_len": "--max_seq_len",
        "max_batch_size": "--max_batch_size",
        "max_tokens": "kv_cache_config.max_tokens",
    }
    flags = _FLAGS

    def command(self, words: Words, model: ModelSpec, source: str) -> bool:
        words.start("trtllm-serve", source)
        words.say_fields()
        share = words.args.pop("free_gpu_memory_fraction", None)
        if share is not None:
            words.start("--kv_cache_free_gpu_memory_fraction", str(share))
        words.say_args(sign="_", known=("max_seq_len", "max_batch_size", "max_beam_width"))
        cache: dict[str, object] = {}
        size = words.fields.pop("kv_cache_memory_bytes", None)
        if size is not None:
            from kvcalc.core.capacity import logged_figures
            from kvcalc.engines import plan

            found = logged_figures(
                plan(model, words.deployment), words.deployment.kv_cache_memory_bytes
            )
            cache["max_tokens"] = found.kv_cache_tokens
            words.told.append(
                f"trtllm-serve takes no bytes of a cache: {size} B are so many tokens"
            )
        for name, theirs in _IN_CACHE_CONFIG.items():
            if name in words.fields:
                cache[theirs] = words.fields.pop(name)
        config: dict[str, object] = {}
        for name in [*words.args]:
            value = words.args.pop(name)
            if name == "enable_attention_dp":
                config[name] = value
            elif name == "max_attention_window" and isinstance(value, str):
                cache[name] = [int(part) for part in value.split(",")]
            else:
                cache[name.removeprefix("kv_cache_config.")] = value
        if cache:
            config["kv_cache_config"] = cache
        if config:
            words.start("--config", _CONFIG)
            words.told.append(f"what has no flag goes into {_CONFIG}: {json.dumps(config)}")
        return True


ENGINE = _TensorRtLlm("tensorrt-llm")
