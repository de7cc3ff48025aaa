"""What a config says of a model that changes no row, and yet which kernels can serve it."""

from __future__ import annotations

from math import gcd

from kvcalc.core.layers import LayerRun
from kvcalc.core.model import Trait
from kvcalc.core.recurrent import Mamba1, Mamba2
from kvcalc.models.hf_config.fields import Fields

__all__ = ["encoder_divisor", "mamba_chunk_size", "traits"]

_ALIBI = ("BloomForCausalLM", "MPTForCausalLM", "MptForCausalLM")
_SINKS = ("GptOssForCausalLM",)
_IMAGE_PREFIX = (
    "Gemma3ForConditionalGeneration",
    "PaliGemmaForConditionalGeneration",
)
_BAICHUAN_7B = 4096  # hidden size of the Baichuan that has rotary positions


def traits(architecture: str, outer: Fields, text: Fields) -> tuple[Trait, ...]:
    """Return the traits of a model.

    Args:
        architecture: the class name.
        outer: the whole config.
        text: the part that describes the decoder.
    """
    found: list[Trait] = []
    if _alibi(architecture, text):
        found.append("alibi")
    # vLLM 0.33 models/{gpt_oss,mimo_v2}.py.
    swa_sinks = text.has("add_swa_attention_sink_bias") and text.flag(
        "add_swa_attention_sink_bias", default=False
    )
    if architecture in _SINKS or swa_sinks:
        found.append("attention_sinks")
    # vLLM 0.33 transformers_utils/model_arch_config_convertor.py, is_mm_prefix_lm.
    both_ways = (
        architecture.startswith("Gemma4")
        and outer.has("vision_config")
        and text.get("use_bidirectional_attention") == "vision"
    )
    if architecture in _IMAGE_PREFIX or both_ways:
        found.append("image_prefix")
    return tuple(found)


def _alibi(architecture: str, text: Fields) -> bool:
    if architecture.startswith("Falcon") and text.has("alibi"):
        return text.flag("alibi", default=False)
    if architecture == "BaichuanForCausalLM":
        # vLLM before 0.29 models/baichuan.py: only the 7B has rotary positions.
        return text.whole("hidden_size") != _BAICHUAN_7B
    return architecture in _ALIBI


def mamba_chunk_size(text: Fields, layers: tuple[LayerRun, ...]) -> int | None:
    """Return the tokens that Mamba layers compute at once, where the config says.

    vLLM 0.31 config/model.py, get_mamba_chunk_size.
    """
    if not any(isinstance(c, (Mamba1, Mamba2)) for run in layers for c in run.caches):
        return None
    return text.whole("mamba_chunk_size", "chunk_size")


def encoder_divisor(outer: Fields) -> int | None:
    """Return what a tensor-parallel size must divide for the vision encoder; None for no bound.

    vLLM 0.33 models/{qwen2_vl,qwen2_5_vl,qwen3_vl,glm4_1v}.py split heads and channels by rank, and
    Kimi-K3's encoder its channels alone; encoders that spell their heads otherwise are padded or
    kept whole.
    """
    vision = outer.section("vision_config")
    if vision is None:
        return None
    if any(str(name).startswith("KimiK3") for name in outer.items("architectures") or ()):
        return vision.whole("vt_intermediate_size")
    heads = vision.whole("num_heads")
    if heads is None:
        return None
    return gcd(heads, vision.whole("intermediate_size") or 0)
