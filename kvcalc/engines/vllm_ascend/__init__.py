"""Engine `vllm-ascend`: vLLM on Ascend NPUs, by the plugin vllm-ascend.

Read from source: vllm-ascend at 182b75e (2026-08-22), which runs on vLLM 0.27.1; vLLM's planner is
the one of engine `vllm` at that release. Nothing was run.
"""

from __future__ import annotations

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines.releases import Releases
from kvcalc.engines.vllm.card import Card
from kvcalc.engines.vllm.checks import check_split
from kvcalc.engines.vllm.grouping import Grouping
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.planning import plan_on
from kvcalc.engines.vllm.platform import Platform
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.start_up import start_up_log as vllm_log
from kvcalc.engines.vllm_ascend.layers import describe

__all__ = ["RELEASES", "plan", "start_up_log"]

_COMMIT = "182b75e"
_VLLM = "0.27.1"
RELEASES = Releases("vllm-ascend", (0, 27, 1), (0, 27, 1), commits=(_COMMIT,))
"""They are numbered as those of vLLM that they are for."""
_GIB = 2**30
_KNOWN = {
    "engine",
    "engine_version",
    "dtype",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
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
    "enable_expert_parallel",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "num_speculative_tokens",
    "speculative_method",
}
_NPU = Card("ascend", 64 * _GIB, (8, 0))
"""A die of 64 GiB, as A2 and A3 have; above 70 vLLM would take larger steps."""


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes on Ascend NPUs.

    Raises:
        UnsupportedError: what the plugin refuses for this model, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    deployment.refuse_others(_KNOWN, "vLLM on Ascend", "leave it out, or use --engine none")
    RELEASES.read(deployment.engine_version)
    return plan_on(_ASCEND, model, msgspec.structs.replace(deployment, engine_version=_VLLM))


def start_up_log(plan: CachePlan, kv_cache_bytes: int | None) -> tuple[str, ...]:
    """Return vLLM's lines about the cache, after the plugin's own of the memory (two decimals).

    Args:
        plan: as `plan` returns it.
        kv_cache_bytes: of one NPU; None where num_gpu_blocks_override fixes the blocks.
    """
    vllms = msgspec.structs.replace(plan, engine_version=_VLLM)
    told = [line for line in vllm_log(vllms, kv_cache_bytes) if "Available KV" not in line]
    if kv_cache_bytes is not None:
        told.insert(0, f"Available KV cache memory: {kv_cache_bytes / _GIB:.2f} GiB")
    return tuple(told)


def _convention(settings: Settings) -> tuple[str, ...]:
    step = (
        f"A step has {settings.max_num_batched_tokens:,} tokens and {settings.max_num_seqs:,}"
        " sequences (vLLM's defaults below 70 GiB), unless given."
    )
    memory = (
        "Unless its bytes are given, the cache gets what is left of"
        f" {settings.memory_share} of the NPU."
    )
    null = "Block 0 is the null block: it is logged and allocated, and never handed out."
    return (step, memory, null)


_READ = (
    f"vllm-ascend's rules were read in its source ({_COMMIT}), not compared with a running server,"
    " apart from one page that was logged"
)
_APART = (
    "quantised caches of a checkpoint (C8, sparse C8), the sparse KV offload, and the 2 MiB to"
    " which tensors are aligned under a KV connector"
)


def _not_modelled(_layers: Layers, _grouping: Grouping, _settings: Settings) -> tuple[str, ...]:
    return (_READ, _APART)


def _source(settings: Settings) -> str:
    return (
        f"vllm-ascend {_COMMIT}: worker/model_runner_v1.py, get_kv_cache_spec;"
        f" patch/platform/patch_mamba_config.py; vLLM {settings.release}"
    )


_ASCEND = Platform(
    engine="vllm-ascend",
    version=_COMMIT,
    card=_NPU,
    describe=describe,
    check=check_split,
    convention=_convention,
    unsupported=_not_modelled,
    source=_source,
)
