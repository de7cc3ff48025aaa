"""Which architectures vLLM serves, and which of them over pipeline stages.

vLLM 0.33 model_executor/models/registry.py: _PREVIOUSLY_SUPPORTED_MODELS, and the SupportsPP interface
of each class; what was refused when it was asked for, and is not in that list, never was served.
"""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.version import Release

__all__ = ["check_served"]

_UNTIL = {
    "AquilaForCausalLM": (0, 24), "AquilaModel": (0, 24), "ArcticForCausalLM": (0, 28),
    "AyaVisionForConditionalGeneration": (0, 24), "BaiChuanForCausalLM": (0, 23),
    "BaichuanForCausalLM": (0, 23), "BambaForCausalLM": (0, 23), "Grok1ForCausalLM": (0, 24),
    "Grok1ModelForCausalLM": (0, 24), "InternLMForCausalLM": (0, 23), "MPTForCausalLM": (0, 28),
    "MiniMaxForCausalLM": (0, 23), "MiniMaxM1ForCausalLM": (0, 23),
    "MiniMaxText01ForCausalLM": (0, 23), "MiniMaxVL01ForConditionalGeneration": (0, 23),
    "MllamaForConditionalGeneration": (0, 10), "MptForCausalLM": (0, 28),
    "PersimmonForCausalLM": (0, 25), "Phi3SmallForCausalLM": (0, 9), "QWenLMHeadModel": (0, 23),
    "StableLMEpochForCausalLM": (0, 28), "XverseForCausalLM": (0, 23),
}  # fmt: skip
"""Architecture -> the last release line that serves it."""

_NEVER = (
    "BailingMoeLinearV2ForCausalLM", "BartForConditionalGeneration", "BartModel",
    "HunYuanForCausalLM", "LlavaLlamaForCausalLM", "LlavaLlamaModel", "LlavaMistralForCausalLM",
    "LlavaQwenForCausalLM", "MBartForConditionalGeneration", "MT5ForConditionalGeneration",
    "MiniMaxM3ForCausalLM", "OpenELMForCausalLM", "RWKV7ForCausalLM", "RecurrentGemmaForCausalLM",
    "Rwkv5ForCausalLM", "Rwkv6ForCausalLM", "RwkvForCausalLM", "Step3p7FlashForCausalLM",
    "T5ForConditionalGeneration", "UMT5ForConditionalGeneration", "YuanForCausalLM",
    "xLSTMForCausalLM",
)  # fmt: skip

_ONE_STAGE = (
    "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM", "Gemma3TextModel", "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "LlamaForCausalLMEagle3", "Mamba2ForCausalLM", "PaddleOCRVLForConditionalGeneration",
    "SmolVLMForConditionalGeneration", "WhisperForConditionalGeneration", "Zamba2ForCausalLM",
)  # fmt: skip


def check_served(model: ModelSpec, wanted: Release, pipeline_parallel_size: int) -> None:
    """Refuse an architecture that the release does not serve, or not over several stages.

    Raises:
        UnsupportedError: either.
    """
    name = model.architecture or ""
    last = _UNTIL.get(name)
    if last is not None and wanted.line > last:
        line = f"{last[0]}.{last[1]}"
        raise UnsupportedError(
            f"vLLM {wanted} no longer serves {name}: {line} was the last that did",
            hint=f"give --engine-version {line}",
        )
    if name in _NEVER:
        raise UnsupportedError(
            f"vLLM {wanted} does not serve {name}",
            hint="use --engine none for the model's own arithmetic",
        )
    if pipeline_parallel_size > 1 and name in _ONE_STAGE:
        raise UnsupportedError(
            f"vLLM does not run {name} over several pipeline stages",
            hint="choose a pipeline parallel size of 1",
        )
