"""A config that contradicts itself: lists of layers in every family, nested parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError
from kvcalc.models.hf_config import read_config
from kvcalc.models.hf_config.registry import ARCHITECTURES

from .builders import SMALL, read


def _plain() -> dict[str, dict[str, Any]]:
    """Return a config of every class that small ones were recorded of."""
    lines = Path(__file__).with_name("pairs.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {
        row["architecture"]: {"architectures": [row["architecture"]], **row["config"]}
        for row in rows
        if row["id"].endswith(": as it is")
    }


PLAIN = _plain()
DSA: dict[str, Any] = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    **SMALL,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
}


LIST_DECIDES = {"NemotronHForCausalLM"}
"""Classes whose number of layers is the list's own length (transformers NemotronHConfig)."""


def test_most_families_have_a_small_config() -> None:
    """So that the lists below are fed to them."""
    families = {ARCHITECTURES[name] for name in PLAIN if name in ARCHITECTURES}

    assert len(PLAIN) > 50
    assert len(families) > 35


@pytest.mark.parametrize("architecture", [*sorted(PLAIN), "GlmMoeDsaForCausalLM"])
@pytest.mark.parametrize("name", ["layer_types", "mlp_layer_types"])
def test_lists_of_layers_in_every_family(architecture: str, name: str) -> None:
    """A word that no class has, and a list of another length, whatever the family reads."""
    config = PLAIN.get(architecture, DSA)
    try:
        plain = read_config(config, "config.json", "x")
    except KvcalcError:
        return  # refused as it is, which its own test says
    count, drafts = plain.num_hidden_layers, sum(run.count for run in plain.draft_layers)
    word = "full_attention" if name == "layer_types" else "sparse"
    for inner in ("text_config", ""):
        if inner and not isinstance(config.get(inner), dict):
            continue
        lists: list[list[object]] = [["foo"] * count, [7] * count]
        if architecture not in LIST_DECIDES:
            lists += [[word] * (count + drafts + 1), [word] * (count - 1)]
        for words in lists:
            changed = {**config[inner], name: words} if inner else {name: words}
            with pytest.raises(KvcalcError) as caught:
                read_config({**config, **({inner: changed} if inner else changed)}, "c.json", "x")
            assert caught.value.where == "c.json"
        break


def test_the_word_and_the_length_are_named() -> None:
    """With the nearest known word; the number of layers."""
    with pytest.raises(UnknownNameError, match="layer_types"):
        read_config({**DSA, "layer_types": ["foo"] * 8}, "config.json", "x")
    with pytest.raises(InputError, match="7 entries, not one for each of 8 layers"):
        read_config({**DSA, "layer_types": ["deepseek_sparse_attention"] * 7}, "config.json", "x")


def test_lists_may_go_on_with_draft_layers() -> None:
    """Step-3.5's list has an entry for each of them."""
    config = {
        **DSA,
        "num_nextn_predict_layers": 2,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 7,
    }

    assert read_config(config, "config.json", "x").num_hidden_layers == 8


def test_recurrent_layers_of_a_class_without_any() -> None:
    """The list is of another model."""
    with pytest.raises(InputError, match="lists linear_attention layers"):
        read_config({**DSA, "layer_types": ["linear_attention"] * 8}, "config.json", "x")


def test_a_nested_part_of_a_class_of_text_alone() -> None:
    """Two shapes are refused; one shape said twice is none too many."""
    with pytest.raises(InputError, match=r"num_hidden_layers is 8, and text_config\.num_hidden_la"):
        read("LlamaForCausalLM", text_config={**SMALL, "num_hidden_layers": 4})
    assert read("LlamaForCausalLM", text_config=SMALL).num_hidden_layers == 8
    other = read("LlamaForCausalLM", text_config={"vocab_size": 5}, vocab_size=6)
    assert other.contradictions == (
        "vocab_size is 6, and text_config.vocab_size is 5, which counts",
    )


def test_a_nested_part_of_a_class_with_images() -> None:
    """The nested part counts, as in the class; what the outer keys say otherwise is said."""
    part = {**SMALL, "model_type": "llama", "num_hidden_layers": 4}
    config: dict[str, Any] = {"architectures": ["LlavaForConditionalGeneration"]}
    found = read_config({**config, **SMALL, "text_config": part}, "config.json", "x")

    assert found.num_hidden_layers == 4
    assert found.contradictions == (
        "num_hidden_layers is 8, and text_config.num_hidden_layers is 4, which counts",
    )
    assert not read_config({**config, "text_config": part}, "config.json", "x").contradictions
