"""What `engine_args` may hold: TensorRT-LLM's own settings, each in its spelling.

TensorRT-LLM llmapi/llm_args.py: KvCacheConfig (alone, or as `kv_cache_config.NAME`) and the fields
of TorchLlmArgs that bear on the cache.
"""

from __future__ import annotations

from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
)

__all__ = [
    "KNOWN_ARGUMENTS",
    "NOT_MODELLED",
    "NO_BYTES",
    "Args",
    "arguments",
    "either",
    "flag",
    "fraction",
    "harmless",
    "whole",
    "windows",
]

Args = dict[str, str | int | float | bool | None]

_PREFIX = "kv_cache_config."

KNOWN_ARGUMENTS = (
    "enable_attention_dp",
    "enable_block_reuse",
    "free_gpu_memory_fraction",
    "host_cache_size",
    "mamba_ssm_cache_dtype",
    "max_attention_window",
    "max_batch_size",
    "max_beam_width",
    "max_seq_len",
    "max_tokens",
    "max_util_for_resume",
    "tokens_per_block",
    "use_kv_cache_manager_v2",
)
"""What the rules read."""

NO_BYTES = {
    "attention_dp_events_gather_period_ms": "how often events are gathered",
    "copy_on_partial_reuse": "whether a block in use is copied to be reused",
    "enable_partial_reuse": "whether a block is reused that matches in part",
    "event_buffer_max_size": "events are kept on the host",
    "mamba_ssm_philox_rounds": "how states are rounded",
    "onboard_blocks": "whether blocks on the host are brought back",
    "secondary_offload_min_priority": "which blocks go to the host",
    "use_uvm": "the PyTorch backend's manager does not read it",
}
"""Settings of KvCacheConfig that change nothing that is counted here -> what they are for."""

NOT_MODELLED = {
    "avg_seq_len": "how KVCacheManagerV2 shares its quota is not modelled: leave it out",
    "block_reuse_config": "turns of a conversation are not modelled: leave it out",
    "cross_kv_cache_fraction": "cross-attention's cache is not modelled: leave it out",
    "dtype": "name the cache's dtype with --kv-cache-dtype (kv_cache_dtype in Python)",
    "kv_cache_config": "give its fields one by one: kv_cache_config.max_tokens=4096",
    "mamba_ssm_stochastic_rounding": "it adds a seed a slot: leave it out",
    "mamba_state_config": "kept states of shared beginnings are not modelled: leave it out",
    "mamba_state_cache_interval": "kept states of shared beginnings are not modelled: leave it out",
    "max_gpu_total_bytes": "give the bytes of the cache with --kv-memory",
    "max_num_tokens": "the tokens of a step change what is left for the cache: give --kv-memory",
    "pipeline_parallel_size": "use --pp (pipeline_parallel_size in Python)",
    "pool_ratio": "how KVCacheManagerV2 shares its quota is not modelled: leave it out",
    "sink_token_length": "tokens that a window always keeps are not modelled: leave it out",
    "sparse_attention_config": "only a model's own sparse attention is modelled: leave it out",
    "speculative_config": "speculation is not modelled for TensorRT-LLM: leave it out",
    "tensor_parallel_size": "use --tp (tensor_parallel_size in Python)",
}
"""Settings that TensorRT-LLM has and that are refused -> what to do instead."""


def arguments(given: Args) -> Args:
    """Return the settings without the prefix of KvCacheConfig.

    Raises:
        UnsupportedError: a setting that is not modelled, with what to do instead.
        UnknownNameError: a setting that TensorRT-LLM has not.
        InvalidValueError: a setting given with the prefix and without.
    """
    found: Args = {}
    for spelled, value in given.items():
        name = spelled.removeprefix(_PREFIX)
        if name in found:
            raise InvalidValueError(f"{name} is given twice", hint=f"drop {_PREFIX}{name}")
        if name in NOT_MODELLED:
            raise NotModelledError(
                f"{spelled} of TensorRT-LLM is not modelled here", hint=NOT_MODELLED[name]
            )
        if name not in KNOWN_ARGUMENTS and name not in NO_BYTES:
            raise UnknownNameError(
                "TensorRT-LLM setting", spelled, sorted({*KNOWN_ARGUMENTS, *NO_BYTES})
            )
        found[name] = value
    return found


def harmless(args: Args) -> list[str]:
    """Return a note for each setting that changes no number."""
    return [f"{name} changes no size: {NO_BYTES[name]}" for name in args if name in NO_BYTES]


def whole(args: Args, name: str, least: int = 1) -> int | None:
    """Return a whole number of at least `least`; None where it is not given."""
    value = args.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise InvalidValueError(f"{name} is {value!r:.40}, not a whole number of at least {least}")
    return value


def flag(args: Args, name: str) -> bool | None:
    """Return true or false; None where it is not given."""
    value = args.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidValueError(f"{name} is {value!r:.40}, neither true nor false")
    return value


def either(name: str, theirs: int | None, ours: int | None) -> int | None:
    """Return what the engine's own spelling or the common one gives; None for neither."""
    if theirs is not None and ours is not None and theirs != ours:
        raise InvalidValueError(
            f"{name} {theirs} and {ours} contradict each other", hint="give one"
        )
    return ours if theirs is None else theirs


def fraction(args: Args) -> float:
    """Return free_gpu_memory_fraction, above 0 and below 1."""
    part = args.get("free_gpu_memory_fraction", 0.9)
    if not isinstance(part, float) or not 0 < part < 1:
        raise InvalidValueError(
            f"free_gpu_memory_fraction is {part!r:.40}, not a fraction between 0 and 1"
        )
    return part


def windows(value: str | float | bool | None, length: int) -> tuple[int, ...] | str | None:
    """Read max_attention_window: `model`, a number, or numbers with commas between.

    Windows longer than the sequence are cut to it.
    """
    if value is None or value == "model":
        return value if isinstance(value, str) else None
    parts = str(value).split(",")
    if isinstance(value, (bool, float)) or not all(p.strip().isdecimal() for p in parts):
        raise InvalidValueError(
            f"max_attention_window is {value!r:.40}, no pattern of windows",
            hint='write "4096,4096,131072", or "model" for the model\'s own windows',
        )
    sizes = tuple(min(length, int(part)) for part in parts)
    if min(sizes) < 1:
        raise InvalidValueError("max_attention_window has a window of no token")
    return sizes
