"""What every family's config must agree on with itself: lists of layers, and a nested part."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.core.errors import InputError
from kvcalc.core.layers import LayerRun
from kvcalc.models.hf_config.fields import Fields

__all__ = ["check_layer_lists", "check_nested"]

_STATES = ("linear_attention", "mamba", "conv", "recurrent")
_OF_LAYERS = (
    *("full_attention", "sliding_attention", "chunked_attention", "window_attention"),
    *("indexed_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
    *("minimax_m3_sparse", "moe", "hybrid", "hybrid_sliding", "reference_sliding_attention"),
    *("attention", "deepseek_sparse_attention", "qwen_sparse_attention", *_STATES),
)
_WORDS = {"layer_types": _OF_LAYERS, "mlp_layer_types": ("sparse", "dense")}
"""Lists of layers -> their words: transformers 5.24 configuration_utils.py,
ALLOWED_ATTN_LAYER_TYPES and ALLOWED_MLP_LAYER_TYPES, with the older names that it maps."""


def check_layer_lists(text: Fields, layers: Sequence[LayerRun], drafts: Sequence[LayerRun]) -> None:
    """Check the lists of layers of a config, whatever its family reads of them.

    A word that no class has, and a list of another length than the layers (or those and the draft
    layers), are refused as transformers refuses them (validate_layer_type).

    Raises:
        UnknownNameError: such a word.
        InputError: such a length, or recurrent layers in a family that has none.
    """
    count, more = (sum(run.count for run in runs) for runs in (layers, drafts))
    for name, known in _WORDS.items():
        words = text.texts(name, known=known)
        if words is None:
            continue
        if not count <= len(words) <= count + more:
            raise InputError(
                f"{text.name(name)} has {len(words)} entries, not one for each of {count} layers",
                hint="this is not a config.json as published; correct the value",
                where=text.where,
            )
        stated = next((word for word in words if word in _STATES), None)
        kept = any(cache.states() for run in layers for cache in run.caches)
        if stated is not None and not kept:
            raise InputError(
                f"{text.name(name)} lists {stated} layers, which this class has not",
                hint="correct the list, or the architectures line",
                where=text.where,
            )


_SHAPE = (
    ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    ("hidden_size", "n_embd", "d_model"),
    ("num_attention_heads", "n_head", "n_heads"),
    ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    ("head_dim",),
    ("kv_lora_rank",),
)
"""Spellings of what decides a cache's size."""
_ELSE = (("max_position_embeddings",), ("sliding_window",), ("vocab_size",))


def check_nested(outer: Fields, nested: Fields, *, composite: bool) -> list[str]:
    """Return what a config and its nested language model say against one another.

    A class of images or sound and text takes the nested part. A class of text alone reads the outer
    keys, and vLLM stops at a part that it did not expect (transformers_utils/config.py,
    get_hf_text_config): of those two models one is another's.

    Args:
        outer: the whole config.
        nested: the part of it.
        composite: the class has such a part.

    Raises:
        InputError: a class of text alone with two shapes.
    """
    found = []
    for names in (*_SHAPE, *_ELSE):
        mine, theirs = (_stated(fields, names) for fields in (outer, nested))
        if type(mine) is not int or type(theirs) is not int or mine == theirs:
            continue
        key, part = outer.name(*names), nested.name(*names)
        if not composite and names in _SHAPE:
            raise InputError(
                f"{key} is {mine}, and {part} is {theirs}: two models in one config",
                hint="take the part out that is not this model's",
                where=outer.where,
            )
        found.append(f"{key} is {mine}, and {part} is {theirs}, which counts")
    return found


def _stated(fields: Fields, names: Sequence[str]) -> object:
    """Return what a config itself says under the first of these keys, no class's default."""
    return next((fields.get(name) for name in names if fields.has(name)), None)
