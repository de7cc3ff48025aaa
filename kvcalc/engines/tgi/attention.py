"""Which attention TGI takes, its block, and whether prefixes are kept.

launcher/src/main.rs, resolve_attention, and server models/globals.py at db931fc.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import (
    InvalidValueError,
    NotModelledError,
    UnknownNameError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.engines.tgi.models import Served

__all__ = ["BLOCKS", "Attention", "attention_of"]

BLOCKS = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}
"""Attention -> tokens a block (globals.py, BLOCK_SIZE). `flashdecoding-ipex` (64) is Intel's."""
_FLASHINFER_HEADS = (64, 128, 256)
_AMPERE = 8
_V2_LITE_HEADS, _V3_HEADS = 16, 128


class Attention(NamedTuple):
    """The kernels, and whether a shared prefix is kept once."""

    name: str
    prefix_caching: bool

    @property
    def block(self) -> int:
        """Tokens a block."""
        return BLOCKS[self.name]


def attention_of(
    model: ModelSpec, deployment: Deployment, found: Served, notes: list[str]
) -> Attention:
    """Return the attention that the launcher resolves to.

    Raises:
        UnknownNameError, UnsupportedError: an attention that TGI has not, or has for others.
        InvalidValueError: prefix caching is asked of paged attention.
    """
    asked = deployment.attention_backend
    if asked == "flashdecoding-ipex":
        raise NotModelledError(
            "flashdecoding-ipex is for Intel's devices, which are not modelled",
            hint=f"choose one of {', '.join(BLOCKS)}",
        )
    if asked is not None and asked not in BLOCKS:
        raise UnknownNameError("attention of TGI", asked, BLOCKS)
    if asked is None and found.head == "nested":
        raise NotModelledError(
            "TGI chooses this model's attention by a head size that its config may not tell",
            hint="name it: attention_backend, as TGI logs it",
        )
    fits = found.head != "nowhere" and _head_dim(model) in _FLASHINFER_HEADS
    forced = not fits or _old_family(model)
    name = asked or (_fallback(deployment.gpu, notes) if forced else "flashinfer")
    if asked is None and forced:
        why = "this family" if fits else "heads of this size"
        if found.head == "nowhere":
            why = "models whose config names no head size"
        notes.append(f"attention is {name}: FlashInfer is not taken for {why}")
    wanted = deployment.enable_prefix_caching
    if wanted and name == "paged":
        raise InvalidValueError(
            "TGI has no prefix caching with paged attention", hint="leave enable_prefix_caching out"
        )
    if wanted is None:
        wanted = fits and not found.sees and name != "paged"
        if not wanted:
            notes.append("prefix caching is off for this model or attention")
    return Attention(name, wanted)


def _old_family(model: ModelSpec) -> bool:
    return model.architecture in ("FalconForCausalLM", "RWForCausalLM", "DeepseekV2ForCausalLM")


def _head_dim(model: ModelSpec) -> int | None:
    """Return the head size as the launcher knows it: head_dim, or hidden size over heads."""
    for _, cache in model.caches():
        match cache:
            case FullAttention() | SlidingWindow():
                return cache.head_dim
            case Mla():
                return _latent_head_dim(model)
    return None


def _latent_head_dim(model: ModelSpec) -> int:
    """Return hidden size over heads: 5,120 / 128 and 7,168 / 128, but 2,048 / 16 in V2-Lite."""
    if model.num_attention_heads == _V3_HEADS:
        return 56 if model.architecture == "DeepseekV3ForCausalLM" else 40
    if model.num_attention_heads == _V2_LITE_HEADS:
        return 128
    raise NotModelledError(
        f"TGI chooses kernels by hidden size over heads, which is not known of {model.name}",
        hint="only the head counts of DeepSeek-V2, V2-Lite and V3 are known",
    )


def _fallback(gpu: str | GpuSpec | None, notes: list[str]) -> str:
    """Return the attention for what FlashInfer does not do, by compute capability."""
    if not isinstance(gpu, GpuSpec):
        notes.append("no card was named: one of compute capability 8.0 or above is taken")
        return "flashdecoding"
    if gpu.compute_capability is None:
        raise NotModelledError(
            f"{gpu.name} is no CUDA card, and TGI's images for others set their attention",
            hint="name it: attention_backend",
        )
    major = int(gpu.compute_capability.partition(".")[0])
    return "flashdecoding" if major >= _AMPERE else "paged"
