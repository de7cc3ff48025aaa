"""The longest sequence of a preset: from two sources, and an alias may have its own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kvcalc.checks.models import Models
from kvcalc.models import load_model
from kvcalc.models.presets import all_models, load_model_preset, validate_file
from tests.tools.generate_presets import LENGTHS

UNCONFIRMED = {
    "aya-23-8b",
    "c4ai-command-r-v01",
    "codefuse-devops-model-7b-chat",
    "megrez-3b",
    "ministral-3-3b-instruct-2512-bf16",
    "qwen2.5-omni-7b",
    "starcoderbase-7b",
    "vila1.5-3b",
    "voxtral-mini-3b-2507",
    "yuan2-2b",
}
"""Presets whose longest sequence was read in one place alone."""


def test_every_maximum_has_two_sources_or_is_listed() -> None:
    """Files are edited for runtimes that take less: one copy alone may be wrong."""
    one = {
        preset.spec.name
        for preset in all_models()
        if preset.spec.max_position_embeddings is not None and not preset.source.maximum
    }

    assert one == UNCONFIRMED


def test_presets_are_what_the_table_says() -> None:
    """Each row is in its preset: the model's own length, or that of a variant."""
    with LENGTHS.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(rows) > 190
    for row in rows:
        spec = load_model(row["repository"] or row["preset"])
        longest = row["max_position_embeddings"]
        assert str(spec.max_position_embeddings or "") == longest, row
        stretched = row["stretched_position_embeddings"]
        assert not stretched or str(spec.stretched_position_embeddings) == stretched, row


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 32_768),
        ("qwen2.5-7b-instruct", 32_768),
        ("QWEN/QWEN2-7B-INSTRUCT", 32_768),
        ("Qwen/Qwen2.5-72B-Instruct", 32_768),
        ("Qwen/Qwen2.5-7B", 131_072),
        ("qwen2.5-vl-3b", 128_000),
        ("chatglm3-6b-32k", 32_768),
        ("Qwen/QwQ-32B", 40_960),
    ],
)
def test_lengths_by_name(name: str, longest: int) -> None:
    """By every way that leads to a model: a preset, a served name."""
    assert load_model(name).longest == longest
    assert Models().find(name).model.longest == longest


DIFFERS = """    max_position_embeddings: 64
    weights_dtype: fp8
    kv_cache_dtype: fp8_e4m3
"""
PRESET = """kind: model
name: mine
title: T
aliases: [me/mine]
variants:
  - names: [me/mine-fp8, mine-8]
    max_position_embeddings: 64
    weights_dtype: fp8
    kv_cache_dtype: fp8_e4m3
    source: its config.json
architecture: LlamaForCausalLM
dtype: bfloat16
num_hidden_layers: 1
max_position_embeddings: 128
layers:
  - {kind: full_attention, num_kv_heads: 1, head_dim: 8}
size: {weights_bytes: 1000, weights_dtype: bfloat16, weights_source: its index}
source: {repository: me/mine, file: config.json}
expect: {bytes_per_token: {bfloat16: 32}, confirmed_by: [nobody]}
"""


def folder(tmp_path: Path, text: str) -> Path:
    """Write a folder of one preset."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_variant_differs_in_what_it_says(tmp_path: Path) -> None:
    """And in nothing else; the weights of another format are not the preset's bytes."""
    folders = [folder(tmp_path, PRESET)]
    plain, variant = (load_model_preset(n, folders).spec for n in ("me/mine", "ME/Mine-FP8"))

    assert (plain.longest, plain.kv_cache_dtype) == (128, None)
    assert plain.size is not None
    assert plain.size.weights_bytes == 1000
    assert (variant.longest, variant.kv_cache_dtype) == (64, "fp8_e4m3")
    assert variant.size is not None
    assert (variant.size.weights_bytes, variant.size.weights_dtype) == (None, "fp8")
    assert variant.layers == plain.layers
    assert variant.origin == "me/mine-fp8"
    assert any("max_position_embeddings 64" in note for note in variant.notes)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("    source: its config.json\n", "", "source is missing"),
        ("mine-8]", "me/mine]", "is a name of this file already"),
        ("weights_dtype: fp8\n", "weights_dtype: junk\n", "junk"),
        ("kv_cache_dtype: fp8_e4m3\n", "kv_cache_dtype: junk\n", "junk"),
        (DIFFERS, "", "nothing differs"),
        ("    max_position_embeddings: 64\n", "    layers: []\n", "unknown field"),
    ],
)
def test_faults_of_variants(tmp_path: Path, old: str, new: str, fault: str) -> None:
    """Each is named, with its line."""
    assert old in PRESET
    path = folder(tmp_path, PRESET.replace(old, new, 1)) / "models" / "mine.yaml"
    faults = validate_file(path)

    assert any(fault in one.message for one in faults), faults
    assert all(one.line > 1 for one in faults)
