"""Which rule holds for which `general.architecture`.

All names of llama.cpp b11434 (`src/llama-arch.cpp`, LLM_ARCH_NAMES) are here, with a rule or with
the reason why they have none.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError, nearest
from kvcalc.models.gguf import families, recurrent, rules
from kvcalc.models.gguf.rules import Rule
from kvcalc.models.text import shown

__all__ = ["ARCHITECTURES", "WITHOUT_CACHE", "Architecture", "architecture"]


class Architecture(NamedTuple):
    """How one architecture is read.

    Attributes:
        rule: from its keys to its layers.
        drafts_in_main: llama.cpp keeps the K and V of draft layers in the main context as well,
            as create_memory filters no layer there.
        drafts_by_weights: draft layers count as such only where their tensors are in the file.
    """

    rule: Rule
    drafts_in_main: bool = False
    drafts_by_weights: bool = False


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_PLAIN = _names("""
    llama llama-embed mistral3 deci falcon grok gpt2 gptneox mpt baichuan starcoder refact bloom
    stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe qwen3tts phi2 phi3 phimoe
    plamo codeshell orion internlm2 minicpm minicpm3 gemma starcoder2 xverse command-r dbrx olmo
    olmoe openelm arctic deepseek deepseek2-ocr chatglm glm4 glm4moe bitnet jais jais2 nemotron
    exaone granite granitemoe chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5
    ernie4_5-moe paddleocr hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 smollm3 seed_oss grovemoe
    apertus minimax-m2 cogvlm pangu-embedded maincoder talkie pockettts eagle3
""")

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_PLAIN, rules.plain),
    "hrm_text": families.hrm_text,
    "t5": families.t5,
    "graniteswitch": families.granite_switch,
    "nanbeige": families.nanbeige,
    # One layer in so many keeps every token.
    "gemma2": rules.required_windows(2, 4096),
    "gpt-oss": rules.required_windows(2),
    "cohere2": rules.required_windows(4),
    "cohere2moe": rules.required_windows(4, dense_first=True),
    "exaone-moe": rules.required_windows(4),
    "muse-glimmer": rules.required_windows(4),
    "gemma3": rules.optional_windows(6),
    "olmo2": rules.optional_windows(4),
    "afmoe": rules.optional_windows(4),
    "mellum": rules.optional_windows(4),
    "laguna": rules.optional_windows(4, dense_first=True),
    "plamo3": rules.optional_windows(8),
    "smallthinker": rules.fixed_window(4, 4096, dense_first=True),
    "exaone4": families.exaone4,
    "llama4": families.llama4,
    # The file lists the layers that slide.
    "mimo2": rules.listed_windows,
    "maple": rules.listed_windows,
    "spark2_5": rules.listed_windows,
    "granite_swa": rules.listed_windows,
    "step35": rules.listed_windows,
    "gemma3n": families.gemma3n,
    "gemma4": families.gemma4,
    "dflash": families.dflash,
    # Latents and indexers.
    "deepseek2": rules.latent,
    "mistral4": rules.latent,
    "deepseek32": families.deepseek32,
    "glm-dsa": families.glm_dsa,
    "hy_v4": families.hy_v4,
    "dots3note": families.dots3note,
    "minimax-m3": families.minimax_m3,
    "deepseek4": families.deepseek4,
    # States, alone or beside attention.
    "mamba": rules.recurrent_only(recurrent.mamba1),
    "mamba2": rules.recurrent_only(recurrent.mamba2),
    **dict.fromkeys(
        ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), rules.recurrent_only(recurrent.rwkv)
    ),
    "jamba": rules.hybrid(recurrent.mamba1),
    "plamo2": families.plamo2,
    "granitehybrid": rules.hybrid(recurrent.mamba2),
    "falcon-h1": families.falcon_h1,
    "nemotron_h": families.nemotron_h,
    "nemotron_h_moe": families.nemotron_h,
    "lfm2": families.lfm2,
    "lfm2moe": rules.hybrid(recurrent.short_conv),
    "qwen3next": rules.hybrid(recurrent.gated_delta_net, 4),
    "qwen35": rules.hybrid(recurrent.gated_delta_net, 4),
    "qwen35moe": rules.hybrid(recurrent.gated_delta_net, 4),
    "qwen4exp": families.qwen4exp,
    "kimi-linear": families.kimi,
    "kimi-k3": families.kimi,
    "bailingmoe3": families.kimi,
    "glm5-next": families.glm5_next,
    "minimax-01": families.minimax_01,
}

_DRAFTS_IN_MAIN = _names("""
    minimax-m3 deepseek4 jamba plamo2 granitehybrid falcon-h1 nemotron_h nemotron_h_moe lfm2 lfm2moe
    kimi-linear kimi-k3 bailingmoe3
""")

ARCHITECTURES: dict[str, Architecture] = {
    name: Architecture(rule, name in _DRAFTS_IN_MAIN, name == "deepseek4")
    for name, rule in _RULES.items()
}
"""Every architecture that kvcalc reads."""

_EMBEDDING = "an embedding model keeps no KV cache"
_DIFFUSION = "a diffusion model keeps no KV cache in llama.cpp"

WITHOUT_CACHE: dict[str, str] = {
    **dict.fromkeys(
        _names("""
            bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert
            gemma-embedding t5encoder
        """),
        _EMBEDDING,
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    "clip": "an image or audio encoder (mmproj) keeps no KV cache; its language model is a file"
    " of its own",
    "clef": "a decision model keeps no KV cache in llama.cpp",
    "wavtokenizer-dec": "an audio decoder keeps no KV cache",
    "gemma4-assistant": "a draft model that reads the K and V of its Gemma 4 and keeps none",
    "gptj": "llama.cpp knows the name and cannot run it",
}
"""Architectures without a rule, and why."""


def architecture(name: str, file: str) -> Architecture:
    """Return how an architecture is read.

    Raises:
        UnsupportedError: it keeps no KV cache, or kvcalc does not know it; the nearest are named.
    """
    if known := ARCHITECTURES.get(name):
        return known
    if reason := WITHOUT_CACHE.get(name):
        raise UnsupportedError(
            f"{name}: {reason}", hint="give the file of a text generation model", where=file
        )
    close = nearest(name, ARCHITECTURES)
    guess = f"nearest: {', '.join(close)}; " if close else ""
    raise NotModelledError(
        f"unknown architecture {shown(name)}",
        hint=f"{guess}kvcalc knows those of llama.cpp b11434; describe the model in a preset",
        where=file,
    )
