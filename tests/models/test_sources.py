"""What a user may call a model, and what is refused with both readings."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvcalc.core.errors import (
    InputError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import preset_folder
from tests.models.gguf.writer import metadata

OPT = preset_folder() / "models" / "opt-13b.yaml"


def test_names_paths_and_stdin_are_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("opt-13b")
    monkeypatch.chdir(tmp_path)
    data = OPT.read_bytes()
    for name in ("my opt.yaml", "a.yml", "plain"):
        Path(name).write_bytes(data)
    folder = Path("folder")
    folder.mkdir()
    (folder / "x").write_bytes(data)
    assert load_model("facebook/OPT-13b") == model
    assert load_model(str(OPT)) == model
    assert load_model("my opt.yaml") == model
    assert load_model("a.yml") == model
    assert load_model("./plain") == model
    assert load_model("folder/x") == model
    assert load_model("-", stdin=io.BytesIO(data)) == model
    assert (
        load_model("-", stdin=io.BytesIO(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))) == model
    )


def test_a_name_that_is_also_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("8b").write_bytes(OPT.read_bytes())
    Path("opt-13b").mkdir()
    with pytest.raises(UsageError) as caught:
        load_model("8b")
    assert caught.value.hint == "./8b for the path, llama-3.1-8b for the preset"
    assert load_model("./8b").name == "opt-13b"
    with pytest.raises(UsageError) as caught:
        load_model("opt-13b")
    assert caught.value.hint == "./opt-13b for the path, facebook/opt-13b for the preset"
    Path("facebook").mkdir()
    Path("facebook/opt-13b").mkdir()
    with pytest.raises(UsageError) as caught:
        load_model("facebook/opt-13b")
    assert "another folder for the preset" in caught.value.hint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("config.json", "no such file"),
        ("./x/config.json", "no such file"),
        ("model.GGUF", "no such file"),
        ("model.safetensors", "safetensors files hold weights, not the model's shape"),
        (".", "the folder holds no config.json"),
        ("./", "the folder holds no config.json"),
    ],
)
def test_files_that_are_not_there(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is told apart by its spelling, and its fault by what it would be."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_model(source)
    assert caught.value.message == message


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "torch_dtype": "bfloat16",
}


GGUF_KEYS = {
    "context_length": 2048,
    "embedding_length": 512,
    "block_count": 2,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}


def test_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config.json, its folder, and the same on stdin are one model, called after the folder."""
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    monkeypatch.chdir(folder)
    read = [load_model(s) for s in ("config.json", "./", str(folder))]
    stdin = load_model("-", stdin=io.BytesIO(json.dumps(LLAMA).encode()))

    assert {m.name for m in read} == {"tiny-llama"}
    # Each says what an engine would be given to load it: the folder as it was named.
    assert [m.origin for m in read] == [".", ".", str(folder)]
    assert read[0] == read[1] == msgspec.structs.replace(read[2], origin=".")
    assert stdin.origin is None
    assert stdin.layers == read[0].layers
    assert read[0].bytes_per_token() == 2 * 2 * 2 * 64 * 2
    assert load_model("config.json", kind="config") == read[0]


def test_files_whose_names_tell_nothing(tmp_path: Path) -> None:
    """What a file holds decides where its name does not: JSON, GGUF or a preset."""
    (tmp_path / "config").write_text("\n" + json.dumps(LLAMA), encoding="utf-8")
    (tmp_path / "weights").write_bytes(metadata("llama", GGUF_KEYS))
    (tmp_path / "preset.txt").write_bytes(OPT.read_bytes())

    assert load_model(str(tmp_path / "config")).bytes_per_token() == 2 * 2 * 2 * 64 * 2
    assert load_model(str(tmp_path / "weights")).bytes_per_token() == 2 * 2 * 2 * 64 * 2
    assert load_model(str(tmp_path / "preset.txt")).name == "opt-13b"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("<!doctype html><html></html>", "web page"),
        ('{"model_type": "llama",}', "as published"),
    ],
)
def test_what_is_often_taken_for_a_config(tmp_path: Path, text: str, hint: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        load_model(str(path))
    assert hint in caught.value.hint


def test_index_is_no_config(tmp_path: Path) -> None:
    """The index of the shards lies beside the config and is easily taken for it."""
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"weight_map": {}}', encoding="utf-8")
    with pytest.raises(InputError, match="index of weights") as caught:
        load_model(str(path))
    assert "config.json" in caught.value.hint


def test_what_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError) as caught:
        load_model("meta-llama/Llama-3.1-9B")
    assert caught.value.hint.startswith("no file has this path either; hf:meta-llama/Llama-3.1-9B")
    assert "did you mean " in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        load_model("lama-3.1-8b")
    assert caught.value.suggestions[0] == "llama-3.1-8b"
    for path in ("./missing", "missing.yaml", str(tmp_path / "missing")):
        with pytest.raises(InputError, match="no such file"):
            load_model(path)
    for odd in ("", "\0", "/\0.yaml", "x" * 5000, "a/" + "x" * 5000, "~/\n.yaml"):
        with pytest.raises((InputError, UnknownNameError)) as refused:
            load_model(odd)
        assert "\n" not in str(refused.value)


def test_a_gpu_is_no_model() -> None:
    with pytest.raises(InputError, match="this is a gpu preset; a model preset is wanted here"):
        load_model(str(preset_folder() / "gpus" / "t4.yaml"))


def test_a_fault_names_the_path_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("kind: model\nlayers: [\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_model("./a.yaml")
    assert caught.value.where.startswith("./a.yaml:")
    with pytest.raises(InputError) as caught:
        load_model("-", stdin=io.BytesIO(b"kind: model\nkind: model\n"))
    assert caught.value.where == "stdin:2"


def test_shapes() -> None:
    model = shape_model(16, 4, 256, max_position_embeddings=8192)
    assert model.name == "16 layers x 4 KV heads x 256"
    assert model.bytes_per_token() == 65_536
    assert model.max_position_embeddings == 8192
    assert shape_model(1, 1, 192, v_head_dim=128).name == "1 layer x 1 KV head x 192/128"
    assert shape_model(1, 1, 192, 128, "float32").bytes_per_token() == 1280
    with pytest.raises(InvalidValueError):
        shape_model(0, 1, 1)
    with pytest.raises(UnsupportedError):
        shape_model(1, 1, 1, dtype="int8")


def test_a_preset_needs_nothing_heavy() -> None:
    """In a fresh interpreter: neither numpy nor what only the command line needs."""
    code = (
        "import sys, kvcalc.models as m; assert 'yaml' not in sys.modules;"
        "m.load_model('llama-3.1-8b');"
        "print([x for x in ('numpy', 'rich', 'typer', 'pydantic') if x in sys.modules])"
    )
    root = preset_folder().parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
