"""config.json of the Hugging Face kind to a ModelSpec: the family's own rules, or a refusal."""

from __future__ import annotations

from typing import Any

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config.class_defaults import class_defaults
from kvcalc.models.hf_config.consistent import check_layer_lists, check_nested
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import kv_scheme, model_dtype, query_heads
from kvcalc.models.hf_config.positions import stretched
from kvcalc.models.hf_config.registry import (
    ARCHITECTURES,
    MODEL_TYPES,
    NESTED,
    family,
    model_type_of,
)
from kvcalc.models.hf_config.size import model_size
from kvcalc.models.hf_config.traits import encoder_divisor, mamba_chunk_size, traits

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
