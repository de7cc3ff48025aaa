"""Which models text-generation-inference serves from blocks, and in which dtype it runs them.

models/__init__.py, get_model, at db931fc: a flash model keeps its cache in blocks; others are
padded (CausalLM) or left to the installed transformers, whose rules are not TGI's own.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec

__all__ = ["Served", "served"]


class Served(NamedTuple):
    """How TGI serves an architecture.

    Attributes:
        dtype: what it runs where no dtype is given, whatever the config says.
        replicates: a single KV head is kept by every rank (elsewhere TGI's own code divides it).
        sees: a model with a vision part, for which prefix caching is off.
        fp8: kv_cache_dtype is passed on to it.
        head: where the launcher finds the size of a head, which decides the attention: in the
            config, nowhere (the config's keys are others), or in a nested config that may not say.
    """

    dtype: str = "float16"
    replicates: bool = False
    sees: bool = False
    fp8: bool = True
    head: Literal["config", "nowhere", "nested"] = "config"


_HALF = Served()
_BRAIN = Served(dtype="bfloat16")
_GPT = Served(head="nowhere")

_SERVED = {
    "LlamaForCausalLM": _HALF,
    "Phi3ForCausalLM": _HALF,
    "GraniteForCausalLM": _HALF,
    "PhiMoEForCausalLM": _HALF,
    "BaichuanForCausalLM": _HALF,
    "BaiChuanForCausalLM": _HALF,
    "MistralForCausalLM": _HALF,
    "MixtralForCausalLM": _HALF,
    "Qwen2ForCausalLM": _HALF,
    "Starcoder2ForCausalLM": _HALF,
    "CohereForCausalLM": _HALF,
    "PhiForCausalLM": _HALF,
    "GPT2LMHeadModel": _GPT,
    "GPTJForCausalLM": _GPT,
    "GPTNeoXForCausalLM": _HALF,
    "GPTBigCodeForCausalLM": Served(replicates=True, head="nowhere"),
    "FalconForCausalLM": Served(replicates=True),
    "RWForCausalLM": Served(replicates=True),
    "GemmaForCausalLM": _BRAIN,
    "Gemma2ForCausalLM": _BRAIN,
    "Gemma3ForCausalLM": _BRAIN,
    "DbrxForCausalLM": Served(dtype="bfloat16", head="nowhere"),
    "DeepseekV2ForCausalLM": _BRAIN,
    "DeepseekV3ForCausalLM": _BRAIN,
    "Gemma3ForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "Qwen2VLForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "Qwen2_5_VLForConditionalGeneration": Served(dtype="bfloat16", sees=True),
    "PaliGemmaForConditionalGeneration": Served(dtype="bfloat16", sees=True, head="nested"),
    "LlavaNextForConditionalGeneration": Served(sees=True, head="nested"),
    "Idefics2ForConditionalGeneration": Served(sees=True, head="nested"),
    "Idefics3ForConditionalGeneration": Served(
        dtype="bfloat16", sees=True, fp8=False, head="nested"
    ),
}


def served(model: ModelSpec) -> Served:
    """Return how TGI serves a model.

    Raises:
        UnsupportedError: an architecture that it keeps no blocks for, or not by rules of its own.
    """
    name = model.architecture
    if name is None:
        raise NotModelledError(
            f"how TGI keeps {model.name} hangs on its architecture, which nothing names",
            hint="give a model with an architecture",
        )
    found = _SERVED.get(name)
    if found is None:
        raise UnsupportedError(
            f"TGI has no block cache of its own for {name} models",
            hint="those it has one for: " + ", ".join(sorted(_SERVED)),
        )
    if "alibi" in model.traits and name in ("FalconForCausalLM", "RWForCausalLM"):
        raise UnsupportedError(
            "TGI pads Falcon models with ALiBi instead of keeping blocks",
            hint="use --engine transformers for what a padded batch holds",
        )
    return found
