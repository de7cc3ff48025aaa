"""Under which architecture llama.cpp runs a model, and what it makes of that architecture.

llama.cpp b11434: conversion/*.py (which class of a config.json becomes which architecture),
src/llama-arch.cpp and llama_model::create_memory in src/llama-model.cpp.
"""

from __future__ import annotations

from kvcalc.core.errors import NotModelledError, UnsupportedError, nearest
from kvcalc.engines.llamacpp.version import NEWEST

__all__ = [
    "DRAFTS_IN_MAIN",
    "INDEXED_MTP",
    "MTP",
    "ROLLBACK",
    "SHARING",
    "WINDOWED",
    "WITHOUT_CACHE",
    "WITHOUT_FLASH",
    "architecture",
]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_CLASSES: dict[str, str] = {
    "apertus": "ApertusForCausalLM",
    "arcee": "ArceeForCausalLM",
    "arctic": "ArcticForCausalLM",
    "baichuan": "BaiChuanForCausalLM BaichuanForCausalLM",
    "bailingmoe": "BailingMoeForCausalLM",
    "bailingmoe2": "BailingMoeV2ForCausalLM",
    "bloom": "BloomForCausalLM",
    "chatglm": "ChatGLMForConditionalGeneration ChatGLMModel GlmForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "command-r": "CohereForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "deci": "DeciLMForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek2": (
        "DeepseekV2ForCausalLM DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM"
        " KimiK25ForConditionalGeneration KimiVLForConditionalGeneration"
    ),
    "deepseek32": "DeepseekV32ForCausalLM",
    "deepseek4": "DeepseekV4ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
    "exaone": "ExaoneForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "falcon": "FalconForCausalLM",
    "falcon-h1": "FalconH1ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
    "gemma3n": "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
    "glm-dsa": "GlmMoeDsaForCausalLM",
    "glm4": "Glm4ForCausalLM Glm4vForConditionalGeneration",
    "glm4moe": "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration",
    "gpt-oss": "GptOssForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gptneox": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitehybrid": "BambaForCausalLM GraniteMoeHybridForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
    "grok": "Grok1ForCausalLM",
    "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi-k3": "KimiK3ForConditionalGeneration",
    "kimi-linear": "KimiLinearForCausalLM",
    "laguna": "LagunaForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2moe": "Lfm2MoeForCausalLM",
    "llama": (
        "InternLM3ForCausalLM LLaMAForCausalLM LlamaForCausalLM LlamaModel"
        " LlavaForConditionalGeneration MistralForCausalLM MixtralForCausalLM"
        " VoxtralForConditionalGeneration"
    ),
    "llama4": "Llama4ForCausalLM Llama4ForConditionalGeneration",
    "mamba": "FalconMambaForCausalLM MambaForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "mimo2": "MiMoV2FlashForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minimax-01": "MiniMaxM1ForCausalLM MiniMaxText01ForCausalLM",
    "minimax-m2": "MiniMaxM2ForCausalLM",
    "minimax-m3": "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration",
    "mistral3": "Ministral3ForCausalLM Mistral3ForConditionalGeneration",
    "mpt": "MPTForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "openelm": "OpenELMForCausalLM",
    "orion": "OrionForCausalLM",
    "paddleocr": "PaddleOCRVLForConditionalGeneration",
    "phi2": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "qwen": "QWenLMHeadModel",
    "qwen2": "Qwen2AudioForConditionalGeneration Qwen2ForCausalLM Qwen2Model",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen2vl": (
        "Qwen2VLForConditionalGeneration Qwen2_5OmniModel Qwen2_5_VLForConditionalGeneration"
    ),
    "qwen3": "Qwen3ForCausalLM Qwen3Model",
    "qwen35": (
        "MiniCPMV4_6ForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration"
    ),
    "qwen35moe": "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "qwen3next": "Qwen3NextForCausalLM",
    "qwen3vl": "Qwen3VLForConditionalGeneration",
    "qwen3vlmoe": "Qwen3OmniMoeForConditionalGeneration Qwen3VLMoeForConditionalGeneration",
    "rwkv6": "Rwkv6ForCausalLM",
    "rwkv7": "RWKV7ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLMEpochForCausalLM StableLmForCausalLM",
    "starcoder": "GPTBigCodeForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "step35": "Step3p5ForCausalLM Step3p7ForConditionalGeneration",
    "t5": "MT5ForConditionalGeneration T5ForConditionalGeneration UMT5ForConditionalGeneration",
    "xverse": "XverseForCausalLM",
}

_OF_FILES_ALONE = _names("""
    llama-embed refact qwen3tts plamo codeshell minicpm3 deepseek2-ocr bitnet jais
    jais2 chameleon plm dots1 hunyuan_vl hy_v3 grovemoe cogvlm pangu-embedded maincoder talkie
    pockettts eagle3 hrm_text graniteswitch nanbeige cohere2moe exaone-moe muse-glimmer afmoe mellum
    plamo3 smallthinker maple spark2_5 granite_swa dflash mistral4 hy_v4 dots3note rwkv6qwen2 arwkv7
    plamo2 nemotron_h_moe qwen4exp bailingmoe3 glm5-next
""")
"""Architectures that kvcalc meets in GGUF files only."""

_BY_CLASS = {name: arch for arch, names in _CLASSES.items() for name in names.split()}
_KNOWN = frozenset((*_CLASSES, *_OF_FILES_ALONE))

WINDOWED = frozenset(
    _names("""
        gemma2 gpt-oss cohere2 cohere2moe exaone-moe gemma3 olmo2 afmoe mellum laguna plamo3
        smallthinker exaone4 llama4 mimo2 maple spark2_5 granite_swa step35 gemma3n gemma4 dflash
        dots3note deepseek4 lfm2 muse-glimmer
    """)
)
"""Architectures that have sliding (or chunked) layers; all others keep every token, whatever the
model's config says (mistral, phi3, qwen2)."""

SHARING = frozenset(("gemma3n", "gemma4"))
"""Architectures whose later layers read the K and V of earlier ones; elsewhere each keeps its own.
"""

DRAFTS_IN_MAIN = frozenset(
    _names("""
        minimax-m3 deepseek4 jamba plamo2 granitehybrid falcon-h1 nemotron_h nemotron_h_moe lfm2
        lfm2moe kimi-linear kimi-k3 bailingmoe3
    """)
)
"""Architectures for which create_memory filters no layer: the main context keeps K and V of the
multi-token-prediction layers too."""

MTP = frozenset(
    _names("""
        bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe glm5-next hy_v3 mimo2
        nemotron_h_moe qwen35 qwen35moe qwen3next qwen4exp step35
    """)
)
"""Architectures that have a graph for an MTP context (src/models/*.cpp: graph_mtp); others never
load the prediction layers, or make a context of all layers that no graph of theirs can use."""

INDEXED_MTP = frozenset(("glm5-next", "qwen4exp"))
"""Architectures whose MTP context keeps indexer keys as well."""

ROLLBACK = frozenset(
    _names("""
        kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 lfm2moe
        bailingmoe3
    """)
)
"""Architectures whose states are kept `n_rs_seq` more times (llm_arch_supports_rs_rollback)."""

WITHOUT_FLASH = frozenset(("grok",))
"""llama_init_from_model switches flash attention off for these."""

WITHOUT_CACHE = {"Gemma3TextModel": "an embedding model keeps no KV cache"}
"""Classes that llama.cpp runs without a cache -> why."""


def architecture(name: str | None, build: str = NEWEST.text) -> str | None:
    """Return llama.cpp's architecture of a class or of its own name; None for None.

    Args:
        name: of a class, or llama.cpp's own.
        build: whose rules are asked for, to name it; the classes are those of b11434.

    Raises:
        UnsupportedError: llama.cpp has no conversion for that class, or kvcalc knows none.
    """
    if name is None or name in _KNOWN:
        return name
    if found := _BY_CLASS.get(name):
        return found
    if reason := WITHOUT_CACHE.get(name):
        raise UnsupportedError(f"{name}: {reason}", hint="choose a text generation model")
    close = nearest(name, [*_BY_CLASS, *_KNOWN])
    guess = f"; nearest: {', '.join(close)}" if close else ""
    raise NotModelledError(
        f"llama.cpp {build} does not convert {name!r:.60}, as far as kvcalc knows",
        hint=f"give the model's GGUF file{guess}",
    )
