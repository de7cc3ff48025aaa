"""One setting changed: how kvcalc's flags and the engines' own spell it, and what it costs."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.units import format_count, format_number_of

__all__ = [
    "NO_SPECULATION",
    "Change",
    "at_once",
    "changed",
    "cost",
    "of_tokens",
    "share_change",
]

_FLAGS = {
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tensor_parallel_size": "--tp",
    "pipeline_parallel_size": "--pp",
    "data_parallel_size": "--dp",
    "decode_context_parallel_size": "--dcp",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "block_size": "--block",
    "max_model_len": "--max",
    "kv_cache_memory_bytes": "--kv-memory",
    "speculative_method": "--speculative-method",
}
_SWITCHES = {
    "enable_prefix_caching": "enable-prefix-caching",
    "enforce_eager": "enforce-eager",
    "disable_hybrid_kv_cache_manager": "disable-hybrid-kv-cache-manager",
    "enable_expert_parallel": "enable-expert-parallel",
}

_OWN_FLAGS = {
    "ctx_size": "--ctx-size",
    "parallel": "--parallel",
    "n_gpu_layers": "--n-gpu-layers",
}
"""Settings of engines that kvcalc has flags of its own for."""


_Question = TypeVar("_Question")
"""That a change is made to: sizing's Question, which this room does not import."""


class Change(NamedTuple):
    """A setting or two changed.

    Attributes:
        name: in words.
        settings: fields of Deployment by name.
        args: engine_args by name.
        quantization: the weights' format, where that changes.
        caution: what it costs.
    """

    name: str
    settings: dict[str, Any] = {}
    args: dict[str, Any] = {}
    quantization: str | None = None
    caution: str = ""

    def applied(self, question: _Question) -> _Question:
        """Return the question with the change made."""
        asked: Any = question
        made: _Question = asked._replace(
            deployment=changed(asked.deployment, self.settings, self.args),
            quantization=self.quantization or asked.quantization,
            weights_bytes=None if self.quantization else asked.weights_bytes,
        )
        return made

    def value(self, name: str) -> Any:
        """Return what a setting is changed to; None for one that is not."""
        return self.settings.get(name, self.args.get(name))

    @property
    def flags(self) -> tuple[str, ...]:
        """The change in kvcalc's own flags."""
        found = _flags_of(self.settings, self.args)
        return (*found, "--quantization", self.quantization) if self.quantization else found


_COSTS = (
    (
        *("gpu_memory_utilization", "mem_fraction_static", "free_gpu_memory_fraction"),
        *("cache_max_entry_count", "num_gpu_blocks_override", "swa_full"),
        "disable_hybrid_kv_cache_manager",
    ),
    (
        *("max_num_seqs", "max_running_requests", "parallel", "max_batch_size", "block_size"),
        *("max_num_batched_tokens", "chunked_prefill_size", "ubatch_size"),
    ),
    (
        *("enable_prefix_caching", "disable_radix_cache", "speculative_method", "enforce_eager"),
        *("disable_cuda_graph", "decode_context_parallel_size"),
    ),
    ("max_model_len", "ctx_size", "num_ctx"),
    ("kv_cache_dtype",),
    ("quantization", "n_cpu_moe", "n_gpu_layers", "no_kv_offload"),
    ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
)
"""Settings by what it costs to change them, the cheapest first: a larger share of the GPU, smaller
batches, speed, length, precision, other weights, more GPUs."""


def cost(change: Change) -> int:
    """Return the rank of a change by what it costs; 0 is the cheapest."""
    names = {*change.settings, *(name for name, value in change.args.items() if value is not None)}
    if change.quantization is not None:
        names.add("quantization")
    dearest = (rank for rank, known in enumerate(_COSTS) if not names.isdisjoint(known))
    return max(dearest, default=0)


NO_SPECULATION = "none"
"""How --speculative-method spells that no tokens are proposed."""


def changed(deployment: Deployment, settings: dict[str, Any], args: dict[str, Any]) -> Deployment:
    """Return a deployment with fields and engine_args changed; None takes an argument away."""
    own = {**deployment.engine_args, **args}
    own = {name: value for name, value in own.items() if value is not None}
    return msgspec.structs.replace(deployment, engine_args=own, **settings)


def share_change(setting: str, share: float, caution: str = "") -> Change:
    """Return an engine's share of a GPU's memory changed (see Engine.share)."""
    name, given = f"{setting.replace('_', ' ')} {share}", {setting: share}
    if setting in Deployment.__struct_fields__:
        return Change(name, given, caution=caution)
    return Change(name, {}, given, caution=caution)


def of_tokens(n: int) -> str:
    """Name a change of the longest sequence."""
    return f"maximum of {format_count(n)} tokens"


def at_once(n: int) -> str:
    """Name a change of the sequences at once."""
    return f"{format_number_of(n, 'sequence')} at once"


def _flags_of(settings: dict[str, Any], args: dict[str, Any]) -> tuple[str, ...]:
    """Return kvcalc's flags for fields of Deployment and engine_args."""
    found: list[str] = []
    for name, value in settings.items():
        if name in _SWITCHES:
            found.append(f"--{'' if value else 'no-'}{_SWITCHES[name]}")
        elif value is not None:
            found += [_FLAGS[name], str(value)]
        elif name == "speculative_method":
            found += [_FLAGS[name], NO_SPECULATION]
    for name, value in args.items():
        if value is None:
            continue
        word = str(value).lower() if isinstance(value, bool) else str(value)
        if name in _OWN_FLAGS:
            found += [_OWN_FLAGS[name], word]
        else:
            found += ["--engine-arg", f"{name}={word}"]
    return tuple(found)
