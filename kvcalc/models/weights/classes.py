"""What a tensor is for, told from its name alone.

Names are what checkpoints share: there is no field for it. A name is cut at its dots; the rules
are tried in the order of `_RULES`, most specific first, and what none of them knows is `other`.

    draft      multi-token-prediction layers: a part called mtp..., nextn..., or (DeepSeek-V3,
               GLM-4.5) a layer of the main list that holds eh_proj, enorm, hnorm or shared_head
    vision     the vision tower and its projector: visual, vision_tower, mm_projector, ...
    audio      the same for audio: audio_tower, speech..., ...
    norm       norm, layernorm, ln_1, ln_f ... right above the parameter, wherever it stands
    lm_head    lm_head, embed_out, output_layer; output or head at the top
    embedding  embed_tokens, wte, word_embeddings, ...; positions too
    router     the gate of a mixture of experts
    experts    experts, shared_expert(s), and mixtures named otherwise
    recurrent  state space, linear attention and short convolutions
    attention  whatever stands in self_attn, attention, attn, ...
    mlp        mlp, feed_forward, ffn, fc1, up_proj, ...
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from kvcalc.core.size import TensorClass

__all__ = [
    "CLASSES",
    "TensorClass",
    "draft_layers",
    "has_two_stacks",
    "in_encoder",
    "layer_of",
    "tensor_class",
]

CLASSES: tuple[TensorClass, ...] = TensorClass.__args__  # type: ignore[attr-defined]

_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})(?:\.|$)")
_NUMBER = re.compile(r"\.\d+(?=\.)")
_DRAFT_MARK = re.compile(r"\.(?:eh_proj|enorm|hnorm|shared_head)\.")
_ENCODER = re.compile(r"(?:^|\.)encoder\.")
_DECODER = re.compile(r"(?:^|\.)decoder\.")

# Each pattern is searched in the name in lower case, a dot before and none behind.
_RULES: tuple[tuple[TensorClass, re.Pattern[str]], ...] = (
    ("draft", re.compile(r"\.(?:mtp|nextn)[^.]*\.")),
    (
        "vision",
        re.compile(
            r"\.[^.]*(?:vision|visual|image|mm_projector|multi_modal_projector|patch_embed)"
            r"|^\.vit\.|^\.(?:model\.)?mlp1\.|^\.(?:model\.)?vpm\.|^\.(?:model\.)?resampler\."
        ),
    ),
    ("audio", re.compile(r"\.[^.]*(?:audio|speech)|^\.(?:model\.)?apm\.")),
    ("norm", re.compile(r"\.(?:[^.]*norm[^.]*|ln\d*|ln_[^.]*)\.[^.]+$|\.[^.]*norm$")),
    ("lm_head", re.compile(r"\.(?:lm_head|embed_out|output_layer)\.|^\.(?:output|head)\.")),
    (
        "router",
        re.compile(
            r"\.(?:mlp|moe|ffn|block_sparse_moe|feed_forward|mixer)\.(?:gate|shared_expert_gate)\."
            r"|\.router\.|\.e_score_correction_bias$|\.moe_gate\."
        ),
    ),
    ("experts", re.compile(r"\.[^.]*(?:expert|moe)[^.]*\.")),
    (
        "recurrent",
        re.compile(
            r"\.(?:mamba\d*|linear_attn|ssm|rwkv|time_mixer|recurrent_block|short_conv)\."
            r"|\.conv\.|\.(?:mixer|temporal_block)\."
            r"(?!(?:[qkvo]_proj|(?:up|down|gate)_proj|fc[^.]*)\.)"
        ),
    ),
    ("attention", re.compile(r"\.[^.]*(?:attn|attention)[^.]*\.|\.[qkvo]_proj\.")),
    (
        "mlp",
        re.compile(
            r"\.(?:[^.]*mlp[^.]*|ffn|feed_forward|densereludense|fc\d[^.]*|fc_in|fc_out)\."
            r"|\.(?:gate_up_proj|gate_proj|up_proj|down_proj|w[123]|dense_h_to_4h|dense_4h_to_h)\."
        ),
    ),
    ("embedding", re.compile(r"\.[^.]*embed[^.]*\.|\.(?:wte|wpe)\.|^\.shared\.")),
)


def tensor_class(name: str) -> TensorClass:
    """Return what a tensor is for.

    >>> tensor_class("model.layers.3.self_attn.q_proj.weight")
    'attention'
    >>> tensor_class("model.layers.3.self_attn.q_norm.weight")
    'norm'
    """
    return _class_of(_NUMBER.sub(".0", name))


@functools.lru_cache(maxsize=4096)
def _class_of(pattern: str) -> TensorClass:
    """Return the class of all names that differ in the numbers of layers and experts alone."""
    path = f".{pattern.lower()}"
    return next((found for found, rule in _RULES if rule.search(path)), "other")


def layer_of(name: str) -> int | None:
    """Return the number of the layer a tensor belongs to; None for what stands outside layers.

    >>> layer_of("model.layers.12.mlp.experts.3.up_proj.weight")
    12
    """
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def draft_layers(names: Iterable[str]) -> frozenset[int]:
    """Return the layers of the main list that only predict further tokens."""
    marked = (name for name in names if _DRAFT_MARK.search(name))
    found = (layer_of(name) for name in marked if tensor_class(name) != "draft")
    return frozenset(layer for layer in found if layer is not None)


def has_two_stacks(names: Iterable[str]) -> bool:
    """Return whether there are an encoder and a decoder, towers apart.

    Either word alone says nothing: ChatGLM calls its decoder an encoder.
    """
    stacks = [name for name in names if "coder." in name]
    stacks = [name for name in stacks if tensor_class(name) not in ("vision", "audio")]
    return any(map(in_encoder, stacks)) and any(map(_DECODER.search, stacks))


def in_encoder(name: str) -> bool:
    """Return whether a tensor stands in something called encoder."""
    return bool(_ENCODER.search(name))
