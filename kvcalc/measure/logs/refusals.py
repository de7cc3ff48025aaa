"""What lifts a refusal that a log tells: settings out of the line's own figures.

Where the model is known a new plan is asked first: what it refuses again is not told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

from kvcalc.core.capacity import holds, smallest_budget
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, NotModelledError, UnsupportedError
from kvcalc.core.logs import Fact
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.changes import changed
from kvcalc.measure.logs.predict import cache_budget

__all__ = ["lifted"]

_Facts = Mapping[str, Fact]
_MOST_SHARE = 0.98
_STEPS = 1000


class _Cure(NamedTuple):
    """A setting to change: to a figure of the log, or to nothing that a figure tells."""

    setting: str
    figure: str = ""
    why: str = ""


_CURES: dict[str, tuple[_Cure, ...]] = {
    "sequences-over-state-blocks": (
        _Cure("max_num_seqs", "num_gpu_blocks", "a block of the cache for the state of each"),
    ),
    "graphs-over-state-blocks": (
        _Cure("max_num_seqs", "num_gpu_blocks", "a block of the cache for the state of each"),
    ),
    "prompt-over-step": (
        _Cure("max_num_batched_tokens", "max_model_len", "a step that takes a whole prompt"),
        _Cure("max_model_len", "max_num_batched_tokens", "prompts that a step takes"),
    ),
    "step-below-sequences": (
        _Cure("max_num_seqs", "max_num_batched_tokens", "a token of a step for each"),
        _Cure("max_num_batched_tokens", "max_num_seqs", "a token of a step for each sequence"),
    ),
    "block-over-step": (
        _Cure("max_num_batched_tokens", "attention_block_size", "a step that fills a block"),
    ),
    "encoder-over-step": (
        _Cure("max_num_batched_tokens", "item_tokens", "a step that takes a whole input"),
    ),
    "length-over-model": (
        _Cure("max_model_len", "longest_of_model", "the longest of the model's own config"),
    ),
    "threshold-over-length": (_Cure("long_prefill_token_threshold", "max_model_len"),),
    "active-over-sequences": (_Cure("max_num_active_seqs", "max_num_seqs"),),
    "proposals-not-divided": (
        _Cure("num_speculative_tokens", "n_predict", "what the model's own layers propose"),
    ),
    "adapters-on-host": (_Cure("max_cpu_loras", "max_loras"),),
}
"""Refusal -> settings that lift it, the cheapest first."""

_WORDS: dict[str, str] = {
    "bfloat16-on-old-gpu": "--dtype half",
    "float16-refused": "--dtype bfloat16",
    "fp8-e5m2-checkpoint": "--kv-cache-dtype fp8_e4m3",
    "nvfp4-with-mla": "--kv-cache-dtype fp8",
    "experts-needed": "leave --enable-expert-parallel out",
    "hybrid-manager-needed": "leave --disable-hybrid-kv-cache-manager out",
    "async-with-stages": "leave --async-scheduling out",
    "async-with-proposals": "leave --async-scheduling out",
    "shared-kv-over-stages": "--pipeline-parallel-size 1, with tensor parallelism instead",
    "stages-not-served": "--pipeline-parallel-size 1, with tensor parallelism instead",
    "heads-over-ranks": "a --tensor-parallel-size that divides the heads",
    "width-over-ranks": "a --tensor-parallel-size that divides the width",
    "kernel-width-over-ranks": "a smaller --tensor-parallel-size",
    "quantised-width-over-ranks": "a smaller --tensor-parallel-size, or --enable-expert-parallel"
    " for experts",
    "context-parallel-over-heads": "a smaller --decode-context-parallel-size, or more tensor ranks",
    "prefixes-need-chunks": "--no-enable-prefix-caching, or prefills in chunks",
    "step-below-drafts": "a larger --max-num-batched-tokens",
    "step-below-adapter-drafts": "a larger --max-num-batched-tokens, or fewer --max-num-seqs",
    "graphs-below-proposals": "more --max-num-seqs, or fewer proposed tokens",
    "stage-partition": "a VLLM_PP_LAYER_PARTITION with a number for each stage that adds up to the"
    " model's layers",
    "partial-prefills": "as many --max-num-partial-prefills as --max-long-partial-prefills",
    "block-not-taken": "one of the block sizes that the line lists, or none",
    "adapter-rank": "the next larger --max-lora-rank of those that the line lists",
    "swap-over-host": "a smaller --swap-space (0 keeps none)",
    "no-attention-backend": "another --kv-cache-dtype, no --block-size, no --attention-backend",
    "cpu-offload-groups": "no --cpu-offload-gb, or vLLM 0.20.0 or later",
    "too-few-gpus": "a node with as many GPUs as ranks, or fewer ranks if the weights fit on them",
    "unserved-model": "a newer release of the engine, or another engine",
    "memory-freed-meanwhile": "start again once nothing else starts or ends on the GPU",
}
"""Refusal that no figure of the log lifts -> what to do."""


_OWN_CURES: dict[str, dict[str, tuple[_Cure, ...]]] = {
    "sglang": {
        "length-over-model": (
            _Cure("context_length", "longest_of_model", "the longest of the model's own config"),
        ),
    },
}
"""Engine -> refusal -> settings that lift it there, as _CURES."""

_OWN_WORDS: dict[str, dict[str, str]] = {
    "sglang": {
        "cache-dtype-refused": "--kv-cache-dtype auto or fp8_e4m3",
        "chunk-not-whole-pages": "a --chunked-prefill-size that is a multiple of --page-size",
        "contradiction": "leave --enable-hierarchical-cache or --disable-radix-cache out",
        "gpu-too-old": "a newer GPU",
        "no-attention-backend": "another --attention-backend, or none",
        "groups-over-ranks": "a --dp-size that divides --tp-size",
        "heads-over-ranks": "a --tp-size that divides the heads",
        "host-cache-too-large": "a smaller --hicache-ratio or --hicache-size, or more memory of the"
        " host",
        "host-cache-too-small": "--hicache-ratio 2, or a larger --hicache-size",
        "length-over-model": "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 lets more pass",
        "no-room-for-requests": "a higher --mem-fraction-static, more GPUs, or, where one is given,"
        " a larger --max-mamba-cache-size or --max-running-requests",
        "no-room-for-states": "a higher --mem-fraction-static, --mamba-ssm-dtype bfloat16, or more"
        " GPUs",
        "speculation-settings": "--speculative-eagle-topk 1, without pipeline stages",
        "state-tracking": "--mamba-radix-cache-strategy extra_buffer, or --disable-radix-cache",
        "window-pool-too-small": "a higher --swa-full-tokens-ratio, or more memory for the cache",
    },
    "tensorrt-llm": {
        "chunk-not-whole-pages": "a --max_num_tokens that is a multiple of tokens_per_block",
        "experts-over-ranks": "an --ep_size that divides --tp_size",
        "heads-over-ranks": "a --tp_size that divides the heads",
        "length-over-cache": "a higher free_gpu_memory_fraction, or a shorter --max_seq_len",
        "prefixes-of-states": "enable_block_reuse false in kv_cache_config",
        "no-memory-for-blocks": "a higher free_gpu_memory_fraction, more GPUs, or smaller weights",
    },
}
"""Engine -> refusal -> what to do there, as _WORDS, which are vLLM's."""


def lifted(
    code: str,
    facts: _Facts,
    model: ModelSpec | None,
    deployment: Deployment,
    made: CachePlan | None,
) -> Iterator[str]:
    """Yield what lifts a refusal.

    Args:
        code: of the refusal; "" for none.
        facts: the log's figures.
        model: None where it is not known.
        deployment: as the log tells it.
        made: the plan of both; None where there is none.
    """
    own = deployment.engine in _OWN_WORDS
    for cure in (_OWN_CURES.get(deployment.engine, {}) if own else _CURES).get(code, ()):
        fact = facts.get(cure.figure)
        if fact is None or not isinstance(fact.low, int) or fact.low < 1:
            continue
        if _refused_again(code, cure.setting, fact.low, model, deployment):
            continue
        flag = f"--{cure.setting.replace('_', '-')} {fact.low}"
        yield f"{flag}: {cure.why}" if cure.why else flag
    words = _OWN_WORDS.get(deployment.engine, _WORDS)
    if code in words:
        yield words[code]
    if made is not None and made.floors:
        yield from _more_blocks(facts, deployment, made)


def _refused_again(
    code: str, setting: str, value: int, model: ModelSpec | None, deployment: Deployment
) -> bool:
    """Whether a plan with the setting is refused for the same reason."""
    if model is None or deployment.engine != "vllm":
        return False
    field = setting in Deployment.__struct_fields__
    given = {setting: value}
    try:
        plan(model, changed(deployment, given if field else {}, {} if field else given))
    except NotModelledError:
        return False
    except UnsupportedError as error:
        return error.code == code
    except KvcalcError:
        return False
    return False


def _more_blocks(facts: _Facts, deployment: Deployment, made: CachePlan) -> Iterator[str]:
    """Yield the share of the GPU with which there are as many blocks as the settings ask for."""
    span = cache_budget(made, facts)
    wanted = smallest_budget(made)
    total = facts.get("total_memory")
    gpu = deployment.gpu
    size = total.low if total is not None else None
    if size is None and isinstance(gpu, GpuSpec):
        size = gpu.memory_bytes
    if span is None or wanted is None or not isinstance(size, int) or wanted <= span.low:
        return
    logged = facts.get("gpu_memory_utilization")
    share = deployment.gpu_memory_utilization if logged is None else logged.high
    if share is None:
        return
    least = ceil((float(share) + (wanted - span.low) / size) * _STEPS) / _STEPS
    more = span.low + int((least - float(share)) * size)
    if least <= _MOST_SHARE and holds(made, more):
        yield (
            f"--gpu-memory-utilization {least:g}, if nothing else is on the GPU: the blocks that"
            f" {made.floors[0].setting} asks for"
        )
