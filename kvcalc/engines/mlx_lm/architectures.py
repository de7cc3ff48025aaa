"""mlx-lm's model classes: which make caches of their own, and what is special about those.

mlx-lm 0.32.2 models/*.py (make_cache), utils.py (MODEL_REMAPPING).
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import SlidingWindow
from kvcalc.core.errors import NotModelledError
from kvcalc.core.model import ModelSpec

__all__ = ["Class", "class_of"]


class Class(NamedTuple):
    """What a model class does that decides its caches.

    Attributes:
        own: it has make_cache, so that max_kv_size changes nothing.
        rings: its sliding windows are rotating caches.
        lists: several caches a layer lie in a CacheList, which is never quantised.
        expands: an MLA layer keeps K and V of every head.
        dense_only: its attention cannot read a quantised cache.
        index_copies: how often an indexer's key is kept.
    """

    own: bool = False
    rings: bool = False
    lists: bool = False
    expands: bool = False
    dense_only: bool = False
    index_copies: int = 1


_PLAIN = Class()
_OWN = Class(own=True)
_RINGS = Class(own=True, rings=True)
_SINKS = Class(own=True, rings=True, dense_only=True)
_DENSE = Class(dense_only=True)
_EXPANDS = Class(expands=True)
_LISTS = Class(own=True, lists=True)
_SPARSE = Class(own=True, lists=True, index_copies=2)
"""The indexer's keys are put in as values too, which are then zeroed and kept (deepseek_v32.py)."""

_CLASSES = {
    _PLAIN: (
        "ApertusForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM CohereForCausalLM"
        " DbrxForCausalLM DeepseekForCausalLM DeepseekV3ForCausalLM Ernie4_5ForCausalLM"
        " Ernie4_5_MoeForCausalLM ExaoneForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM"
        " GPTJForCausalLM GPTNeoXForCausalLM GemmaForCausalLM GlmForCausalLM Glm4ForCausalLM"
        " Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GraniteForCausalLM GraniteMoeForCausalLM"
        " HeliumForCausalLM HunYuanDenseV1ForCausalLM HunYuanForCausalLM HunYuanMoEV1ForCausalLM"
        " InternLM2ForCausalLM InternLM2ForRewardModel InternLM3ForCausalLM"
        " KimiK25ForConditionalGeneration KimiVLForConditionalGeneration MiMoForCausalLM"
        " MiniCPMForCausalLM MiniMaxM2ForCausalLM MixtralForCausalLM NemotronForCausalLM"
        " Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM OpenELMForCausalLM Phi3ForCausalLM"
        " PhiForCausalLM PhiMoEForCausalLM PhimoeForCausalLM QWenLMHeadModel Qwen2ForCausalLM"
        " Qwen2MoeForCausalLM Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration"
        " Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3VLForConditionalGeneration"
        " Qwen3VLMoeForConditionalGeneration SeedOssForCausalLM SmolLM3ForCausalLM"
        " Starcoder2ForCausalLM"
        " LlavaForConditionalGeneration Mistral3ForConditionalGeneration"
    ),
    _DENSE: "Gemma2ForCausalLM Phi3SmallForCausalLM StableLmForCausalLM StableLMEpochForCausalLM",
    _EXPANDS: "DeepseekV2ForCausalLM",
    _OWN: (
        "DeciLMForCausalLM FalconMambaForCausalLM GraniteMoeHybridForCausalLM JambaForCausalLM"
        " KimiK3ForConditionalGeneration KimiLinearForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM"
        " Lfm2VlForConditionalGeneration Llama4ForCausalLM Llama4ForConditionalGeneration"
        " LLaMAForCausalLM LlamaForCausalLM Mamba2ForCausalLM MambaForCausalLM MistralForCausalLM"
        " MistralModel NemotronHForCausalLM Qwen3NextForCausalLM Qwen3_5ForCausalLM"
        " Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration"
        " RWKV7ForCausalLM XverseForCausalLM BailingMoeLinearV2ForCausalLM"
    ),
    _RINGS: (
        "Cohere2ForCausalLM Exaone4ForCausalLM Gemma3ForCausalLM"
        " Gemma3ForConditionalGeneration Gemma3TextModel Gemma3nForCausalLM"
        " Gemma3nForConditionalGeneration Gemma4ForCausalLM"
        " Gemma4ForConditionalGeneration LagunaForCausalLM MiMoV2FlashForCausalLM"
        " Ministral3ForCausalLM Olmo3ForCausalLM RecurrentGemmaForCausalLM Step3p5ForCausalLM"
    ),
    _SINKS: "GptOssForCausalLM",
    _LISTS: ("FalconH1ForCausalLM LongcatFlashForCausalLM MiniMaxM3SparseForConditionalGeneration"),
    _SPARSE: "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM",
}
_BY_NAME = {name: kind for kind, names in _CLASSES.items() for name in names.split()}


def class_of(model: ModelSpec) -> Class:
    """Return what mlx-lm's class for a model does; plain caches where only layers are known.

    Raises:
        UnsupportedError: an architecture that mlx-lm has no class for, or that was not read; layers
            alone that keep windows.
    """
    name = model.architecture
    if name is not None and name in _BY_NAME:
        return _BY_NAME[name]
    if name is not None:
        raise NotModelledError(
            f"mlx-lm has no class for {name}, or none that was read",
            hint="use --engine none to see what its layers are",
        )
    if any(isinstance(cache, SlidingWindow) for _, cache in model.caches()):
        raise NotModelledError(
            "which mlx-lm class runs these layers is not known, and classes keep windows in"
            " different ways",
            hint="give a model with an architecture",
        )
    return _PLAIN
