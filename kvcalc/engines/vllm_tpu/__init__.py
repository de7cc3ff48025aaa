"""Engine `vllm-tpu`: vLLM on TPUs, by the plugin tpu-inference.

Read from source: tpu-inference at b8692ff (2026-08-22); vLLM's planner is the one of engine `vllm`
at its newest release. Nothing was run. Figures are one chip's: the plugin plans for all chips of a
replica at once, whose pages and memory are both tensor_parallel_size times as large.
"""

from __future__ import annotations

from functools import partial

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    NotModelledError,
    UnknownNameError,
)
from kvcalc.core.kind import divide
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines.releases import Releases
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.planning import plan_on
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.start_up import start_up_log as vllm_log
from kvcalc.engines.vllm.version import NEWEST
from kvcalc.engines.vllm_tpu.layers import IMPLEMENTATIONS, describe_for, implementation

__all__ = ["RELEASES", "plan", "start_up_log"]

_COMMIT = "b8692ff"
RELEASES = Releases("tpu-inference", NEWEST.number, NEWEST.number, commits=(_COMMIT,))
"""They are numbered as those of vLLM that they are for."""
_KNOWN = {
    "engine",
    "engine_version",
    "dtype",
    "tensor_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "engine_args",
}
_CHIP = Card("tpu", 0, (8, 0))
"""vLLM cannot ask a TPU for its memory, and takes the defaults of small cards."""


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on TPUs.

    Raises:
        UnsupportedError: what the plugin refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "vLLM on TPUs", "leave it out, or use --engine none")
    RELEASES.read(deployment.engine_version)
    given = {k: v for k, v in deployment.engine_args.items() if v is not None}
    for name in given:
        if name != "model_impl_type":
            raise UnknownNameError("setting of vLLM on TPUs", name, ("model_impl_type",))
    asked = str(given.get("model_impl_type", "auto"))
    if asked not in IMPLEMENTATIONS:
        raise UnknownNameError("model_impl_type", asked, IMPLEMENTATIONS)
    impl = implementation(model, asked)
    plain = msgspec.structs.replace(deployment, engine_version=None, engine_args={})
    return plan_on(_platform(impl), model, plain)


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return vLLM's lines about the cache; its line of available memory is not printed on TPUs.

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: of one chip; None where num_gpu_blocks_override fixes the blocks.
    """
    vllms = msgspec.structs.replace(plan, engine_version=str(NEWEST))
    return tuple(line for line in vllm_log(vllms, kv_cache_bytes) if "Available KV" not in line)


def _platform(impl: str) -> Platform:
    return Platform(
        engine="vllm-tpu",
        version=_COMMIT,
        card=_CHIP,
        describe=partial(describe_for, impl=impl),
        check=_check_split,
        convention=_convention,
        unsupported=_not_modelled,
        source=_source,
    )


def _check_split(model: ModelSpec, settings: Settings) -> None:
    """Refuse ways to split a model over chips: platforms/tpu_platform.py, check_and_update_config.

    Raises:
        UnsupportedError: MLA over several chips, which share sequences instead of rows.
    """
    if settings.tp > 1 and any(cache.kind == "mla" for _, cache in model.caches()):
        raise NotModelledError(
            "tpu-inference serves MLA with attention data parallelism: chips share sequences, and"
            " how many of them do is not modelled",
            hint="plan one chip (tensor_parallel_size 1) and the sequences that it gets",
        )
    if model.num_attention_heads is not None:
        divide(model.num_attention_heads, settings.tp, "attention heads")


def _convention(settings: Settings) -> tuple[str, ...]:
    step = (
        f"A step has {settings.max_num_batched_tokens:,} tokens and {settings.max_num_seqs:,}"
        " sequences, what vLLM takes where it cannot ask for the memory, unless given."
    )
    memory = (
        f"Unless its bytes are given, the cache gets {settings.memory_share} of the"
        " chips' memory, less what is in use after the weights are loaded."
    )
    null = "Block 0 is the null block: it is logged and allocated, and never handed out."
    return (step, memory, null)


def _not_modelled(layers: Layers, _grouping: Grouping, settings: Settings) -> tuple[str, ...]:
    read = f"tpu-inference's rules were read in its source ({_COMMIT})"
    found = [f"{read}, not compared with a running server"]
    if any(p.spec.kind == "window" and not p.spec.keeps_all for p in layers.placed):
        steps = settings.in_flight_tokens // settings.max_num_batched_tokens
        found.append(
            f"windows keep room for {steps} steps of tokens in flight; whether vLLM schedules ahead"
            " on TPUs was not found out (async_scheduling says it)"
        )
    if any(p.spec.kind == "mla" for p in layers.placed):
        found.append("MLA_TRANSPOSE_KV_CACHE keeps the rotary part unpadded: it is taken to be off")
    return tuple(found)


def _source(settings: Settings) -> str:
    return (
        f"tpu-inference {_COMMIT}: runner/kv_cache.py, get_kv_cache_shape_with_mesh;"
        f" runner/kv_cache_manager.py, get_kv_cache_spec; vLLM {settings.release}"
    )
