"""config.json of the Hugging Face kind to a ModelSpec: the family's own rules, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec, Trait
from kvcalc.core.recurrent import Mamba1, Mamba2
from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.hf_config.class_defaults import class_defaults
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import kv_scheme, model_dtype, query_heads
from kvcalc.models.hf_config.registry import (
    ARCHITECTURES,
    MODEL_TYPES,
    NESTED,
    family,
    model_type_of,
)
from kvcalc.models.hf_config.size import model_size

__all__ = ["read_config"]


_MAX_NESTING = 3  # thinker_config.text_config is the deepest published
_OVERRIDES = "model_max_length"
_LEAST_OF = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_ELSE = ("n_ctx", "max_context_length")
_LENGTHS = (_OVERRIDES, *_LEAST_OF, *_ELSE)
"""Spellings of the longest sequence: Cohere's wins, of the others the least counts (vLLM 0.33
model_arch_config_convertor.py, derive_max_model_len_and_key)."""


def _longest(text: Fields) -> int | None:
    """Return the longest sequence that a config says."""
    stated = [text.whole(name) for name in _LEAST_OF if text.has(name)]
    if text.has(_OVERRIDES) or not stated:
        return text.whole(*_LENGTHS)
    return min(length for length in stated if length is not None)


def read_config(config: dict[str, Any], where: str, name: str) -> ModelSpec:
    """Return the model that a config.json describes.

    Args:
        config: the parsed file (`json_documents.read_json`).
        where: the file, for errors.
        name: what to call the model.

    Raises:
        UnknownNameError: an architecture or a layer type that kvcalc does not know.
        UnsupportedError: one that it knows and does not model.
        InputError: a missing, null or nonsensical value that sizing needs.
    """
    outer = Fields(config, where)
    architecture = _architecture(outer)
    try:
        text, against = _language_model(outer, architecture)
        found = family(architecture, where)(text)
        check_layer_lists(text, found.layers, found.draft)
        cache_asked, longest = kv_scheme(outer, text), _longest(text)
        return ModelSpec(
            name=name,
            architecture=architecture,
            num_hidden_layers=sum(run.count for run in found.layers),
            dtype=model_dtype(text, outer),
            kv_cache_dtype=cache_asked.dtype,
            kv_cache_method=cache_asked.method,
            max_position_embeddings=longest,
            stretched_position_embeddings=stretched(outer, text, longest),
            layers=found.layers,
            draft_layers=found.draft,
            num_attention_heads=query_heads(text, found.layers),
            encoder_divisor=encoder_divisor(outer),
            mamba_chunk_size=mamba_chunk_size(text, found.layers),
            traits=traits(architecture, outer, text),
            size=model_size(architecture, outer, text, found.layers),
            contradictions=tuple(dict.fromkeys(against)),
            notes=tuple(dict.fromkeys(outer.notes)),
        )
    except KvcalcError as error:
        error.where = error.where or where
        # Two values that are sound each on its own and not together are found by the model itself.
        error.hint = error.hint or "correct the config, or give --layers, --kv-heads and --head-dim"
        raise


def _architecture(outer: Fields) -> str:
    names = outer.items("architectures")
    if names:
        if not isinstance(names[0], str):
            raise outer.fault("architectures", names[0], "a list of class names")
        _note_another_type(outer, names[0], outer.text("model_type"))
        return names[0]
    model_type = outer.text("model_type")
    if model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    raise InputError(
        "architectures is missing"
        + (f" and model_type {model_type!r:.60} is not known" if model_type else ""),
        hint="add the architectures line of the published config.json",
        where=outer.where,
    )


def _note_another_type(outer: Fields, architecture: str, model_type: str | None) -> None:
    """Say so where `model_type` is of another family than `architectures`, which decides."""
    other = MODEL_TYPES.get(model_type or "", architecture)
    families = {ARCHITECTURES.get(architecture, ""), ARCHITECTURES.get(other, "")}
    # A multimodal wrapper and the language model in it go by either's name.
    if len(families) > 1 and "nested" not in families:
        outer.notes.append(f"read as {architecture}, though model_type {model_type} is {other}")


_TEXT_ALONE = "ForCausalLM"
"""How classes end that have no nested part, those of the family `nested` apart."""


def _language_model(outer: Fields, architecture: str) -> tuple[Fields, list[str]]:
    """Return the part that describes the decoder, with the outer keys where it lacks them.

    And what the two say against one another.
    """
    composite = (
        not architecture.endswith(_TEXT_ALONE) or ARCHITECTURES.get(architecture) == "nested"
    )
    against: list[str] = []
    model_type = outer.text("model_type") or model_type_of(architecture)
    defaults = class_defaults(model_type)
    text = inner = outer.of_class(defaults.of_whole_file())
    for _ in range(_MAX_NESTING):
        nested = inner.section(*NESTED)
        if nested is None:
            break
        against += check_nested(inner, nested, composite=composite)
        # A part that does not name its class is of the class that the whole config's has for it.
        own = nested.text("model_type")
        inner = nested.of_class(class_defaults(own) if own else defaults)
        text = inner.over(text)
    return text, against


# Positions that a config's rope scaling stretches beyond those that the model was made for.

_KEYS = ("rope_scaling", "rope_parameters")
_STRETCHING = ("linear", "dynamic", "ntk", "yarn")
"""Kinds whose factor multiplies positions; of longrope and llama3 the maximum is scaled already."""


def stretched(outer: Fields, text: Fields, positions: int | None) -> int | None:
    """Return the longest sequence with the config's rope scaling; None where it is no more.

    vLLM (vllm/config/model.py, _get_and_verify_max_len) multiplies the positions by the factor,
    those from before the scaling where yarn tells them. Gemma 3 states its maximum scaled.

    Args:
        outer: the config.
        text: its language model's.
        positions: max_position_embeddings; None where there is none.
    """
    scaling = next(
        (given for f in (text, outer) for key in _KEYS if (given := f.quietly(key))), None
    )
    if not isinstance(scaling, Mapping) or positions is None:
        return None
    if "gemma3" in str(text.quietly("model_type") or outer.quietly("model_type") or ""):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1)
    if kind not in _STRETCHING or isinstance(factor, bool) or not isinstance(factor, (int, float)):
        return None
    first = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
    base = first if isinstance(first, int) and not isinstance(first, bool) else positions
    if not 1 < factor <= MAX_DIMENSION:
        return None
    found = int(base * factor)
    if not positions < found <= MAX_DIMENSION:
        return None
    outer.notes.append(
        f"rope scaling ({kind}, factor {factor:g}) stretches {format_count(positions)} positions to"
        f" {format_count(found)}, which vLLM takes for the longest sequence"
    )
    return found


# What a config says of a model that changes no row, and yet which kernels can serve it.

_ALIBI = ("BloomForCausalLM", "MPTForCausalLM", "MptForCausalLM")
_SINKS = ("GptOssForCausalLM",)
_IMAGE_PREFIX = (
    "Gemma3ForConditionalGeneration",
    "PaliGemmaForConditionalGeneration",
)
_BAICHUAN_7B = 4096  # hidden size of the Baichuan that has rotary positions


def traits(architecture: str, outer: Fields, text: Fields) -> tuple[Trait, ...]:
    """Return the traits of a model.

    Args:
        architecture: the class name.
        outer: the whole config.
        text: the part that describes the decoder.
    """
    found: list[Trait] = []
    if _alibi(architecture, text):
        found.append("alibi")
    # vLLM 0.33 models/{gpt_oss,mimo_v2}.py.
    swa_sinks = text.has("add_swa_attention_sink_bias") and text.flag(
        "add_swa_attention_sink_bias", default=False
    )
    if architecture in _SINKS or swa_sinks:
        found.append("attention_sinks")
    # vLLM 0.33 transformers_utils/model_arch_config_convertor.py, is_mm_prefix_lm.
    both_ways = (
        architecture.startswith("Gemma4")
        and outer.has("vision_config")
        and text.get("use_bidirectional_attention") == "vision"
    )
    if architecture in _IMAGE_PREFIX or both_ways:
        found.append("image_prefix")
    return tuple(found)


def _alibi(architecture: str, text: Fields) -> bool:
    if architecture.startswith("Falcon") and text.has("alibi"):
        return text.flag("alibi", default=False)
    if architecture == "BaichuanForCausalLM":
        # vLLM before 0.29 models/baichuan.py: only the 7B has rotary positions.
        return text.whole("hidden_size") != _BAICHUAN_7B
    return architecture in _ALIBI


def mamba_chunk_size(text: Fields, layers: tuple[LayerRun, ...]) -> int | None:
    """Return the tokens that Mamba layers compute at once, where the config says.

    vLLM 0.31 config/model.py, get_mamba_chunk_size.
    """
    if not any(isinstance(c, (Mamba1, Mamba2)) for run in layers for c in run.caches):
        return None
    return text.whole("mamba_chunk_size", "chunk_size")


def encoder_divisor(outer: Fields) -> int | None:
    """Return what a tensor-parallel size must divide for the vision encoder; None for no bound.

    vLLM 0.33 models/{qwen2_vl,qwen2_5_vl,qwen3_vl,glm4_1v}.py split heads and channels by rank, and
    Kimi-K3's encoder its channels alone; encoders that spell their heads otherwise are padded or
    kept whole.
    """
    vision = outer.section("vision_config")
    if vision is None:
        return None
    if any(str(name).startswith("KimiK3") for name in outer.items("architectures") or ()):
        return vision.whole("vt_intermediate_size")
    heads = vision.whole("num_heads")
    if heads is None:
        return None
    return gcd(heads, vision.whole("intermediate_size") or 0)


# What every family's config must agree on with itself: lists of layers, and a nested part.

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
_ALSO_EQUAL = (("max_position_embeddings",), ("sliding_window",), ("vocab_size",))


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
    for names in (*_SHAPE, *_ALSO_EQUAL):
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
