"""Tokens proposed ahead: the method, how many, and the layers that propose them.

vLLM 0.33 config/speculative.py (SpeculativeConfig), config/vllm.py (num_lookahead_tokens), and
models/llama_eagle.py for the shape of an EAGLE head.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
    UnsupportedError,
)
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec

__all__ = ["Speculation", "speculation_of"]

_METHODS = ("ngram", "mtp", "eagle", "eagle3", "draft_model")
_MTP_METHODS = ("deepseek_mtp", "qwen3_next_mtp", "mimo_mtp", "glm4_moe_mtp", "longcat_flash_mtp")

_NO_MTP = ("MiniCPMV4_6ForConditionalGeneration",)
"""Wrappers of models with such layers that vLLM 0.33 does not hand on (hf_config_override)."""


class Speculation(NamedTuple):
    """Tokens proposed ahead: by which method, how many, and the layers that propose them."""

    method: str
    tokens: int
    layers: tuple[LayerRun, ...] = ()

    @property
    def lookahead(self) -> int:
        """Slots held beyond the tokens of the target model (vLLM num_lookahead_tokens)."""
        return 0 if self.method == "ngram" else self.tokens


def speculation_of(model: ModelSpec, deployment: Deployment) -> Speculation | None:
    """Return what a deployment proposes ahead; None where it proposes nothing.

    Raises:
        InvalidValueError: no number of tokens, or a draft model that is a mere name.
        UnknownNameError: a method that vLLM has not.
        UnsupportedError: a method without the layers that it needs.
    """
    method, tokens = deployment.speculative_method, deployment.num_speculative_tokens
    draft = deployment.draft_model
    if method is None and tokens is None and draft is None:
        return None
    method = method or ("mtp" if draft is None else "draft_model")
    method = "mtp" if method in _MTP_METHODS else method
    if method not in _METHODS:
        raise UnknownNameError("speculative method", method, [*_METHODS, *_MTP_METHODS])
    if tokens is None:
        raise InvalidValueError(
            "speculation without a number of tokens", hint="give num_speculative_tokens"
        )
    return Speculation(method, tokens, _drafting(model, method, draft))


def _drafting(model: ModelSpec, method: str, draft: str | ModelSpec | None) -> tuple[LayerRun, ...]:
    """Return the layers that propose tokens."""
    if method == "ngram":
        return ()
    if method == "mtp":
        if model.architecture in _NO_MTP:
            raise UnsupportedError(
                f"vLLM proposes no tokens with {model.architecture}'s own layers",
                hint="choose ngram, eagle or a draft model",
            )
        if not model.draft_layers:
            raise UnsupportedError(
                "the model has no multi-token-prediction layers",
                hint="choose ngram, eagle or a draft model",
            )
        return model.draft_layers
    if isinstance(draft, ModelSpec):
        return draft.layers
    if draft is not None:
        raise InvalidValueError(
            f"draft_model {draft!r:.40} is a name where the model itself is wanted",
            hint="call kvcalc.plan, which looks the name up",
        )
    if method in ("eagle", "eagle3"):
        return (_eagle_head(model),)
    raise NotModelledError(
        "the draft model is not named",
        hint="name it: --draft-model NAME, or Deployment.draft_model",
    )


def _eagle_head(model: ModelSpec) -> LayerRun:
    """Return the one full-attention layer of an EAGLE head that is shaped as its target."""
    for _, cache in model.caches():
        if isinstance(cache, (FullAttention, SlidingWindow)):
            full = FullAttention(num_kv_heads=cache.num_kv_heads, head_dim=cache.head_dim)
            return LayerRun(count=1, caches=(full,))
    raise NotModelledError(
        "an EAGLE head's shape cannot be told from this model",
        hint="give the head itself: --draft-model NAME",
    )
