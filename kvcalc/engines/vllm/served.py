"""Which architectures vLLM serves, and which of them over pipeline stages.

model_executor/models/registry.py of every release (served.tsv), the SupportsPP interface of each
class, and what a class says of a checkpoint that belongs to another (ChatGLMForCausalLM and
QWenLMHeadModel, __init__).
"""

from __future__ import annotations

import json

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.served import check_served, doubt_of
from kvcalc.engines.vllm.version import RELEASES, Release
from kvcalc.weights.widths import is_multimodal

__all__ = ["architecture_named", "as_overridden", "check_model"]

_ONE_STAGE = (
    "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM", "Gemma3TextModel", "Gemma3nForCausalLM",
    "Gemma3nForConditionalGeneration", "Idefics3ForConditionalGeneration",
    "LlamaForCausalLMEagle3", "Mamba2ForCausalLM", "PaddleOCRVLForConditionalGeneration",
    "SmolVLMForConditionalGeneration", "Step3VLForConditionalGeneration",
    "WhisperForConditionalGeneration", "Zamba2ForCausalLM",
)  # fmt: skip

_WITH_IMAGES = {
    "ChatGLMModel": "GLM4VForCausalLM",
    "ChatGLMForConditionalGeneration": "GLM4VForCausalLM",
    "QWenLMHeadModel": "QwenVLForConditionalGeneration",
}
"""Class that refuses a checkpoint with an image encoder -> the class that is to be named."""
_SPLIT_SINCE = (0, 7, 3)
"""models/chatglm.py and models/qwen.py: before, one class had both."""


def architecture_named(overrides: str) -> str | None:
    """Return the architecture that hf_overrides names; None where it says something else.

    >>> architecture_named('{"architectures": ["GLM4VForCausalLM"]}')
    'GLM4VForCausalLM'
    """
    try:
        changed = json.loads(overrides)
    except (ValueError, RecursionError):
        return None
    if not isinstance(changed, dict) or list(changed) != ["architectures"]:
        return None
    names = changed["architectures"]
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def as_overridden(model: ModelSpec, deployment: Deployment) -> ModelSpec:
    """Return the model under the architecture that hf_overrides names, where it names one.

    Raises:
        NotModelledError: another change of the config.
    """
    value = deployment.engine_args.get("hf_overrides")
    if value is None:
        return model
    name = architecture_named(str(value))
    if name is None:
        raise NotModelledError(
            "vLLM's hf_overrides is not modelled but for the architecture",
            hint="put the changes into a copy of config.json and name that",
        )
    return msgspec.structs.replace(model, architecture=name)


def check_model(model: ModelSpec, wanted: Release, deployment: Deployment, notes: list[str]) -> str:
    """Refuse a model that the release does not serve so; return what is in doubt of it.

    Args:
        model: under the architecture that it is run as.
        wanted: the release.
        deployment: as asked for.
        notes: a line is added for what was assumed.

    Raises:
        UnsupportedError: the architecture is not served, wants to be named otherwise, or is not
            split into several stages.
        NotModelledError: nothing says whether it is served, or what by transformers' code.
    """
    newer = RELEASES.read(deployment.engine_version).newer
    span = check_served(model, __package__, "vLLM", wanted.number, notes, newer=newer)
    doubt = doubt_of(span, model, f"vLLM {wanted}")
    name = model.architecture or ""
    other = _WITH_IMAGES.get(name)
    if other is not None and wanted.number >= _SPLIT_SINCE and is_multimodal(model):
        named = f'--hf-overrides \'{{"architectures": ["{other}"]}}\''
        raise UnsupportedError(
            f"vLLM {wanted} serves {model.name}, which reads images, as {other} alone, and its"
            f" config says {name}",
            hint=named,
            code="unserved-model",
        )
    if deployment.pipeline_parallel_size > 1 and name in _ONE_STAGE:
        raise UnsupportedError(
            f"vLLM does not run {name} over several pipeline stages",
            hint="choose a pipeline parallel size of 1",
            code="stages-not-served",
            setting="pipeline_parallel_size",
        )
    return doubt
