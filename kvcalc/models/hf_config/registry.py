"""Which family reads which architecture: one line an architecture, modules imported when asked."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kvcalc.core.errors import UnknownNameError
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers

__all__ = ["ARCHITECTURES", "MODEL_TYPES", "NESTED", "Family", "family"]

Family = Callable[[Fields], Layers]

ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "dense",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForConditionalGeneration": "qwen3_next",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma3ForCausalLM": "gemma3",
    "DeepseekV3ForCausalLM": "deepseek",
}
"""Architecture -> module of `families`, whose `read` gives its layers."""

MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
}
"""model_type -> architecture, for configs without `architectures`."""

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys under which a multimodal config keeps its language model, tried in turn."""


def family(architecture: str, where: str) -> Family:
    """Return the reader of an architecture.

    Raises:
        UnknownNameError: kvcalc does not know it; the nearest known are named.
    """
    if architecture not in ARCHITECTURES:
        raise UnknownNameError(
            "architecture",
            architecture[:60],
            ARCHITECTURES,
            where=where,
        )
    module = import_module(f"kvcalc.models.hf_config.families.{ARCHITECTURES[architecture]}")
    reader: Family = module.read
    return reader
