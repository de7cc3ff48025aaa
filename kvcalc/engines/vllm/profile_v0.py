"""How V0 profiles, by release: the steps that it runs, and what counts as taken afterwards.

vLLM worker/worker.py (profile_num_available_blocks, 0.2 to 0.4; determine_num_available_blocks),
worker/model_runner.py (profile_run), engine/arg_utils.py and config.py (SchedulerConfig),
multimodal/profiling.py: 0.2.0 to 0.8.5, each release that is named here.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.arguments import limits_of, switch_of
from kvcalc.engines.vllm.dtypes import is_pooling
from kvcalc.engines.vllm.settings import Settings
from kvcalc.weights.widths import Span, Widths

__all__ = [
    "SEQS",
    "Counted",
    "beyond",
    "counted",
    "encoder_v0",
    "items_of",
    "sums_parts",
    "tokens_of",
]

_GIB = 2**30
SEQS = 256
"""max_num_seqs where it is not given."""

_CHUNKS_ABOVE = 32 * 1024
_CHUNKS_SINCE, _CHUNK_GREW = (0, 5, 3), (0, 6, 5)
_CHUNK = (512, 2048)
_LEAST = 2048
_POOLING_SINCE, _POOLING_LEAST = (0, 4, 3), 32 * 1024
_IMAGES_SINCE, _IMAGES_GREW, _IMAGES_LEAST = (0, 6, 0), (0, 6, 3), (4096, 5120)
_PARTS_UNTIL = (0, 3, 0)
"""quantization/awq.py: since, weights are unpacked and multiplied where a step has 256 tokens."""

_ITEM = 16_384
"""Tokens of the largest image or video that a processor makes: Qwen2-VL's, of 3,584 x 3,584."""
_WITH_VIDEO = (
    "Qwen2VL", "Qwen2_5_VL", "Qwen2_5Omni", "LlavaNextVideo", "LlavaOnevision", "MiniCPM", "Glm4v",
    "InternVL", "Keye",
)  # fmt: skip
"""Beginnings of the names of architectures that take videos next to images, 0.6.0 to 0.9.2."""
_PATCHES = 5
"""Patches of a tower to a token of the prompt: 4 are merged into one; 17 crops of 577 are 1,921."""
_TOWER = (1536, 6144)
"""Widths of a tower that a config does not tell: larger than published ones."""
_TOWER_COPIES = (16, 4)
"""16-bit copies of the stream and of the inner width that a layer of a tower has at its peak:
queries and keys are turned in 32 bits."""

_SMALL, _GAPS = (0.0, 0.15), (0.15, 0.25)
"""Of what torch has beyond the peak that is predicted, at most: a part of the peak, and GiB. Tables
and small tensors; where all that torch keeps counts, also gaps and what is freed and not given
back."""


class Counted(NamedTuple):
    """What a release takes off the share after the profile.

    Attributes:
        beyond: of torch's memory beyond the predicted peak: a part of it, and GiB.
        kernels: whether what is not torch's counts: kernels, buffers between GPUs.
        context: whether the driver's context does, which is there before anything is loaded.
        source: what counts, and by which call.
    """

    beyond: tuple[float, float]
    kernels: bool
    context: bool
    source: str


_COUNTED = {
    (0, 2, 0): Counted(_SMALL, False, False, "tensors' peak alone (max_memory_allocated)"),
    (0, 2, 5): Counted(_GAPS, True, True, "all that is taken of the GPU, others' too"),
    (0, 3, 1): Counted(_GAPS, True, False, "all that was taken since the start (init_gpu_memory)"),
    (0, 6, 4): Counted(_SMALL, True, True, "tensors' peak, and all else on the GPU, others' too"),
    (0, 6, 5): Counted(
        _SMALL, True, False, "tensors' peak, and what else was taken since the start"
    ),
}


def counted(settings: Settings) -> Counted:
    """Return what a release takes off the share."""
    return [said for since, said in _COUNTED.items() if settings.release.number >= since][-1]


def tokens_of(
    model: ModelSpec, settings: Settings, deployment: Deployment, *, multimodal: bool
) -> int:
    """Return max_num_batched_tokens: engine/arg_utils.py, config.py (SchedulerConfig)."""
    if deployment.max_num_batched_tokens is not None:
        return deployment.max_num_batched_tokens
    at = settings.release.number
    if _in_chunks(model, settings, deployment, multimodal=multimodal):
        tokens = _CHUNK[at >= _CHUNK_GREW]
    else:
        tokens = max(settings.max_model_len, _LEAST)
    if is_pooling(model) and at >= _POOLING_SINCE:
        tokens = max(tokens, _POOLING_LEAST)
    if multimodal and at >= _IMAGES_SINCE:
        tokens = max(tokens, _IMAGES_LEAST[at >= _IMAGES_GREW])
    return tokens


def _in_chunks(
    model: ModelSpec, settings: Settings, deployment: Deployment, *, multimodal: bool
) -> bool:
    """Whether a prompt is computed in chunks by default: lengths above 32k, since 0.5.3."""
    at = settings.release.number
    if settings.max_model_len <= _CHUNKS_ABOVE or at < _CHUNKS_SINCE:
        return False
    caches = [cache for _, cache in model.caches()]
    return not (
        any(isinstance(cache, SlidingWindow) for cache in caches)
        or settings.speculation is not None
        or switch_of(deployment, "enable_lora")
        or (deployment.enable_prefix_caching and at < (0, 6, 1))
        or (multimodal and at >= (0, 6, 2))
        or (model.has_state_layers and at < (0, 6, 4))
        or (is_pooling(model) and at >= (0, 7, 0))
        or (at >= (0, 8, 0) and any(isinstance(cache, Mla) for cache in caches))
    )


def items_of(model: ModelSpec, deployment: Deployment) -> tuple[int, int]:
    """Return tokens of the largest prompt that a multimodal model is profiled with, and of a kind.

    Every kind has as many items as limit_mm_per_prompt allows, one where it says nothing, each at
    its largest, whatever the length: multimodal/profiling.py warns alone. How large that is depends
    on the processor's own config.
    """
    limits = limits_of(deployment) or {}
    video = (model.architecture or "").startswith(_WITH_VIDEO)
    each = [limits.get(kind, 1) * _ITEM for kind in ("image", *(("video",) if video else ()))]
    return sum(each), max(each)


def encoder_v0(
    model: ModelSpec, widths: Widths, deployment: Deployment, tokens: int, peak: Span
) -> Span:
    """Return what a tower adds to the language model's peak: its outputs, and a greater peak.

    Args:
        model: as published, with the widths of its towers where its config told them.
        widths: of the language model.
        deployment: as asked for.
        tokens: of the language model's step.
        peak: of the language model's step.
    """
    total, kind = items_of(model, deployment)
    if not total:
        return Span(0, 0)
    towers = model.size.towers if model.size is not None else ()
    each = [(tower.hidden_size, tower.intermediate_size) for tower in towers] or [_TOWER]
    streams, inners = _TOWER_COPIES
    row = max(hidden * streams + inner * inners for hidden, inner in each) * 2
    # A step holds several prompts where the items are smaller: their items of a kind go together.
    own = max(kind, tokens * kind // total) * _PATCHES * row
    outputs = max(tokens, total) * widths.hidden.high * 2
    return Span(0, outputs + max(0, own - peak.high))


def sums_parts(model: ModelSpec, settings: Settings) -> bool:
    """Whether products of AWQ weights are made in eight parts (csrc/quantization/awq, split_k)."""
    quantised = model.size is not None and model.size.weights_dtype == "awq"
    return quantised and settings.release.number < _PARTS_UNTIL


def beyond(by: Counted, peak: Span) -> Span:
    """Return what torch has beyond the predicted peak of its tensors."""
    part, gib = by.beyond
    return Span(0, int(peak.high * part + gib * _GIB))
