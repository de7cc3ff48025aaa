"""Widths and weights as configs, checkpoints and GGUF files say them; nothing fails on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import InputError, UnavailableError
from kvcalc.core.size import ModelSize, Tower
from kvcalc.models import hub, load_model
from kvcalc.models.documents import read_document
from kvcalc.models.hf_config import read_config
from kvcalc.models.hub import HubFiles
from kvcalc.models.preset_files import check_model
from kvcalc.models.preset_writer import preset_text, size_lines
from kvcalc.models.presets import preset_folder
from kvcalc.models.weights import read_safetensors
from kvcalc.weights.on_rank import weights_on_rank
from tests.models.test_safetensors import write

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 256,
    "vocab_size": 100,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
}


def size(**changes: Any) -> ModelSize:
    """Return the size of a small config with these keys in place of its own."""
    found = read_config({**LLAMA, **changes}, "config.json", "small").size
    assert found is not None
    return found


def test_widths() -> None:
    """The plain keys are read as they stand."""
    found = size()

    assert (found.hidden_size, found.intermediate_size, found.vocab_size) == (64, 128, 100)
    assert found.tie_word_embeddings is True
    assert found.weights_dtype == "float16"
    assert found.num_experts is None


@pytest.mark.parametrize("odd", [-1, 0, 1.5, "many", [], {}, True, 2**40, None])
@pytest.mark.parametrize(
    "key", ["intermediate_size", "vocab_size", "num_experts", "moe_intermediate_size"]
)
def test_odd_values_are_left_out(key: str, odd: object) -> None:
    """A size that makes no sense is no reason to refuse a model, whose cache it does not change."""
    plain = read_config(LLAMA, "config.json", "small")
    found = read_config({**LLAMA, key: odd}, "config.json", "small")

    assert found.size is not None
    assert getattr(found.size, key) is None
    assert (found.layers, found.notes) == (plain.layers, plain.notes)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
        {"n_routed_experts": 8, "moe_intermediate_size": 32, "num_experts_per_token": 2},
        {"num_local_experts": 8, "moe_intermediate_size": 32, "experts_per_token": 2},
        {"num_experts": 8, "expert_intermediate_size": 32, "top_k_experts": 2},
        {"num_experts": 8, "moe_intermediate_size": [32, 32], "moe_topk": [2, 2]},
    ],
    ids=str,
)
def test_spellings_of_experts(keys: dict[str, Any]) -> None:
    """Families call the same numbers by other names."""
    found = size(**keys)

    experts = found.num_experts, found.moe_intermediate_size, found.num_experts_per_tok
    assert experts == (8, 32, 2)
    assert (found.num_moe_layers, found.first_moe_layer) == (2, 0)


def test_mixtral_has_experts_as_wide_as_its_mlp() -> None:
    """`intermediate_size` is an expert's where nothing else is said."""
    assert size(num_local_experts=8).moe_intermediate_size == 128


@pytest.mark.parametrize(
    ("keys", "layers", "first"),
    [
        ({"first_k_dense_replace": 1}, 3, 1),
        ({"decoder_sparse_step": 2}, 2, 1),
        ({"mlp_only_layers": [0, 2]}, 2, 1),
        ({"moe_layer_freq": [0, 0, 1, 1]}, 2, 2),
        ({"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, 2, 1),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, 2, 1),
        ({"moe_layers_enum": "1,2,3"}, 3, 1),
    ],
    ids=str,
)
def test_which_layers_have_experts(keys: dict[str, Any], layers: int, first: int) -> None:
    """By each of the keys that families use."""
    found = size(num_hidden_layers=4, num_experts=8, moe_intermediate_size=32, **keys)

    assert (found.num_moe_layers, found.first_moe_layer) == (layers, first)


def test_shared_experts() -> None:
    """Their width is that of all of them together."""
    experts = {"n_routed_experts": 8, "moe_intermediate_size": 32}

    assert size(**experts).shared_intermediate_size == 0
    assert size(**experts, n_shared_experts=2).shared_intermediate_size == 64
    assert size(**experts, shared_expert_intermediate_size=48).shared_intermediate_size == 48


def test_towers() -> None:
    """Of a vision tower the widths are read in either spelling of them."""
    vision = {"embed_dim": 32, "depth": 3, "mlp_ratio": 4, "hidden_size": 64}

    assert size(vision_config=vision).towers == (
        Tower(hidden_size=32, intermediate_size=128, num_layers=3),
    )
    assert size(vision_config={"hidden_size": "wide"}).towers == ()


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", ())),
        ({"quant_method": "awq", "bits": 4}, ("int4", ())),
        ({"quant_method": "gptq", "bits": 8}, ("int8", ())),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bnb-4bit", ())),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["x.self_attn"]},
         ("mxfp4", ("attention",))),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["a.mlp.shared_expert*"]},
         ("nvfp4", ("shared",))),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}, ("int4", ())),
        ({"quant_method": "something new"}, ("unknown", ())),
        ({"quant_method": "awq", "bits": "four"}, ("awq", ())),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, ("int8-grouped", ())),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, ("int3", ())),
        ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128}, ("int4-g128", ())),
        ({"quant_method": "fbgemm_fp8"}, ("fp8", ())),
        ({"quant_method": "exl2", "bits": 4.25}, ("4.25bpw", ())),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}},
         ("fp8", ())),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, ("fp8", ())),
        ({"quant_method": "modelopt_fp4"}, ("nvfp4", ())),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, ("awq", ())),
        ({"bits": 4, "group_size": 64}, ("mlx-4bit-g64", ())),
        ({"bits": 8, "group_size": 64, "lm_head": {"bits": 6}}, ("mlx-8bit", ())),
        ({"group_size": 32, "mode": "mxfp4"}, ("mxfp4", ())),
    ],
    ids=str,
)  # fmt: skip
def test_formats(section: dict[str, Any], expected: tuple[str | None, object]) -> None:
    """The scheme of a quantisation in one word, and what it leaves as it is."""
    found = size(quantization_config=section)

    assert (found.weights_dtype, found.kept) == expected


def test_two_formats() -> None:
    """Experts in 4 bits and the rest in 8 are told apart."""
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float"}},
        "b": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    }
    section = {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups
    }  # fmt: skip

    found = size(quantization_config=section, num_experts=8, moe_intermediate_size=32)
    assert (found.weights_dtype, found.expert_dtype) == ("fp8", "nvfp4")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a config and one file of tensors."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    tensors = {
        "model.embed_tokens.weight": ("F16", [100, 64]),
        "model.layers.0.mlp.up_proj.weight": ("F16", [128, 64]),
        "model.layers.1.mlp.up_proj.weight": ("F16", [128, 64]),
        "model.norm.weight": ("F16", [64]),
    }
    write(tmp_path / "model.safetensors", tensors)
    return tmp_path


def test_a_folder_gives_its_tensors(checkpoint: Path) -> None:
    """Exactly, where they are asked for; a load without is as it was."""
    plain = load_model(str(checkpoint))
    found = load_model(str(checkpoint), weights=True)

    assert plain.size is not None
    assert plain.size.weights_bytes is None
    assert found.size is not None
    total = 2 * (100 * 64 + 2 * 128 * 64 + 64)
    assert found.size.weights_bytes == total
    assert found.size.parameters == total // 2
    term = weights_on_rank(found)
    assert (term.low_bytes, term.high_bytes) == (total, total + 28 * 64 * 2)  # rows up to 128
    assert term.source == "the folder's safetensors headers"
    assert load_model(str(checkpoint / "config.json"), weights=True) == found


def test_damaged_tensors_leave_a_note(checkpoint: Path) -> None:
    """They are no reason to refuse the config beside them."""
    (checkpoint / "model.safetensors").write_bytes(b"nothing")
    found = load_model(str(checkpoint), weights=True)

    assert found.size is not None
    assert found.size.weights_bytes is None
    assert any(note.startswith("weights are not read from the folder") for note in found.notes)


def test_a_folder_without_tensors(checkpoint: Path) -> None:
    """It is a config alone, and says so when weights are asked for."""
    (checkpoint / "model.safetensors").unlink()

    assert any(
        "no .safetensors" in note for note in load_model(str(checkpoint), weights=True).notes
    )
    assert not any("weights" in note for note in load_model(str(checkpoint)).notes)


# ------------------------------------------------------------------ the Hub


def _answers(monkeypatch: pytest.MonkeyPatch, folder: Path, *, broken: bool = False) -> list[bool]:
    """Let the Hub answer with a folder's files; return what was asked of weights."""
    asked = []

    def fetch(reference: str, *, weights: bool = True) -> HubFiles:
        asked.append(weights)
        if weights and broken:
            raise UnavailableError("the server changes its answers")
        return HubFiles(
            config_text=json.dumps(LLAMA),
            repository=reference.removeprefix("hf:"),
            revision="a" * 40,
            weights=read_safetensors(folder) if weights else None,
        )

    monkeypatch.setattr(hub, "fetch_model_files", fetch)
    return asked


def test_the_hub_is_asked_for_headers_only_when_wanted(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a request or two a shard, of which per-token needs none."""
    asked = _answers(monkeypatch, checkpoint)
    plain, found = load_model("hf:a/b"), load_model("hf:a/b", weights=True)

    assert asked == [False, True]
    assert plain.size is not None
    assert plain.size.weights_bytes is None
    assert found.size is not None
    assert found.size.weights_bytes == 2 * (100 * 64 + 2 * 128 * 64 + 64)
    assert found.size.weights_source == "safetensors headers of a/b"


def test_a_hub_without_headers(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config is read all the same, and a note says why weights are not known."""
    _answers(monkeypatch, checkpoint, broken=True)
    found = load_model("hf:a/b", weights=True)

    assert "weights unknown: the server changes its answers" in found.notes


# ------------------------------------------------------------------ presets


def _faults(*lines: str) -> list[str]:
    """Return the faults of a preset whose size holds these lines."""
    text = (preset_folder() / "models" / "llama-3.1-8b.yaml").read_text(encoding="utf-8")
    before, _, after = text.partition("size:\n")
    rest = after.splitlines()
    kept = rest[next(i for i, line in enumerate(rest) if not line.startswith(" ")) :]
    size_ = ["size:", *(f"  {line}" for line in lines)]
    document = read_document(before + "\n".join([*size_, *kept]) + "\n", "llama-3.1-8b.yaml")
    first = before.count("\n") + 2
    return [f"{fault.line - first}: {fault.message}" for fault in check_model(document)[1]]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["hidden_size: 64"], []),
        (["hidden_size: 0"], ["0: hidden_size must be a whole number of at least 1, not 0"]),
        (["vocab_size: 64", "towers: none"], ["1: towers must be a list, not 'none'"]),
        (["hidden: 64"], ["0: unknown field 'hidden'; did you mean hidden_size?"]),
        (["weights_bytes: 64"], ["0: weights_bytes has no weights_source"]),
        (["weights_dtype: unknown"], []),
        (
            ["parts: [{kind: mlp, layer: 0}]"],
            ["0: parts come from a checkpoint's headers, not from a preset"],
        ),
    ],
    ids=str,
)
def test_sizes_in_presets(lines: list[str], expected: list[str]) -> None:
    """Each fault is told in the line where it stands."""
    assert _faults(*lines) == expected


def test_a_format_that_is_not_known() -> None:
    """It is told with the nearest ones."""
    (fault,) = _faults("weights_dtype: nvfp5")

    assert fault.startswith("0: unknown format of weights 'nvfp5'; did you mean nvfp4")


def test_sizes_are_written_as_they_are_read(checkpoint: Path) -> None:
    """A preset made of a checkpoint has its sizes, its tensors apart."""
    spec = load_model(str(checkpoint), weights=True)
    text = preset_text(
        spec,
        name="small",
        title="small",
        source={"repository": "a/b", "file": "config.json"},
        bytes_per_token={"float16": 256},
        state_bytes=0,
        confirmed_by=["a test"],
    )
    preset, faults = check_model(read_document(text, "small.yaml"))

    assert faults == []
    assert preset is not None
    assert preset.spec.size is not None
    assert preset.spec.size.weights_bytes == spec.size.weights_bytes  # type: ignore[union-attr]
    assert size_lines(preset.spec.size) == size_lines(spec.size)
    assert size_lines(ModelSize()) == []
    with pytest.raises(InputError):
        load_model(str(checkpoint / "model.safetensors"))
