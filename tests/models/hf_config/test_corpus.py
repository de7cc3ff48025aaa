"""Every config of the corpus gives a model or a refusal that names the missing rule."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcalc.core.errors import KvcalcError, UnknownNameError
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.class_defaults import class_defaults
from kvcalc.models.hf_config.families.full import read_nested
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.registry import (
    ARCHITECTURES,
    MODEL_TYPES,
    NESTED,
    family,
    model_type_of,
)
from kvcalc.models.json_documents import read_json_file

from .oracles import ABSENT, SHARED, vllm_rows

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

REFUSED = {
    "NX-AI--xLSTM-7b": "a kind of state that is not modelled; neither engine serves it",
}
"""File -> why it gives no model."""

NOT_YET = {
    "AfmoeForCausalLM",
    "DeepseekOCR2ForCausalLM",
    "DeepseekOCRForCausalLM",
    "Dots1ForCausalLM",
    "DotsOCRForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Exaone4_5_ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Glm5NextForConditionalGeneration",
    "GlmOcrForConditionalGeneration",
    "HYV3ForCausalLM",
    "HunYuanVLForConditionalGeneration",
    "InternS1ForConditionalGeneration",
    "KimiAudioForConditionalGeneration",
    "MellumForCausalLM",
    "MiMoV2ForCausalLM",
    "MistralLarge3ForCausalLM",
    "MuseGlimmerForConditionalGeneration",
    "Qwen4ExpForConditionalGeneration",
    "UnlimitedOCRForCausalLM",
    "mistral4",
}
"""Classes, and model types of language models in others, that no module reads yet.

Each is refused by its name. One that is neither read nor named here fails the tests.
"""


def lacking(config: dict[str, Any]) -> set[str]:
    """Return the names in a config that no module reads yet."""
    inner = config.get("text_config") or {}
    return NOT_YET & {*config.get("architectures", ()), inner.get("model_type")}


def files(folder: str) -> list[Path]:
    return sorted((SHARED / "corpus" / folder).glob("*.json"))


def both() -> Iterator[tuple[str, dict[str, Any], ModelSpec]]:
    """Yield (name, config, model) of every file that gives a model."""
    for path in (*files("configs"), *files("reconstructed")):
        config = read_json_file(path)
        if path.stem not in REFUSED and not lacking(config):
            yield path.stem, config, read_config(config, path.name, path.stem)


def refusals(folder: str) -> dict[str, KvcalcError]:
    found = {}
    for path in files(folder):
        try:
            read_config(read_json_file(path), path.name, path.stem)
        except KvcalcError as error:
            found[path.stem] = error
    return found


@needs_shared
@pytest.mark.parametrize(
    ("folder", "count", "most"), [("configs", 273, 0.02), ("reconstructed", 457, 0.06)]
)
def test_files_are_read_or_refused_for_a_reason(folder: str, count: int, most: float) -> None:
    """As many refusals as allowed, each one known, of nothing that vLLM or llama.cpp was asked."""
    refused = refusals(folder)
    answered = {row["model"] for row in vllm_rows()}

    assert len(files(folder)) == count
    assert len(refused) <= most * count
    assert not answered & set(refused)
    for path in files(folder):
        error = refused.get(path.stem)
        names = lacking(read_json_file(path))
        assert (error is not None) == (path.stem in REFUSED or bool(names)), (path.stem, error)
        if error is not None:
            assert error.hint
            assert all(repr(name) in str(error) for name in names)


@needs_shared
def test_every_refusal_in_the_tables_happens() -> None:
    """The tables of refusals hold nothing that has since been modelled, nor that no file has."""
    every = [*files("configs"), *files("reconstructed")]

    assert set(REFUSED) <= {*refusals("configs"), *refusals("reconstructed")}
    assert set().union(*(lacking(read_json_file(path)) for path in every)) == NOT_YET


def sizes(model: ModelSpec) -> tuple[object, ...]:
    """Return what a number depends on; notes say where values come from, and may differ."""
    return (model.layers, model.draft_layers, model.dtype, model.kv_cache_dtype)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def with_unknown_keys(config: dict[str, Any]) -> dict[str, Any]:
    more = {"zz_unknown": 7, "zz_list": [1, {"a": None}], "_zz": {"num_hidden_layers": 1}}
    return {
        **{k: with_unknown_keys(v) if k in NESTED else v for k, v in config.items()},
        **more,
    }


SIZING = (
    "head_dim",
    "kv_lora_rank",
    "layer_types",
    "max_window_layers",
    "multi_query",
    "n_head_kv",
    "no_rope_layers",
    "num_key_value_heads",
    "num_kv_heads",
    "num_kv_shared_layers",
    "num_nextn_predict_layers",
    "sliding_window",
    "sliding_window_pattern",
    "torch_dtype",
    "use_sliding_window",
)


def with_nulls(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Return the config with a null for each of these keys that it leaves out.

    Not for the keys where the class takes a null at its word.
    """
    model_type = config.get("model_type") or model_type_of(architecture)
    own = class_defaults(model_type).nullable
    inner = {k: with_nulls(v, "") if k in NESTED and v else v for k, v in config.items()}
    return {**{key: None for key in SIZING if key not in own}, **inner}


@needs_shared
def test_neutral_changes_change_nothing() -> None:
    """Key order, unknown keys, and null for an absent key give the same model."""
    differ = []
    read = 0
    for name, config, model in both():
        read += 1
        changes = {
            "order": reversed_keys(config),
            "unknown keys": with_unknown_keys(config),
            "nulls": with_nulls(config, model.architecture or ""),
        }
        for what, changed in changes.items():
            try:
                same = sizes(read_config(changed, "config.json", name)) == sizes(model)
            except KvcalcError as error:
                differ.append((name, what, str(error)))
            else:
                if not same:
                    differ.append((name, what, "another model"))

    assert read == 273 + 457 - len(REFUSED) - 28  # of the classes that are not read yet
    assert not differ


@needs_shared
def test_explicit_defaults_change_nothing() -> None:
    """A key written out with the value that a note says was its default gives the same model."""
    differ = []
    tried = 0
    for name, config, model in both():
        for note in model.notes:
            path, found, rest = note.partition(" is left out: ")
            value = rest.split(" ", 1)[0]
            if not found or not value.isdigit():
                continue
            tried += 1
            changed = json.loads(json.dumps(config))
            part = changed
            *parents, key = path.split(".")
            for parent in parents:
                part = part[parent]
            part[key] = int(value)
            if sizes(read_config(changed, "config.json", name)) != sizes(model):
                differ.append((name, note))

    assert tried >= 19
    assert not differ


@needs_shared
def test_models_survive_a_round_trip() -> None:
    """A model read from a config is a value like any other: it is written and read back."""
    for _, _, model in both():
        assert msgspec.json.decode(msgspec.json.encode(model), type=ModelSpec) == model


NONSENSE: tuple[Any, ...] = (-1, 0.5, "8", [], {}, [[]], True, 2**63, [None], {"a": 1}, "")


@needs_shared
def test_nonsense_is_an_error_of_ours_that_names_its_place() -> None:
    """A wrong type or size under any key: a model, or one of our errors; never a traceback."""
    seeded = random.Random(20261130)
    for name, config, _ in both():
        for _ in range(12):
            changed = json.loads(json.dumps(config))
            parts = [changed]
            for key in NESTED:
                part = parts[-1].get(key)
                if isinstance(part, dict):
                    parts.append(part)
            part = seeded.choice(parts)
            key = seeded.choice([k for k in part if not isinstance(part[k], float)])
            part[key] = seeded.choice(NONSENSE)
            try:
                read_config(changed, "config.json", name)
            except KvcalcError as error:
                assert error.where == "config.json", (name, key, error)
                assert "\n" not in str(error)
                assert error.hint


def test_every_architecture_has_its_module() -> None:
    """Each line of the registry leads to a reader, and each model type to an architecture."""
    for architecture in ARCHITECTURES:
        assert callable(family(architecture, "config.json"))
    assert set(MODEL_TYPES.values()) <= set(ARCHITECTURES)


def test_an_unknown_architecture_is_refused_with_the_nearest() -> None:
    """A misspelt class is not guessed at."""
    with pytest.raises(UnknownNameError, match="LlamaForCausalLn") as caught:
        read_config({"architectures": ["LlamaForCausalLn"]}, "config.json", "x")

    assert "LlamaForCausalLM" in caught.value.hint


def test_a_language_model_of_no_known_class_is_refused() -> None:
    """A vision model around something unknown says so, and does not call itself."""
    with pytest.raises(KvcalcError, match="model_type 'mystery'"):
        read_nested(Fields({"model_type": "mystery"}, "config.json"))
