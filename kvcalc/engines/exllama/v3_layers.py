"""What one layer keeps under exllamav3: rows in pages, a ring or a state in every batch slot."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import NotModelledError, UnsupportedError
from kvcalc.core.kind import divide
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2, ShortConv
from kvcalc.core.rules import Grow, Rule, Whole
from kvcalc.engines.exllama.pages import PAGE
from kvcalc.engines.exllama.v3_compressed import compressed
from kvcalc.engines.exllama.v3_kept import HALF, Kept, Part, ring_rows
from kvcalc.engines.exllama.v3_settings import Settings

__all__ = ["Kept", "kept_of", "on_rank"]

_GROUP = 32
"""Elements that share an f16 scale."""
_CHANNELS = 128
"""Heads are split over cards in multiples of so many channels (make_tp_allocation)."""
_MLA_SINCE, _DSA_SINCE = (1, 3), (1, 4)
_RINGS = {
    "AfmoeForCausalLM": 0,
    "Gemma4ForConditionalGeneration": 0,
    "Gemma4UnifiedForConditionalGeneration": 0,
    "GptOssForCausalLM": -1,
    "LagunaForCausalLM": 0,
    "Step3p5ForCausalLM": 0,
    "Step3p7ForConditionalGeneration": 0,
}
"""Architectures whose windows are rings (SlidingAttention) -> what is added to the window."""
_OTHERS_NAMES = (
    "ApertusForCausalLM ArceeForCausalLM Cohere2ForCausalLM CohereForCausalLM DeciLMForCausalLM"
    " DeepseekV3ForCausalLM DeepseekV4ForCausalLM Dots1ForCausalLM Ernie4_5_ForCausalLM"
    " Ernie4_5ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM Gemma2ForCausalLM"
    " Gemma3ForCausalLM Gemma3ForConditionalGeneration Glm4ForCausalLM Glm4MoeForCausalLM"
    " Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration HCXVisionV2ForCausalLM"
    " HYV3ForCausalLM HyperCLOVAXForCausalLM IQuestCoderForCausalLM Lfm2MoeForCausalLM"
    " LlamaForCausalLM MiMoForCausalLM MiniMaxM2ForCausalLM Ministral3ForCausalLM"
    " Mistral3ForConditionalGeneration MistralForCausalLM MixtralForCausalLM NanoChatForCausalLM"
    " NemotronHForCausalLM Olmo3ForCausalLM OlmoHybridForCausalLM Phi3ForCausalLM"
    " Qwen2ForCausalLM Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM"
    " Qwen3NextForCausalLM Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration"
    " Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM"
    " Qwen3_5MoeForConditionalGeneration SeedOssForCausalLM SmolLM3ForCausalLM"
    " SolarOpenForCausalLM"
)
_OTHERS = frozenset(_OTHERS_NAMES.split())
"""Every other architecture (architecture/*.py, arch_string)."""


class _Heads(NamedTuple):
    heads: int
    width: int


def on_rank(model: ModelSpec, tp: int) -> ModelSpec:
    """Return what one of tp equal cards keeps; latents are on every card.

    Raises:
        UnsupportedError: an architecture that exllamav3 has not, or heads that do not divide.
    """
    name = model.architecture
    if name is not None and name not in _RINGS and name not in _OTHERS:
        raise UnsupportedError(
            f"exllamav3 has no architecture {name}",
            hint="use --engine none to see what its layers are",
        )
    if tp == 1:
        return model
    for _, cache in model.caches():
        if isinstance(cache, (FullAttention, SlidingWindow)) and cache.head_dim < _CHANNELS:
            divide(cache.num_kv_heads * cache.head_dim // _CHANNELS, tp, "sets of 128 channels")
    return model.on_rank(tp, lambda heads, ranks: divide(heads, ranks, "heads"))


def kept_of(run: LayerRun, model: ModelSpec, settings: Settings) -> Kept:
    """Return what one layer of a run keeps.

    Raises:
        UnsupportedError: a kind of cache that exllamav3 has not, or that kvcalc does not model.
    """
    if any(isinstance(cache, (SlidingMla, CompressedAttention)) for cache in run.caches):
        _since(settings, _DSA_SINCE, "DeepSeek-V4's layers")
        return compressed(run.caches)
    found = Kept((), (), (), 0)
    for cache in run.caches:
        found = found.plus(_of(cache, model, settings))
    return found


def _of(cache: Cache, model: ModelSpec, settings: Settings) -> Kept:
    match cache:
        case Mla():
            _since(settings, _MLA_SINCE, "latent attention")
            bits = settings.bits[0] if settings.bits else None
            latent = _row(cache.kv_lora_rank, bits, "a latent")
            rope = cache.qk_rope_head_dim * HALF
            return Kept.paged(Grow(block_tokens=PAGE), (("latent", latent), ("rope", rope)))
        case FullAttention() | SlidingWindow():
            return _heads(cache, model, settings)
        case GatedDeltaNet() | Mamba2():
            conv, recurrent = _conv_and_recurrent(cache)
            columns, channels = conv
            return Kept.state(
                (("conv", (columns + 1) * channels * HALF), ("recurrent", recurrent * 4)),
                settings.history * (channels * HALF + recurrent * 4),
            )
        case ShortConv():
            size = cache.hidden_size * HALF
            return Kept.state((("conv", cache.conv_kernel * size),), settings.history * size)
        case SharedKv():
            return Kept((), (), (), 0)
        case Indexer():
            pass
    raise NotModelledError(
        f"how exllamav3 keeps {cache.kind} caches is not modelled",
        hint="use --engine none to see what the layers are",
    )


def _heads(cache: FullAttention | SlidingWindow, model: ModelSpec, settings: Settings) -> Kept:
    """Return K and V of every head, both as wide as K: in pages, or a window's in a ring."""
    if cache.v_head_dim not in (None, cache.head_dim):
        raise UnsupportedError(
            f"exllamav3's caches have V as wide as K, and {model.name} has not",
            hint="use --engine none to see what its layers are",
        )
    elements = cache.num_kv_heads * cache.head_dim
    if isinstance(cache, SlidingWindow):
        more = _RINGS.get(model.architecture or "")
        if more is not None and not settings.swa_full:
            rule: Rule = Whole(
                slots=ring_rows(cache.sliding_window + more), limit=cache.sliding_window
            )
            size = elements * HALF
            return Kept((), ((rule, (("k", size), ("v", size))),), (), 0)
    limit = cache.sliding_window if isinstance(cache, SlidingWindow) else None
    k_bits, v_bits = settings.bits or (None, None)
    rows: Part = (
        ("k", _row(elements, k_bits, "a token's K")),
        ("v", _row(elements, v_bits, "a token's V")),
    )
    return Kept.paged(Grow(block_tokens=PAGE, limit=limit), rows)


def _row(elements: int, bits: int | None, what: str) -> int:
    """Return the bytes of a row: f16, or 32 elements in `bits` int32 words and one f16 scale."""
    if bits is None:
        return elements * HALF
    if elements % _GROUP:
        raise UnsupportedError(
            f"exllamav3 quantises {_GROUP} elements at a time, and {what} has {elements}",
            hint="leave cache_quant out",
        )
    return elements // _GROUP * (4 * bits + HALF)


def _conv_and_recurrent(cache: GatedDeltaNet | Mamba2) -> tuple[tuple[int, int], int]:
    """Return (kernel - 1, channels) of the convolution, and elements of the recurrent state."""
    conv = (0, 0)
    recurrent = 0
    for state in cache.states():
        if state.role == "conv":
            conv = (state.shape[0], state.shape[1])
        else:
            recurrent = state.elements
    return conv, recurrent


def _since(settings: Settings, line: tuple[int, int], what: str) -> None:
    if settings.line < line:
        first = ".".join(map(str, line))
        raise UnsupportedError(
            f"exllamav3 {settings.version} has no {what}", hint=f"{first} and later have"
        )
