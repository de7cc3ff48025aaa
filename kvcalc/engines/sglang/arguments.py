"""SGLang's own settings, in its spelling, as `engine_args` hold them.

Where a setting has a name of kvcalc's as well (page_size and block_size), either may be given; two
that contradict each other are refused.
"""

from __future__ import annotations

from typing import TypeVar

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.engines.sglang.flags import HARMLESS, REFUSED

__all__ = ["KNOWN_ARGUMENTS", "Arguments", "full_name", "refuse_others"]

_T = TypeVar("_T")
_Raw = str | int | float | bool | None

_INTS = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "dcp_size": 1,
    "attn_dp_size": 1,
    "page_size": 1,
    "context_length": 1,
    "max_total_tokens": 1,
    "max_running_requests": 1,
    "max_mamba_cache_size": 1,
    "chunked_prefill_size": -1,
    "cuda_graph_max_bs": 1,
    "hicache_size": 1,
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 1,
    "disaggregation_decode_extra_slots": 0,
    "SGLANG_SWA_EVICTION_INTERVAL": 0,
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": 0,
}
"""Name -> the least value that makes sense."""

_RATIOS = ("mem_fraction_static", "swa_full_tokens_ratio")
_FLOATS = ("mamba_full_memory_ratio", "hicache_ratio", *_RATIOS)

_FLAGS = (
    "enable_dp_attention",
    "enable_hierarchical_cache",
    "disable_radix_cache",
    "disable_overlap_schedule",
    "disable_hybrid_swa_memory",
    "disable_cuda_graph",
    "enable_deepseek_v4_fp4_indexer",
)

_CHOICES = {
    "mamba_radix_cache_strategy": ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    "mamba_ssm_dtype": ("float32", "bfloat16", "float16"),
    "SGLANG_MAMBA_CONV_DTYPE": ("float32", "bfloat16", "float16"),
    "SGLANG_MAMBA_SSM_DTYPE": ("float32", "bfloat16", "float16"),
    "hicache_host_memory_mode": ("cache", "buffer_only"),
    "disaggregation_mode": ("null", "prefill", "decode"),
    "dsv4_attn_backend": ("auto", "flashmla", "trtllm"),
    "SGLANG_DSV4_COMPRESS_STATE_DTYPE": ("float32", "bfloat16"),
    "prefill_kv_cache_dequant_dtype": ("auto", "fp8_e4m3", "nvfp4"),
    "speculative_algorithm": (
        *("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH"),
        *("DSPARK", "FROZEN_KV_MTP", "UNO"),
    ),
}

_BACKENDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
)

_WORDS = ("kv_cache_dtype", "dtype", *_BACKENDS)

KNOWN_ARGUMENTS = frozenset((*_INTS, *_FLOATS, *_FLAGS, *_CHOICES, *_WORDS))
"""What of `engine_args` is read here; the rest says nothing about sizes or is refused by name."""

_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "decode_context_parallel_size": "dcp_size",
    "attention_data_parallel_size": "attn_dp_size",
    "enable_hicache": "enable_hierarchical_cache",
    "cuda_graph_max_bs_decode": "cuda_graph_max_bs",
}
"""Further spellings of them."""


def full_name(flag: str) -> str:
    """Return a setting's own name, of a flag or one of its other spellings.

    >>> full_name("--tensor-parallel-size")
    'tp_size'
    """
    name = flag.lstrip("-").replace("-", "_")
    return _ALIASES.get(name, name)


class Arguments:
    """The settings of a deployment that are SGLang's own, checked when they are asked for.

    Raises:
        UnknownNameError: a setting that SGLang has not.
        UnsupportedError: one that is not modelled, and could move a size.
        InvalidValueError: two spellings of one that contradict each other.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._given: dict[str, _Raw] = {}
        for flag, value in deployment.engine_args.items():
            name = full_name(flag)
            if value is None or name in HARMLESS:
                continue
            if name in REFUSED:
                raise NotModelledError(
                    f"SGLang's {name} is not modelled", hint=REFUSED[name] or "leave it out"
                )
            if name not in KNOWN_ARGUMENTS:
                raise UnknownNameError(
                    "SGLang setting", flag, sorted({*KNOWN_ARGUMENTS, *_ALIASES})
                )
            if self._given.setdefault(name, value) != value:
                raise InvalidValueError(
                    f"{flag} {value} and {name} {self._given[name]} contradict each other",
                    hint="give one",
                )

    def integer(self, name: str, ours: int | None = None, *, called: str = "") -> int | None:
        """Return a whole number; `ours` is what the deployment's own field `called` says.

        Raises:
            InvalidValueError: no whole number, too small, or two different ones.
        """
        value = self._given.get(name)
        least = _INTS[name]
        if value is not None and (type(value) is not int or value < least):
            raise InvalidValueError(
                f"{name} is {value!r:.40}, not a whole number of at least {least}"
            )
        return self._same(name, value if isinstance(value, int) else None, ours, called)

    def number(self, name: str) -> float | None:
        """Return a number above 0; a fraction is at most 1.

        Raises:
            InvalidValueError: no such number.
        """
        value = self._given.get(name)
        if value is None:
            return None
        if isinstance(value, (str, bool)) or not value > 0:
            raise InvalidValueError(f"{name} is {value!r:.40}, not a number above 0")
        if name in _RATIOS and value > 1:
            raise InvalidValueError(f"{name} {value} is not above 0 and at most 1")
        return float(value)

    def flag(self, name: str, ours: bool | None = None, *, called: str = "") -> bool:
        """Return a switch; off where nothing is said.

        Raises:
            InvalidValueError: neither true nor false, or two that contradict each other.
        """
        value = self._given.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidValueError(f"{name} is {value!r:.40}, neither true nor false")
        return bool(self._same(name, value, ours, called))

    def word(self, name: str, ours: str | None = None, *, called: str = "") -> str | None:
        """Return a name.

        Raises:
            InvalidValueError: not text, or two different ones.
            UnknownNameError: a name that SGLang has not.
        """
        value = self._given.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidValueError(f"{name} is {value!r:.40}, not a name")
        choices = _CHOICES.get(name)
        if value is not None and choices is not None and value not in choices:
            raise UnknownNameError(name, value, choices)
        return self._same(name, value, ours, called)

    @staticmethod
    def _same(name: str, theirs: _T | None, ours: _T | None, called: str) -> _T | None:
        if theirs is not None and ours is not None and theirs != ours:
            raise InvalidValueError(
                f"{name} {theirs} and {called} {ours} contradict each other", hint="give one"
            )
        return ours if theirs is None else theirs


def refuse_others(deployment: Deployment) -> None:
    """Refuse settings that SGLang has no counterpart of.

    Raises:
        UnsupportedError: naming the setting, and SGLang's own where one is near.
    """
    near = {
        "gpu_memory_utilization": "SGLang's is engine_args mem_fraction_static: weights and cache",
        "num_gpu_blocks_override": "SGLang's is engine_args max_total_tokens",
        "mamba_cache_dtype": "SGLang's is the environment's SGLANG_MAMBA_CONV_DTYPE (engine_args)",
    }
    changed = deployment.changed()
    for name, hint in near.items():
        if name in changed:
            raise UnsupportedError(f"SGLang has no {name}", hint=hint)
