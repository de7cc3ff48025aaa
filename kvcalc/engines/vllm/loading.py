"""What vLLM makes of a checkpoint as it loads it: the dtype, padded experts, towers left out."""

from __future__ import annotations

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.size import ModelSize
from kvcalc.engines.vllm.arguments import limits_of, takes_no_input
from kvcalc.weights.loading import Loading, Tile, padding
from kvcalc.weights.split import Stages

__all__ = ["loading"]

_MARLIN: Tile = (128, 256)
_TRITON: Tile = (64, 1)
_CUTLASS: Tile = (128, 128)
_TRTLLM: Tile = (128, 256)
_TRTLLM_BEFORE: Tile = (256, 256)
_NARROWER = (0, 27)
"""First line in which TensorRT-LLM's kernels round the inner width up to 128 and not to 256."""

_MARLIN_ON_CONSUMER = (0, 14)
"""First line that takes Triton's kernels on Hopper and B200 alone."""

_MARKS_TOWERS = (0, 16)
"""First line that leaves out the towers of all models (0.15: of all but Kimi-K2.5)."""
_FIRST_STAGE_ALONE = (0, 30)
"""First line whose runner has encoders on the first pipeline stage alone."""

_BITS16 = 2
_SINGLE = 4


def loading(model: ModelSpec, deployment: Deployment, plan: CachePlan) -> Loading:
    """Return what vLLM makes of a checkpoint.

    - Experts in mxfp4 are rounded up to what their kernel reads (0.10.1 to 0.19
      layers/quantization/mxfp4.py, create_weights; since 0.20 layers/fused_moe/oracle/mxfp4.py,
      mxfp4_round_up_hidden_size_and_intermediate_size). Which kernel it is hangs on the card and on
      what is installed: Marlin before Hopper and on consumer Blackwell, Triton or Marlin on Hopper,
      FlashInfer's on B200.
    - Biases of such experts are kept once more in the order of the kernel, and gpt-oss asks for
      its rotary tables in float32 (models/gpt_oss.py): both bounds, as logged starts have some
      30 MiB more than the padded experts.
    - Encoders of images and sound are left out where a prompt may have none of what they are for
      (models/interfaces.py, _mark_tower_model; before, some models left theirs out by themselves).
      Every pipeline stage has them, until stages after the first leave them out as well.

    Args:
        model: as published.
        deployment: as asked for.
        plan: of both.
    """
    size = model.size or ModelSize()
    version = plan.engine_version or ""
    made = Loading(dtype=plan.model_dtype, towers=_towers(deployment, _number(version)))
    if "mxfp4" not in (size.expert_dtype, size.weights_dtype) or not size.num_experts:
        return made
    whole = bool(deployment.enable_expert_parallel)
    divided_by = 1 if whole else deployment.tensor_parallel_size
    tiles = _tiles(deployment.gpu, version)
    inner, layers = size.moe_intermediate_size or 0, size.num_moe_layers or model.num_hidden_layers
    biases = 2 * inner // divided_by + (size.hidden_size or 0)
    return made._replace(
        experts=padding(model, divided_by, tiles),
        copied_bytes=_BITS16 * biases * size.num_experts * layers,
        table_bytes=_SINGLE if model.architecture == "GptOssForCausalLM" else None,
        note="experts in mxfp4 are padded to their kernel's tiles",
    )


def _number(version: str) -> tuple[int, ...]:
    """Return major and minor of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _towers(deployment: Deployment, number: tuple[int, ...]) -> tuple[Stages, ...]:
    """Return the stages that may have the encoders of images and sound."""
    loaded: tuple[Stages, ...] = ("first",)
    if deployment.pipeline_parallel_size > 1 and number < _FIRST_STAGE_ALONE:
        loaded = ("every",) if number >= _MARKS_TOWERS else ("first", "every")
    limits = limits_of(deployment) or {}
    if takes_no_input(limits) and number >= _MARKS_TOWERS:
        return ("none",)
    # A tower is left out where all that it is for is: which that is differs between models.
    return ("none", *loaded) if 0 in limits.values() else loaded


def _tiles(gpu: object, version: str) -> tuple[Tile, ...]:
    """Return the tiles of the kernels that a card may get."""
    if not isinstance(gpu, GpuSpec) or gpu.compute_capability is None:
        return (_TRITON, _TRTLLM_BEFORE)
    major = int(gpu.compute_capability.partition(".")[0])
    number = _number(version)
    trtllm = _TRTLLM if number >= _NARROWER else _TRTLLM_BEFORE
    by_family = {9: (_TRITON, _CUTLASS, _MARLIN), 10: (_CUTLASS, trtllm)}
    marlin_alone = major < min(by_family) or number >= _MARLIN_ON_CONSUMER
    return by_family.get(major, (_MARLIN,) if marlin_alone else (_TRITON, _MARLIN))
