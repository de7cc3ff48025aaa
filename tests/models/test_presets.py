"""The presets that are shipped, and how one is found."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcalc.core.errors import InputError, UnavailableError, UnknownNameError
from kvcalc.core.layers import CACHE_KINDS
from kvcalc.models import presets
from kvcalc.models.documents import read_document
from kvcalc.models.presets import (
    GpuPreset,
    ModelPreset,
    all_gpus,
    all_models,
    gpu_names,
    load_gpu,
    load_gpu_preset,
    load_model_preset,
    model_names,
    preset_folder,
    validate_file,
)

# Written by hand; the others are generated from published configs, each with its own figures.
MODELS = [
    "deepseek-v2-lite",
    "deepseek-v3",
    "gemma-3-27b",
    "gpt-oss-20b",
    "jamba-v0.1",
    "llama-2-7b",
    "llama-3.1-405b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "llama-4-scout",
    "nemotron-3-nano-30b-a3b",
    "opt-13b",
    "qwen2.5-72b",
    "qwen3-next-80b-a3b",
    "qwen3.5-27b",
    "qwen3.5-27b-attention",
]
FILES = sorted(preset_folder().glob("*/*.yaml"))

FIGURES = {
    # (model, KV cache dtype) -> bytes a token: papers, logs and engines, not this program
    ("llama-2-7b", "auto"): 524_288,
    ("llama-3.1-8b", "auto"): 131_072,
    ("llama-3.1-70b", "auto"): 327_680,
    ("llama-3.1-405b", "auto"): 516_096,
    ("qwen2.5-72b", "auto"): 327_680,
    ("opt-13b", "auto"): 819_200,
    ("deepseek-v3", "auto"): 70_272,
    ("deepseek-v3", "fp8_ds_mla"): 40_016,
    ("deepseek-v2-lite", "auto"): 31_104,
    ("gemma-3-27b", "auto"): 507_904,
    ("gpt-oss-20b", "auto"): 49_152,
    ("qwen3-next-80b-a3b", "auto"): 24_576,
    ("qwen3.5-27b", "auto"): 65_536,
    ("qwen3.5-27b-attention", "auto"): 65_536,
    ("jamba-v0.1", "auto"): 16_384,
    ("nemotron-3-nano-30b-a3b", "auto"): 6_144,
    ("llama-4-scout", "auto"): 196_608,
}
STATES = {
    "qwen3.5-27b": 153_944_064,
    "qwen3-next-80b-a3b": 39_518_208,
    "jamba-v0.1": 8_716_288,
    "nemotron-3-nano-30b-a3b": 49_082_368,
}


def test_the_models_that_are_shipped() -> None:
    names = [path.stem for path in sorted((preset_folder() / "models").glob("*.yaml"))]
    assert model_names() == sorted(names)
    assert [preset.spec.name for preset in all_models()] == model_names()
    assert set(MODELS) < set(names)
    assert len(names) >= 120


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_sound(path: Path) -> None:
    """Which includes its own expected figures, its sources and its name."""
    assert validate_file(path) == []


@pytest.mark.parametrize(("name", "dtype"), FIGURES)
def test_bytes_a_token(name: str, dtype: str) -> None:
    preset = load_model_preset(name)
    assert preset.spec.bytes_per_token(dtype) == FIGURES[name, dtype]
    stated = preset.expect.bytes_per_token[preset.spec.dtype if dtype == "auto" else dtype]
    assert stated == FIGURES[name, dtype]


@pytest.mark.parametrize("name", MODELS)
def test_state_bytes(name: str) -> None:
    preset = load_model_preset(name)
    assert preset.spec.state_bytes() == preset.expect.state_bytes == STATES.get(name, 0)


@pytest.mark.parametrize("name", MODELS)
def test_a_preset_says_where_it_comes_from(name: str) -> None:
    preset = load_model_preset(name)
    assert preset.file == f"{name}.yaml"
    assert preset.source.file == "config.json"
    assert preset.spec.dtype in preset.expect.bytes_per_token
    assert all(re.search(r"\d", line) for line in preset.expect.confirmed_by)


@pytest.mark.parametrize("presets_", [all_models(), all_gpus()], ids=["models", "gpus"])
def test_no_spelling_means_two_presets(presets_: list[ModelPreset] | list[GpuPreset]) -> None:
    spellings: list[str] = []
    for preset in presets_:
        aliases = preset.names[1:] if isinstance(preset, ModelPreset) else preset.spec.aliases
        spellings += [preset.spec.name, *(alias.lower() for alias in aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("8b", "llama-3.1-8b"),
        ("7B", "llama-2-7b"),
        ("70b", "llama-3.1-70b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert load_model_preset(alias).spec.name == name


def test_gpus() -> None:
    assert {"h100-80gb", "t4", "mi300x"} <= set(gpu_names())
    assert load_gpu("H100").name == "h100-80gb"
    assert load_gpu_preset("h100").file == "h100-80gb.yaml"
    with pytest.raises(UnknownNameError) as caught:
        load_gpu("h100-80g")
    assert caught.value.suggestions[0] == "h100-80gb"


@pytest.mark.parametrize(
    "name", ["llama-3.1-9b", "", "..", "../models/llama-2-7b", "x" * 5000, "a\0b", "a\nb", "ȫ"]
)
def test_an_unknown_name(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model_preset(name)
    assert "kvcalc presets list" in caught.value.hint
    assert "\n" not in str(caught.value)


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model_preset("llama-3.1-9b")
    assert caught.value.suggestions[0] == "llama-3.1-8b"
    with pytest.raises(UnknownNameError) as caught:
        load_model_preset("meta-llama/Llama-3.1-8B-Instruc")
    assert caught.value.suggestions[0] == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    original = Path.open

    def counting(self: Path, *args: Any, **kwargs: Any) -> Any:
        names.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", counting)
    return names


def test_a_name_reads_one_file(opened: list[str]) -> None:
    load_model_preset("llama-3.1-8b")
    load_gpu("T4")
    assert opened == ["llama-3.1-8b.yaml", "t4.yaml"]


def test_listing_reads_none(opened: list[str]) -> None:
    model_names()
    gpu_names()
    assert opened == []


def write(folder: Path, name: str, kind: str = "model", aliases: str = "[]") -> Path:
    """Write a small preset into a folder of presets."""
    text = (
        f"kind: {kind}\nname: {name}\ntitle: T\naliases: {aliases}\narchitecture: A\n"
        "dtype: float16\nnum_hidden_layers: 1\n"
        "layers: [{kind: full_attention, num_kv_heads: 1, head_dim: 1}]\n"
        "source: {repository: r, file: f}\n"
        "expect: {bytes_per_token: {float16: 4}, confirmed_by: [x]}\n"
    )
    path = folder / "models" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_further_folders_come_first(tmp_path: Path) -> None:
    write(tmp_path, "mine", aliases="[8b, Me/Mine]")
    write(tmp_path, "opt-13b")
    assert load_model_preset("me/mine", [tmp_path]).spec.name == "mine"
    assert load_model_preset("8b", [tmp_path]).spec.name == "mine"
    assert load_model_preset("opt-13b", [tmp_path]).spec.bytes_per_token() == 4
    assert load_model_preset("llama-2-7b", [tmp_path]).spec.name == "llama-2-7b"
    assert model_names([tmp_path]) == sorted([*model_names(), "mine"])
    assert len(all_models([tmp_path])) == len(model_names()) + 1
    assert gpu_names([tmp_path]) == gpu_names()


def test_a_folder_without_presets_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="no folder of presets"):
            load_model_preset("opt-13b", [folder])


def test_an_alias_of_two_presets_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "one", aliases="[both]")
    write(tmp_path, "two", aliases="[BOTH]")
    with pytest.raises(InputError, match=r"one\.yaml and two\.yaml both have the alias 'both'"):
        load_model_preset("both", [tmp_path])


def test_a_broken_file_breaks_only_itself(tmp_path: Path) -> None:
    write(tmp_path, "broken", kind="[")
    assert load_model_preset("8b", [tmp_path]).spec.name == "llama-3.1-8b"
    with pytest.raises(InputError) as caught:
        load_model_preset("broken", [tmp_path])
    assert f"models{os.sep}broken.yaml:" in caught.value.where
    with pytest.raises(InputError, match=r"broken\.yaml"):
        all_models([tmp_path])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write to it: a preset of another name is found, its own is refused."""
    for kind in ("models", "gpus"):
        (tmp_path / kind).mkdir()
        os.mkfifo(tmp_path / kind / "of-nobody.yaml")
    assert load_model_preset("llama-3.1-8b", [tmp_path]).spec.name == "llama-3.1-8b"
    assert load_gpu("h100-80gb", [tmp_path]).name == "h100-80gb"
    for load in (load_model_preset, load_gpu):
        with pytest.raises(InputError, match="is no regular file"):
            load("of-nobody", [tmp_path])
    for list_all in (all_models, all_gpus):
        with pytest.raises(InputError, match="is no regular file"):
            list_all([tmp_path])


def test_a_file_under_another_name(tmp_path: Path) -> None:
    path = write(tmp_path, "one")
    path.rename(path.with_name("two.yaml"))
    with pytest.raises(InputError, match=r"name is one, the file is 'two\.yaml'"):
        load_model_preset("two", [tmp_path])


def test_an_installed_package_carries_its_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kvcalc"
    monkeypatch.setattr(presets, "_PACKAGE", package)
    with pytest.raises(UnavailableError, match="missing"):
        preset_folder()
    write(tmp_path / "presets", "beside")
    assert preset_folder() == tmp_path / "presets"
    write(package / "_presets", "inside")
    assert preset_folder() == package / "_presets"
    assert model_names() == ["inside"]


def test_the_readme_lists_every_kind_with_its_fields() -> None:
    text = (preset_folder() / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `(.*)` \|$", text, re.MULTILINE))
    assert set(rows) == set(CACHE_KINDS)
    for kind, cls in CACHE_KINDS.items():
        required, _, optional = rows[kind].partition("[")
        fields = msgspec.structs.fields(cls)
        assert set(re.findall(r"\w+", required)) == {f.name for f in fields if f.required}, kind
        assert set(re.findall(r"\w+", optional)) == {f.name for f in fields if not f.required}, kind


def test_the_readme_example_is_sound(tmp_path: Path) -> None:
    text = (preset_folder() / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(kind: model.*?)```", text, re.DOTALL)
    assert example is not None
    path = tmp_path / "my-model-7b.yaml"
    path.write_text(example[1], encoding="utf-8")
    assert validate_file(path) == []


def test_a_hint_offers_each_preset_once() -> None:
    """A preset's name and its alias are one thing to offer."""
    with pytest.raises(UnknownNameError) as caught:
        load_model_preset("deepseek-r1-distill-qwen-7b")
    offered = caught.value.hint.partition("did you mean ")[2].partition("?")[0].split(" or ")
    assert "deepseek-r1-distill-qwen-32b" in offered
    names = [load_model_preset(one).file for one in offered]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_are_read_by_line_as_they_are_read_as_yaml(path: Path) -> None:
    """Names alone are read without a YAML reader; what is written otherwise is left to one."""
    found = presets._listed_aliases(path.read_text(encoding="utf-8"))
    value: Any = read_document(path.read_text(encoding="utf-8"), path.name).value
    if found is None:
        assert path.parent.name == "gpus"  # "3090" is quoted there
    else:
        variants = value.get("variants") or []
        assert found == [
            *(value.get("aliases") or []),
            *(name for variant in variants for name in variant["names"]),
        ]


def test_no_yaml_is_read_for_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the preset that has it."""
    read: list[str] = []

    def counted(text: str, file: str) -> Any:
        read.append(file)
        return read_document(text, file)

    monkeypatch.setattr(presets, "read_document", counted)
    assert load_model_preset("meta-llama/Llama-3.1-8B-Instruct").spec.name == "llama-3.1-8b"
    assert presets.alias_index()["meta-llama/llama-3.1-8b"] == "llama-3.1-8b"
    assert read == ["llama-3.1-8b.yaml"]
