"""What vLLM refuses when a model is split over ranks."""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.layers import Layers
from kvcalc.engines.vllm.settings import Settings
from kvcalc.engines.vllm.states import check_groups

__all__ = ["check_context_parallel", "check_split"]

_CONTEXT_PARALLEL_SINCE = (0, 10, 2)


def check_split(model: ModelSpec, settings: Settings) -> None:
    """Refuse tensor-parallel sizes that the model's heads do not allow.

    vLLM 0.33 config/model.py, verify_with_parallel_config; models/gpt_oss.py; mamba_mixer2.py.

    Raises:
        UnsupportedError: query heads, KV heads or state groups that cannot be split so.
    """
    tp, heads = settings.tp, model.num_attention_heads
    if heads is not None and heads % tp:
        raise UnsupportedError(
            f"{heads} attention heads cannot be split over {tp} ranks: vLLM wants them to divide",
            hint=f"choose a tensor parallel size that divides {heads}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    if model.encoder_divisor is not None and model.encoder_divisor % tp:
        raise UnsupportedError(
            f"the vision encoder cannot be split over {tp} ranks",
            hint=f"choose a tensor parallel size that divides {model.encoder_divisor}",
            code="heads-over-ranks",
            setting="tensor_parallel_size",
        )
    _check_proposing(model, settings)
    for _, cache in model.caches():
        check_groups(cache, tp, model.architecture)
    if model.architecture == "GptOssForCausalLM":
        kv_heads = _kv_heads(model)
        if kv_heads and tp > kv_heads:
            raise UnsupportedError(
                f"vLLM does not replicate the {kv_heads} KV heads of gpt-oss over {tp} ranks",
                hint=f"choose a tensor parallel size of at most {kv_heads}",
                code="heads-over-ranks",
                setting="tensor_parallel_size",
            )


def _check_proposing(model: ModelSpec, settings: Settings) -> None:
    """Refuse speculation where a release does not run it beside states.

    model_executor/layers/mamba/abstract.py (0.16), models/config.py (0.15); MambaSpec's assertion
    where a config's shape of a state has no rows for proposed tokens and the layer's has.
    """
    at = settings.release.number
    states = model.has_state_layers
    if settings.speculation is None or not states:
        return
    name = model.architecture or ""
    first = at < _PROPOSES_BESIDE_STATES and not name.startswith("Qwen3Next")
    aligned = settings.release.line in ((0, 15), (0, 16)) and settings.state_mode == "align"
    if first or aligned:
        raise UnsupportedError(
            f"vLLM {settings.release} proposes no tokens for this model, whose layers keep states",
            hint="leave speculation out, or give --engine-version 0.17.1 or newer",
        )
    short = name.startswith(("FalconH1", "GraniteMoeHybrid", "Zamba2"))
    if short and _PROPOSES_BESIDE_STATES <= at < _SHAPES_TOLD_WHOLE:
        raise UnsupportedError(
            f"vLLM {settings.release} fails at start-up when it proposes tokens for {name}",
            hint="leave speculation out, or give --engine-version 0.32.0 or newer",
        )


_PROPOSES_BESIDE_STATES = (0, 17, 1)
_SHAPES_TOLD_WHOLE = (0, 32, 0)


def _kv_heads(model: ModelSpec) -> int:
    """KV heads of the layers that have K and V by head; 0 for MLA."""
    heads = [getattr(cache, "num_kv_heads", 0) for _, cache in model.caches() if cache.rows()]
    return max(heads, default=0)


def check_context_parallel(model: ModelSpec, layers: Layers, settings: Settings) -> None:
    """Refuse decode context parallelism where vLLM does.

    config/model.py, verify_with_parallel_config; SlidingWindowSpec.max_memory_usage_bytes.

    Raises:
        UnsupportedError: too few ranks that keep the same rows, or windows.
    """
    dcp, tp = settings.dcp, settings.tp
    if dcp == 1:
        return
    if settings.release.number < _CONTEXT_PARALLEL_SINCE:
        raise UnsupportedError(
            f"vLLM {settings.release} has no decode context parallelism: 0.10.2 does",
            hint="use a decode context parallel size of 1, or a later version",
        )
    if any(p.spec.kind in ("window", "window_mla", "chunk") for p in layers.placed):
        raise UnsupportedError(
            "decode context parallelism does not split windows",
            hint="use a decode context parallel size of 1 for this model",
        )
    kv_heads = _kv_heads(model)
    if not kv_heads:
        if all(p.spec.kind == "state" for p in layers.placed):
            raise UnsupportedError(
                "decode context parallelism has no rows to split: the model keeps states alone",
                hint="use a decode context parallel size of 1 for this model",
            )
        return
    if tp <= kv_heads:
        raise UnsupportedError(
            f"decode context parallelism needs more tensor-parallel ranks ({tp}) than KV heads"
            f" ({kv_heads})",
            hint=f"raise the tensor parallel size above {kv_heads}",
            code="context-parallel-over-heads",
            setting="decode_context_parallel_size",
        )
    most = tp // kv_heads
    if dcp > most:
        raise UnsupportedError(
            f"decode context parallel size {dcp}: {tp} ranks hold each of {kv_heads} KV heads"
            f" {most} times",
            hint=f"choose at most {most}",
            code="context-parallel-over-heads",
            setting="decode_context_parallel_size",
        )
    heads = model.num_attention_heads
    if heads is not None and heads // kv_heads % dcp:
        raise UnsupportedError(
            f"{heads // kv_heads} query heads a KV head cannot be split over {dcp} ranks",
            hint="choose a decode context parallel size that divides them",
            code="context-parallel-over-heads",
            setting="decode_context_parallel_size",
        )
