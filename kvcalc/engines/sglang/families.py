"""Which architectures SGLang treats in a way of their own; any other is treated like a Llama.

SGLang 0.5.23 configs/model_config.py (is_hybrid_swa_model), arg_groups/overrides.py
(_MAMBA_EXTRA_BUFFER_ARCHS), arg_groups/model_overrides, configs/hybrid_arch.py.
"""

from __future__ import annotations

from kvcalc.core.model import ModelSpec

__all__ = [
    "BLACKWELL_BACKENDS",
    "CONFIGURED_STATE_DTYPE",
    "EXTRA_BUFFER",
    "LATENT_DEFAULT",
    "PAGE_64_WITH_EXTRA_BUFFER",
    "STATEFUL",
    "WINDOWED",
    "WINDOWED_AT_FIRST",
    "is_compressed",
    "is_latent",
    "is_minimax_sparse",
    "keeps_states",
]

WINDOWED = frozenset(
    {
        "BeamForCausalLM",
        "DiffusionGemmaForBlockDiffusion",
        "EmbeddingGemma2Model",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "GraniteMoeSWAForCausalLM",
        "GraniteSWAForCausalLM",
        "IQuestQ1ForCausalLM",
        "LagunaForCausalLM",
        "Llama4ForConditionalGeneration",
        "MellumForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "UnlimitedOCRForCausalLM",
    }
)
"""Models whose windows have a pool of their own; the windows of any other keep every token."""

WINDOWED_AT_FIRST = frozenset(
    {
        "GptOssForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
        "Step3p5ForCausalLM",
    }
)
"""The same in 0.5.10."""

EXTRA_BUFFER = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "InternS2PreviewForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "MiniCPMV4_6ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Models whose states can be tracked in extra slots, so that prefixes and overlap go together."""

STATEFUL = EXTRA_BUFFER | {
    "FalconMambaForCausalLM",
    "InternS2MobiusForConditionalGeneration",
    "JetNemotronForCausalLM",
    "JetVLMForConditionalGeneration",
    "Lfm2ForCausalLM",
    "Lfm2MoeForCausalLM",
    "Mamba2ForCausalLM",
    "MambaForCausalLM",
    "MiniCPMV4_7ForConditionalGeneration",
}
"""Models whose states SGLang keeps (configs/hybrid_arch.py)."""

CONFIGURED_STATE_DTYPE = frozenset(
    {
        "FalconH1ForCausalLM",
        "InternS2PreviewForConditionalGeneration",
        "JetNemotronForCausalLM",
        "MiniCPMV4_6ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Omni_Reasoning_V3",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Models whose config's mamba_ssm_dtype is read; the states of others are in float32."""

PAGE_64_WITH_EXTRA_BUFFER = frozenset(
    {
        "InternS2PreviewForConditionalGeneration",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    }
)
"""Hybrids that decide between trtllm_mha and Triton on Blackwell by their states
(model_overrides/qwen3_5.py)."""

BLACKWELL_BACKENDS = {
    "FalconH1ForCausalLM": "triton",
    "GraniteMoeHybridForCausalLM": "flashinfer",
    "Lfm2ForCausalLM": "flashinfer",
    "Lfm2MoeForCausalLM": "flashinfer",
    "MiMoV2FlashForCausalLM": "fa4",
    "MiMoV2ForCausalLM": "fa4",
    "MiniCPMV4_6ForConditionalGeneration": "triton",
}
"""Architecture -> its default backend on B200 where that is not the general one."""

LATENT_DEFAULT = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "LongcatFlashForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
    }
)
"""MLA models that run on trtllm_mla by default on B200 (model_overrides/deepseek_v2.py)."""


def is_minimax_sparse(model: ModelSpec) -> bool:
    """Whether the model is MiniMax-M3: plain heads with an indexer's key beside them."""
    indexed = any(cache.kind == "indexer" for _, cache in model.caches())
    return indexed and not is_latent(model) and not is_compressed(model)


def is_latent(model: ModelSpec) -> bool:
    """Whether the model keeps latents (MLA)."""
    return any(cache.kind == "mla" for _, cache in model.caches())


def is_compressed(model: ModelSpec) -> bool:
    """Whether the model keeps entries for many tokens (DeepSeek-V4)."""
    kinds = ("compressed_attention", "sliding_mla")
    return any(cache.kind in kinds for _, cache in model.caches())


def keeps_states(model: ModelSpec) -> bool:
    """Whether the model keeps recurrent states; tokens that wait to be folded are none."""
    waiting = ("compressed_attention", "indexer")
    return any(cache.states() for _, cache in model.caches() if cache.kind not in waiting)
