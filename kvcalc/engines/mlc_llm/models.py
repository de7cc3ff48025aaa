"""Which models MLC-LLM compiles, and what their configs make of lengths.

python/mlc_llm/model/ at 79d603f: model.py, MODELS, and each model's __post_init__ and
create_paged_kv_cache.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec

__all__ = ["Compiled", "compiled"]


class Compiled(NamedTuple):
    """How MLC-LLM compiles an architecture.

    Attributes:
        chunk: tokens that are prefilled at once by default, at most.
        windows: a window is that of the whole cache; is not looked at, so that every layer keeps
            every token; or cuts the context down to it.
        splits: the ranks that it may be split over are more than one.
    """

    chunk: int = 8192
    windows: Literal["whole", "kept", "cut"] = "kept"
    splits: bool = True


_PLAIN = Compiled()
_SHORT = Compiled(chunk=2048)

_COMPILED = {
    **dict.fromkeys(
        (
            "BaichuanForCausalLM",
            "ChatGLMModel",
            "CohereForCausalLM",
            "DeepseekForCausalLM",
            "GemmaForCausalLM",
            "GPT2LMHeadModel",
            "GPTJForCausalLM",
            "GPTNeoXForCausalLM",
            "InternLMForCausalLM",
            "Llama4ForConditionalGeneration",
            "LlamaForCausalLM",
            "LlavaForConditionalGeneration",
            "MiniCPMForCausalLM",
            "MixtralForCausalLM",
            "NemotronForCausalLM",
            "Olmo2ForCausalLM",
            "OlmoForCausalLM",
            "OrionForCausalLM",
            "Phi3ForCausalLM",
            "PhiForCausalLM",
            "QWenLMHeadModel",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen2_5_VLForConditionalGeneration",
            "StableLmForCausalLM",
            "Starcoder2ForCausalLM",
        ),
        _PLAIN,
    ),
    "GPTBigCodeForCausalLM": Compiled(splits=False),
    "Gemma2ForCausalLM": Compiled(windows="cut"),
    "MistralForCausalLM": Compiled(windows="whole"),
    "InternLM2ForCausalLM": _SHORT,
    "Qwen3ForCausalLM": _SHORT,
    "Qwen3MoeForCausalLM": _SHORT,
    "DeepseekV2ForCausalLM": _SHORT,
    "DeepseekV3ForCausalLM": _SHORT,
    "Qwen3_5ForCausalLM": Compiled(chunk=2048, splits=False),
    "Qwen3_5ForConditionalGeneration": Compiled(chunk=2048, splits=False),
}
_WHY = {
    "Gemma3ForCausalLM": "how pages of its windows are given back was not found out",
    "Gemma3ForConditionalGeneration": "how pages of its windows are given back was not found out",
}


def compiled(model: ModelSpec) -> Compiled:
    """Return how MLC-LLM compiles a model.

    Raises:
        UnsupportedError: an architecture that it has not, or that is not modelled.
    """
    name = model.architecture
    if name is None:
        raise NotModelledError(
            f"how MLC-LLM keeps {model.name} hangs on its architecture, which nothing names",
            hint="give a model with an architecture",
        )
    if name in _WHY:
        raise NotModelledError(
            f"MLC-LLM's cache of {name} models is not modelled: {_WHY[name]}",
            hint="use --engine none to see what its layers are",
        )
    found = _COMPILED.get(name)
    if found is None:
        raise UnsupportedError(
            f"MLC-LLM compiles no {name} models",
            hint="those it does: " + ", ".join(sorted(_COMPILED)),
        )
    return found
