"""A file with many faults: all of them at once, each with its line, in plain words."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.layers import MAX_LAYERS
from kvcalc.models.documents import read_document
from kvcalc.models.preset_files import check_document
from kvcalc.models.presets import check_gpu, check_model, model_from_document, validate_file

MANY = """\
kind: model
name: Bad Name
aliasses: [a]
architecture: 5
dtype: bfloat17
num_hidden_layers: "32"
max_position_embeddings: 1e5
layers:
  - {count: 0, kind: full_attention, num_kv_heads: eight, head_dims: 128}
  - {kind: ful_attention, num_kv_heads: 8, head_dim: 128}
  - {cont: 3, kind: mla, kv_lora_rank: 512, qk_rope_head_dim: 64}
  - {count: 3}
  - {count: 3, caches: []}
  - caches: [{kind: mla}, 5]
    kind: mla
  - repeat: 3
    layers:
      - {repeat: 3, layers: []}
      - {kind: sliding_mla, head_dim: 64, qk_rope_head_dim: 64, sliding_window: -1}
  - {kind: sliding_mla, head_dim: 64, qk_rope_head_dim: 64, sliding_window: 1}
  - {kind: indexer, index_head_dim: 128, index_dtype: fp9}
  - {kind: mamba1, intermediate_size: 1, state_size: 1, conv_kernel: 1, state_dtype: int8}
  - text
  - {kind: indexer, index_head_dim: 128, compress_ratio: 99999999999, overlap: no}
  - {caches: 5, note: x}
  - {repeat: 0, layers: []}
  - {repeat: 2, layers: []}
  - {kind: 7}
draft_layers: nothing here
source: {repository: "", file: config.json, retreived: 2026-01-01}
expect:
  bytes_per_token: {bfloat16: many, fp9: -1}
  confirmed_by: []
"""

FOUND = [
    (1, "title is missing"),
    (2, "name is 'Bad Name': lower-case letters and digits"),
    (3, "unknown field 'aliasses'; did you mean aliases?"),
    (4, "architecture must be text, not 5"),
    (5, "'bfloat17' is not a dtype of models"),
    (6, "num_hidden_layers must be a whole number, not '32'"),
    (7, "max_position_embeddings must be a whole number, not 100000.0"),
    (9, "count must be a whole number of at least 1, not 0"),
    (9, "num_kv_heads must be a whole number, not 'eight'"),
    (9, "unknown field 'head_dims'; did you mean head_dim or v_head_dim?"),
    (9, "head_dim is missing"),
    (10, "unknown kind 'ful_attention'; did you mean full_attention"),
    (11, "unknown field 'cont'; did you mean count?"),
    (12, "kind is missing; it is one of chunked_attention"),
    (13, "a layer that keeps nothing needs a note"),
    (14, "kv_lora_rank is missing"),
    (14, "qk_rope_head_dim is missing"),
    (14, "entry 2 of caches must be a mapping, not 5"),
    (15, "'kind' beside caches"),
    (18, "a repeat inside a repeat"),
    (19, "sliding_window must be a whole number of at least 1, not -1"),
    (20, "qk_rope_head_dim is 64, not a whole number from 0 to 63"),
    (21, "unknown cache dtype 'fp9'; did you mean fp8?"),
    (22, "'int8' is not a dtype of models or states"),
    (23, "entry 11 of layers must be a mapping, not 'text'"),
    (24, "compress_ratio must be a whole number of at most 2147483647, not 99999999999"),
    (24, "overlap must be true or false, not 'no'"),
    (25, "caches must be a list, not 5"),
    (26, "repeat must be a whole number of at least 1, not 0"),
    (27, "a repeat of no layers"),
    (28, "unknown kind 7; known:"),
    (29, "draft_layers must be a list, not 'nothing here'"),
    (30, "repository is empty"),
    (30, "unknown field 'retreived'; did you mean retrieved?"),
    (32, "bfloat16 must be a whole number, not 'many'"),
    (32, "fp9 must be a whole number of at least 0, not -1"),
    (33, "confirmed_by is empty"),
]

SOUND = """\
kind: model
name: sound
title: Sound
architecture: X
dtype: bfloat16
num_hidden_layers: 2
layers:
  - {count: 2, kind: full_attention, num_kv_heads: 1, head_dim: 1}
source: {repository: a/b, file: config.json}
expect:
  bytes_per_token: {bfloat16: 8}
  confirmed_by: [arithmetic]
"""


def faults(text: str) -> list[tuple[int, str]]:
    preset, found = check_model(read_document(text, "f.yaml"))
    assert (preset is None) == bool(found)
    assert all("\n" not in fault.message for fault in found)
    return [(fault.line, fault.message) for fault in found]


def test_all_faults_of_a_file_at_once() -> None:
    found = sorted(faults(MANY))
    expected = sorted(FOUND)
    assert [line for line, _ in found] == [line for line, _ in expected]
    for line, words in expected:
        assert any(at == line and message.startswith(words) for at, message in found), words


def test_the_first_is_raised_and_the_others_are_counted() -> None:
    with pytest.raises(InputError) as caught:
        model_from_document(read_document(MANY, "f.yaml"))
    assert caught.value.where == "f.yaml:1"
    more = len(FOUND) - 1
    assert caught.value.message == (
        f"title is missing (and {more} more: kvcalc presets validate FILE)"
    )
    with pytest.raises(InputError) as caught:
        model_from_document(read_document(SOUND.replace("title: Sound\n", ""), "f.yaml"))
    assert caught.value.message == "title is missing"


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("{bfloat16: 8}", "{bfloat16: 9}", 11, "9 bytes a token are expected, the layers give 8"),
        ("{bfloat16: 8}", "{fp9: 8}", 11, "unknown cache dtype 'fp9'; did you mean fp8?"),
        ("{bfloat16: 8}", "{fp8_ds_mla: 8}", 11, "fp8_ds_mla packs latent"),
        ("{bfloat16: 8}", "{}", 11, "bytes_per_token is empty"),
        ("  confirmed", "  state_bytes: 4\n  confirmed", 12, "4 bytes of state are expected"),
        ("layers: 2", "layers: 3", 6, "num_hidden_layers is 3, the layers add up to 2"),
        ("layers: 2", "layers: true", 6, "num_hidden_layers must be a whole number, not true"),
        ("layers: 2", "layers: 0", 6, "num_hidden_layers must be a whole number of at least 1"),
        ("dtype: bfloat16", "dtype: fp8", 5, "'fp8' is not a dtype of models or states"),
        ("name: sound", "name: so/und", 2, "name is 'so/und'"),
        ("kind: model", "kind: modle", 1, "unknown kind of preset 'modle'; did you mean model?"),
        ("kind: model", "kind: gpu", 1, "this is a gpu preset; a model preset is wanted"),
        ("kind: model\n", "", 1, "kind is missing"),
        ("kind: full", "5: full", 8, "the key 5"),
        ("{count: 2, kind", "{count: 10001, kind", 8, f"at most {MAX_LAYERS} are read"),
    ],
)
def test_one_fault(old: str, new: str, line: int, words: str) -> None:
    assert faults(SOUND) == []
    text = SOUND.replace(old, new, 1)
    assert text != SOUND
    if words.startswith("the key"):
        with pytest.raises(InputError, match=words) as caught:
            read_document(text, "f.yaml")
        assert caught.value.where == f"f.yaml:{line}"
        return
    ((at, message),) = faults(text)
    assert at == line
    assert words in message


def test_a_fault_elsewhere_hides_no_figure() -> None:
    """The expected figures are checked although the source has a fault."""
    text = SOUND.replace("file: config.json", "fil: config.json").replace(
        "{bfloat16: 8}", "{fp8: 1}"
    )
    lines = [line for line, _ in faults(text)]
    assert lines == [9, 9, 11]
    text = SOUND.replace("title: Sound\n", "").replace("layers: 2", "layers: 3")
    assert [line for line, _ in faults(text)] == [1, 5]


def test_a_repeat_cannot_unfold_without_limit() -> None:
    entry = (
        "  - {repeat: 2000000000, layers: [{kind: full_attention, num_kv_heads: 1, head_dim: 1}]}\n"
    )
    text = SOUND.replace("source:", entry + "source:")
    ((line, message),) = faults(text)
    assert line == 9
    assert "at most 10000 are read" in message


def test_some_other_file_is_told_once() -> None:
    for text in ("model_type: llama\nhidden_size: 5\n", "- a\n", "text\n", "5\n", "null\n"):
        ((line, message),) = faults(text)
        assert line == 1
        assert "kind: model" in message
        assert len(check_document(read_document(text, "f.yaml"))[1]) == 1


def test_a_wrong_kind_of_file_is_not_looked_into() -> None:
    """Found by mutation: its expected figures were converted although nothing had read them."""
    text = SOUND.replace("kind: model", "kind: x").replace(
        "confirmed", "state_bytes: x\n  confirmed"
    )
    ((line, message),) = faults(text)
    assert (line, message.partition(";")[0]) == (1, "unknown kind of preset 'x'")


def test_a_gpu_file() -> None:
    text = (
        "kind: gpu\nname: My GPU\ntitle: x\nmemory_bytes: 1\nmemory_kind: shared\n"
        "compute_capability: 9.0\ndense_flops: {bf16: x}\nsources: {memory_byte: x}\nnots: [a]\n"
    )
    preset, found = check_gpu(read_document(text, "f.yaml"))
    assert preset is None
    assert [(fault.line, fault.message.partition(";")[0]) for fault in found] == [
        (2, "name is 'My GPU': lower-case letters and digits joined by - or . are read"),
        (4, "memory_bytes has no entry under sources"),
        (5, "unknown memory_kind 'shared'"),
        (6, "compute_capability must be text, not 9.0"),
        (6, "compute_capability has no entry under sources"),
        (7, "bf16 must be a whole number, not 'x'"),
        (7, "dense_flops has no entry under sources"),
        (8, "a source for 'memory_byte', which is no figure of this file"),
        (9, "unknown field 'nots'"),
    ]
    preset_, found = check_document(read_document(text.partition("\n")[2], "f.yaml"))
    assert preset_ is None
    assert found[0].message.startswith("kind is missing")
    assert not [fault for fault in found if "layers" in fault.message]
    _, found = check_gpu(read_document("kind: gpu\nname: a\nsources: 5\n", "f.yaml"))
    assert [fault.message for fault in found] == [
        "title is missing",
        "memory_bytes is missing",
        "sources must be a mapping, not 5",
    ]
    _, found = check_gpu(read_document(SOUND, "f.yaml"))
    assert [fault.message for fault in found] == [
        "this is a model preset; a gpu preset is wanted here"
    ]
    wrong = text.replace("9.0", '"9"')
    _, found = check_gpu(read_document(wrong, "f.yaml"))
    assert "compute_capability is '9', which is not of the wanted form" in [
        fault.message for fault in found
    ]


def test_a_file_is_validated(tmp_path: Path) -> None:
    path = tmp_path / "sound.yaml"
    path.write_text(SOUND, encoding="utf-8")
    assert validate_file(path) == []
    other = tmp_path / "other.yaml"
    other.write_text(SOUND, encoding="utf-8")
    (fault,) = validate_file(other)
    assert fault.message == "name is sound, the file is 'other.yaml'; make them equal"
    path.write_text("a: 1\na: 2\n", encoding="utf-8")
    (fault,) = validate_file(path)
    assert (fault.line, fault.path) == (2, ())
    with pytest.raises(InputError, match="no such file"):
        validate_file(tmp_path / "missing.yaml")


def test_several_caches_and_none() -> None:
    layers = (
        "  - {caches: [{kind: mla, kv_lora_rank: 4, qk_rope_head_dim: 2},"
        " {kind: indexer, index_head_dim: 128}]}\n"
        "  - {caches: [], note: experts only}\n"
        "source:"
    )
    text = SOUND.replace("source:", layers).replace("num_hidden_layers: 2", "num_hidden_layers: 4")
    text = text.replace("{bfloat16: 8}", "{bfloat16: 152}")  # 8 + 6 x 2 + 132
    preset, found = check_model(read_document(text, "f.yaml"))
    assert found == []
    assert preset is not None
    assert [run.label for run in preset.spec.layers] == ["full_attention", "mla+indexer", "none"]
    assert preset.spec.layers[-1].note == "experts only"


def test_equal_neighbours_become_one_run() -> None:
    entry = "{kind: full_attention, num_kv_heads: 1, head_dim: 1}"
    layers = f"  - {{repeat: 3, layers: [{entry}, {entry}]}}\nsource:"
    text = SOUND.replace("source:", layers).replace("num_hidden_layers: 2", "num_hidden_layers: 8")
    preset, found = check_model(read_document(text.replace("{bfloat16: 8}", "{bfloat16: 32}"), "f"))
    assert found == []
    assert preset is not None
    assert [run.count for run in preset.spec.layers] == [8]
