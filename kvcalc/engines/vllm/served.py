"""Which architectures vLLM serves, and which of them over pipeline stages.

model_executor/models/registry.py of every compared release (_CAME_BY), vLLM 0.33's
_PREVIOUSLY_SUPPORTED_MODELS there, and the SupportsPP interface of each class; what was refused
when it was asked for, and is not in those lists, never was served.
"""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.vllm.rules import COMPARED
from kvcalc.engines.vllm.version import Release, release

__all__ = ["check_served"]

_UNTIL = {
    "AquilaForCausalLM": (0, 24), "AquilaModel": (0, 24), "ArcticForCausalLM": (0, 28),
    "AyaVisionForConditionalGeneration": (0, 24), "BaiChuanForCausalLM": (0, 24),
    "BaichuanForCausalLM": (0, 24), "BambaForCausalLM": (0, 23), "BartModel": (0, 10),
    "BartForConditionalGeneration": (0, 10), "MBartForConditionalGeneration": (0, 10),
    "Grok1ForCausalLM": (0, 24),
    "Grok1ModelForCausalLM": (0, 24), "InternLMForCausalLM": (0, 23), "MPTForCausalLM": (0, 28),
    "MiniMaxForCausalLM": (0, 23), "MiniMaxM1ForCausalLM": (0, 23),
    "MiniMaxText01ForCausalLM": (0, 23), "MiniMaxVL01ForConditionalGeneration": (0, 23),
    "MllamaForConditionalGeneration": (0, 10), "MptForCausalLM": (0, 28),
    "PersimmonForCausalLM": (0, 25), "Phi3SmallForCausalLM": (0, 9), "QWenLMHeadModel": (0, 23),
    "StableLMEpochForCausalLM": (0, 28), "XverseForCausalLM": (0, 23),
}  # fmt: skip
"""Architecture -> the last release line that serves it."""

_NEVER = (
    "BailingMoeLinearV2ForCausalLM",
    "HunYuanForCausalLM", "LlavaLlamaForCausalLM", "LlavaLlamaModel", "LlavaMistralForCausalLM",
    "LlavaQwenForCausalLM", "MT5ForConditionalGeneration",
    "MiniMaxM3ForCausalLM", "OpenELMForCausalLM", "RWKV7ForCausalLM", "RecurrentGemmaForCausalLM",
    "Rwkv5ForCausalLM", "Rwkv6ForCausalLM", "RwkvForCausalLM", "Step3p7FlashForCausalLM",
    "T5ForConditionalGeneration", "UMT5ForConditionalGeneration", "YuanForCausalLM",
    "xLSTMForCausalLM",
)  # fmt: skip

_ONE_STAGE = (
    "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM", "Gemma3TextModel", "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "LlamaForCausalLMEagle3", "Mamba2ForCausalLM", "PaddleOCRVLForConditionalGeneration",
    "SmolVLMForConditionalGeneration", "Step3VLForConditionalGeneration",
    "WhisperForConditionalGeneration", "Zamba2ForCausalLM",
)  # fmt: skip


_CAME_BY = {
    "0.9.2": (
        "Ernie4_5_MoeForCausalLM FalconH1ForCausalLM Gemma3nForConditionalGeneration "
        "Glm4vForConditionalGeneration GraniteMoeHybridForCausalLM HunYuanMoEV1ForCausalLM "
        "MiMoForCausalLM MiniMaxM1ForCausalLM MiniMaxVL01ForConditionalGeneration "
        "NemotronHForCausalLM Qwen2_5OmniForConditionalGeneration Qwen3ForSequenceClassification"
    ),
    "0.10.0": (
        "ArceeForCausalLM BailingMoeForCausalLM Exaone4ForCausalLM Glm4MoeForCausalLM "
        "HunYuanDenseV1ForCausalLM MiniMaxForCausalLM VoxtralForConditionalGeneration"
    ),
    "0.10.1": (
        "Cohere2VisionForConditionalGeneration Ernie4_5ForCausalLM Gemma3nForCausalLM "
        "Glm4vMoeForConditionalGeneration GptOssForCausalLM Llama4ForCausalLM "
        "MBartForConditionalGeneration SmolLM3ForCausalLM Step3TextForCausalLM "
        "Step3VLForConditionalGeneration"
    ),
    "0.10.2": (
        "ApertusForCausalLM Gemma3TextModel InternVLForConditionalGeneration Lfm2ForCausalLM "
        "LlamaForCausalLMEagle3 Qwen3NextForCausalLM SeedOssForCausalLM"
    ),
    "0.11.0": (
        "BailingMoeV2ForCausalLM DeepseekV32ForCausalLM LongcatFlashForCausalLM Olmo3ForCausalLM "
        "Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration"
    ),
    "0.11.2": (
        "KimiLinearForCausalLM Lfm2MoeForCausalLM MiniMaxM2ForCausalLM "
        "PaddleOCRVLForConditionalGeneration Qwen3OmniMoeForConditionalGeneration"
    ),
    "0.14.0": "Grok1ForCausalLM Lfm2VlForConditionalGeneration MiMoV2FlashForCausalLM",
    "0.15.1": "Glm4MoeLiteForCausalLM KimiK25ForConditionalGeneration Step3p5ForCausalLM",
    "0.16.0": "GlmMoeDsaForCausalLM",
    "0.17.1": "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration",
    "0.19.0": "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
    "0.20.0": "DeepseekV4ForCausalLM Ministral3ForCausalLM",
    "0.21.0": "LagunaForCausalLM",
    "0.22.0": "MiniCPMV4_6ForConditionalGeneration",
    "0.23.0": "Step3p7ForConditionalGeneration",
    "0.24.0": "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration",
    "0.27.0": "KimiK3ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM",
}
"""Compared release -> architectures that its registry has and the compared one before lacks."""


def _too_early(name: str, wanted: Release) -> str | None:
    """Return the compared release that first serves an architecture, if `wanted` surely not."""
    compared = COMPARED.split()
    for first, names in _CAME_BY.items():
        if name in names.split():
            before = release(compared[compared.index(first) - 1])
            return first if wanted.number <= before.number else None
    return None


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
    first = _too_early(name, wanted)
    if first is not None:
        raise UnsupportedError(
            f"vLLM {wanted} does not serve {name} yet: {first} does",
            hint=f"give --engine-version {first} or newer",
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
            code="stages-not-served",
            setting="pipeline_parallel_size",
        )
