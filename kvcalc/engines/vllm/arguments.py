"""What `engine_args` may hold for vLLM: its own settings that are no fields of a deployment.

vLLM 0.33 engine/arg_utils.py, EngineArgs; names with underscores, as Python and YAML have them.
"""

from __future__ import annotations

import json
import math

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.model import PARTITION
from kvcalc.engines.vllm.options import SINCE, older_than
from kvcalc.engines.vllm.version import Release

__all__ = [
    "ENGINE_ARGS",
    "GRAPH_MODES",
    "NOT_MODELLED",
    "check_arguments",
    "count_of",
    "counts_of",
    "gib_of",
    "graph_mode",
    "limits_of",
    "switch_of",
    "takes_no_input",
    "whole_of",
]

_SWITCHES = (
    *("enable_lora", "fully_sharded_loras", "language_model_only"),
    *("enable_chunked_prefill", "disable_chunked_mm_input", "use_heterogeneous_vocab"),
)
_COUNTS = (
    *("max_loras", "max_lora_rank", "max_num_active_seqs"),
    *("max_num_partial_prefills", "max_long_partial_prefills"),
)
_FROM_ZERO = ("long_prefill_token_threshold",)
_SIZES = ("cpu_offload_gb", "kv_offloading_size", "mm_processor_cache_gb", "swap_space")
ENGINE_ARGS = (
    *_SWITCHES,
    *_COUNTS,
    *_FROM_ZERO,
    *_SIZES,
    "cudagraph_mode",
    "hf_overrides",
    "kv_offloading_backend",
    "limit_mm_per_prompt",
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    PARTITION,
)
"""What is read; none of it changes a block."""
GRAPH_MODES = ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise")
"""What is captured as CUDA graphs: cudagraph_mode of --compilation-config, in small letters."""

_MOVED = "which parameters move hangs on the checkpoint's tensors; cpu_offload_gb is modelled"
NOT_MODELLED = {
    "compilation_config": "graphs' memory would have to be known by what is captured",
    "cpu_offload_params": _MOVED,
    "cudagraph_capture_sizes": "graphs' memory would have to be known by what is captured",
    "disable_sliding_window": "every window's cache would have to be planned as that of all tokens",
    "enable_sleep_mode": "its allocator would have to be modelled",
    "kv_cache_dtype_skip_layers": "a cache dtype of each layer would be needed",
    "kv_transfer_config": "a connector's buffers would have to be known; kv_offloading_size is"
    " modelled",
    "lora_dtype": "slots are counted in 16 bits",
    "mamba_block_size": "vLLM's own block of states is planned",
    "max_cpu_loras": "the adapters' own sizes would be needed, on the host alone",
    "max_cudagraph_capture_size": "graphs' memory would have to be known by what is captured",
    "mm_encoder_only": "a server of the encoder alone keeps no cache",
    "offload_backend": _MOVED,
    "offload_group_size": _MOVED,
    "offload_num_in_group": _MOVED,
    "offload_params": _MOVED,
    "offload_prefetch_step": _MOVED,
    "prefill_context_parallel_size": "ranks that share a prefill would have to be planned",
    "quantization": "give it as --quantization (quantization in Python)",
    "rope_scaling": "put it into a copy of config.json and name that",
    "skip_mm_profiling": "what the encoder takes later, beside the share, is not known",
}
"""Settings that bear on memory and are refused -> what it would need, or what to do instead."""

_SWAP_GONE = (0, 18)
"""--swap-space was last seen in 0.17.1, and was not there any more in 0.18.1."""
_OFF = ("image", "video", "audio")
"""Kinds of input that towers are for."""


def check_arguments(deployment: Deployment, at: Release) -> None:
    """Check the names of engine_args, their values, and that the release has them.

    Raises:
        UnknownNameError: a setting that vLLM has not.
        UnsupportedError: one that the release has not, or that is not modelled.
        InvalidValueError: a value that it does not take.
    """
    for name, value in deployment.engine_args.items():
        if value is not None:
            _check_name(name, at)
    if gib_of(deployment, "swap_space") is not None and at.line >= _SWAP_GONE:
        raise UnsupportedError(
            f"vLLM {at} has no swap_space",
            hint="kv_offloading_size keeps blocks on the host; leave swap_space out",
        )
    for name in _SWITCHES:
        switch_of(deployment, name)
    for name in _COUNTS:
        whole_of(deployment, name)
    for name in _FROM_ZERO:
        count_of(deployment, name)
    for name in _SIZES:
        gib_of(deployment, name)
    limits_of(deployment)
    graph_mode(deployment)
    backend = deployment.engine_args.get("kv_offloading_backend")
    if backend not in (None, "native"):
        raise NotModelledError(
            f"a cache on the host by {backend!r:.40} is not modelled for vLLM",
            hint="native is; --engine lmcache counts LMCache's chunks",
        )


def _check_name(name: str, at: Release) -> None:
    if name in NOT_MODELLED:
        raise NotModelledError(f"vLLM's {name} is not modelled", hint=NOT_MODELLED[name])
    if name in Deployment.__struct_fields__:
        raise UnsupportedError(
            f"{name} is no engine_arg: it has an option of its own",
            hint=f"give --{name.replace('_', '-')} (Deployment.{name} in Python)",
        )
    if name not in ENGINE_ARGS:
        raise UnknownNameError("vLLM setting", name, (*ENGINE_ARGS, *NOT_MODELLED))
    if older_than(at, name):
        raise UnsupportedError(
            f"vLLM {at} has no {name}", hint=f"it was not seen before {SINCE[name]}"
        )


def switch_of(deployment: Deployment, name: str) -> bool | None:
    """Return a switch; None where it is not given.

    Raises:
        InvalidValueError: neither true nor false.
    """
    value = deployment.engine_args.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidValueError(
            f"{name} is {value!r:.40}, neither true nor false", hint=f"write {name}=true"
        )
    return value


def whole_of(deployment: Deployment, name: str) -> int | None:
    """Return a whole number from 1; None where it is not given.

    Raises:
        InvalidValueError: something else.
    """
    value = deployment.engine_args.get(name)
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidValueError(
            f"{name} is {value!r:.40}, not a whole number from 1", hint=f"write {name}=16"
        )
    return value if isinstance(value, int) else None


def count_of(deployment: Deployment, name: str) -> int | None:
    """Return a whole number from 0; None where it is not given.

    Raises:
        InvalidValueError: something else.
    """
    return 0 if deployment.engine_args.get(name) == 0 else whole_of(deployment, name)


def gib_of(deployment: Deployment, name: str) -> int | None:
    """Return the bytes of a setting that is given in GiB; None where it is not given, or nothing.

    Raises:
        InvalidValueError: no number from 0, or more than any host has.
    """
    value = deployment.engine_args.get(name)
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(float(value)) or not 0 <= float(value) <= 2**20:
        raise InvalidValueError(
            f"{name} is {value!r:.40}, not a number of GiB from 0", hint=f"write {name}=4"
        )
    return int(float(value) * 2**30) or None


def graph_mode(deployment: Deployment) -> str:
    """Return what is captured as CUDA graphs; vLLM's own choice where nothing is said.

    Raises:
        InvalidValueError: no mode of theirs.
    """
    if deployment.enforce_eager:
        return "none"
    word = deployment.engine_args.get("cudagraph_mode")
    mode = GRAPH_MODES[-1] if word is None else str(word).lower()
    if mode not in GRAPH_MODES:
        raise InvalidValueError(
            f"cudagraph_mode is {word!r:.40}", hint=f"one of {', '.join(GRAPH_MODES)}"
        )
    return mode


def limits_of(deployment: Deployment) -> dict[str, int] | None:
    """Return how many inputs of each kind a prompt may have; None where nothing is said.

    `{"image": 2}` as JSON, `image=2,video=0` as vLLM's older releases had it; of
    `{"image": {"count": 2, ...}}` the count.

    Raises:
        InvalidValueError: something else.
    """
    if switch_of(deployment, "language_model_only"):
        return dict.fromkeys(_OFF, 0)
    value = deployment.engine_args.get("limit_mm_per_prompt")
    if value is None:
        return None
    return counts_of(str(value))


def counts_of(text: str) -> dict[str, int]:
    """Return the inputs of each kind that a text of limit_mm_per_prompt says.

    >>> counts_of("image=2,video=0")
    {'image': 2, 'video': 0}

    Raises:
        InvalidValueError: something else.
    """
    try:
        counts = _counts(text.strip())
    except (ValueError, KeyError, AttributeError, RecursionError):
        counts = {"": -1}
    if any(type(count) is not int or count < 0 for count in counts.values()):
        raise InvalidValueError(
            f"limit_mm_per_prompt is {text!r:.40}, not a number of inputs of each kind",
            hint='write limit_mm_per_prompt=\'{"image": 2, "video": 0}\'',
        )
    return counts


def _counts(text: str) -> dict[str, int]:
    if not text.startswith("{"):
        pairs = (part.partition("=") for part in text.split(","))
        return {name.strip(): int(count) for name, _, count in pairs}
    return {
        str(name): count["count"] if isinstance(count, dict) else count
        for name, count in json.loads(text).items()
    }


def takes_no_input(limits: dict[str, int] | None) -> bool:
    """Whether every kind of input that towers are for is put off."""
    return limits is not None and all(limits.get(kind) == 0 for kind in _OFF)
