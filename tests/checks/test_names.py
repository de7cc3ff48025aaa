"""What files call cards and models: what is known, what is refused, and how to name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcalc.checks.cards import card_of, devices_of
from kvcalc.checks.models import Models, Named, bare
from kvcalc.core.errors import UnknownNameError
from kvcalc.models.presets import gpu_names, load_model_preset


@pytest.mark.parametrize(
    ("word", "key", "card"),
    [
        ("NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.product", "h100-80gb"),
        ("NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.product", "a100-80gb"),
        ("NVIDIA-A100-80GB-PCIe", "nvidia.com/gpu.product", "a100-80gb-pcie"),
        ("NVIDIA-L4-SHARED", "nvidia.com/gpu.product", "l4"),
        ("Tesla-T4", "nvidia.com/gpu.product", "t4"),
        ("NVIDIA-GeForce-RTX-4090", "nvidia.com/gpu.product", "rtx-4090"),
        ("nvidia-l4", "cloud.google.com/gke-accelerator", "l4"),
        ("nvidia-tesla-a100", "cloud.google.com/gke-accelerator", "a100-40gb"),
        ("A100", "accelerators", "a100-40gb"),
        ("A100-80GB:8", "accelerators", "a100-80gb"),
        ("H200:8", "accelerators", "h200"),
        ("g6.24xlarge", "node.kubernetes.io/instance-type", "l4"),
        ("Standard_NC48ads_A100_v4", "instanceType", "a100-80gb-pcie"),
        ("amd-gpu-mi300x", "resourceProfile", "mi300x"),
    ],
)
def test_cards(word: str, key: str, card: str) -> None:
    """Labels, accelerators and instance types name their card."""
    assert card_of(word, key).name == card


def test_slice() -> None:
    """A MIG slice is its card with its own memory."""
    found = card_of("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb")

    assert found.memory_bytes == 9_728 * 2**20
    assert found.compute_capability == "9.0"


@pytest.mark.parametrize("name", gpu_names())
def test_every_card_by_its_own_name(name: str) -> None:
    """A preset's own name is one of its spellings."""
    assert card_of(name).name == name


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("A100", "a100-40gb or a100-80gb"),
        ("Tesla-V100", "v100-16gb or v100-32gb"),
        ("nvidia-h100-81gb", "did you mean h100-80gb"),
        ("tpu-v6e-slice", "--gpu-memory"),
    ],
)
def test_no_card(word: str, hint: str) -> None:
    """A word for two cards, or for none, is refused with how to name one."""
    with pytest.raises(UnknownNameError) as caught:
        card_of(word)

    assert hint in caught.value.hint


def test_devices() -> None:
    """Some words count cards."""
    assert [devices_of(w) for w in ("g5.48xlarge", "H200:8", "nvidia-l4")] == [8, 8, None]


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("hf://Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("hf://Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        ("META-LLAMA/LLAMA-3.1-8B", "llama-3.1-8b"),
        ("llama-3.1-8b", "llama-3.1-8b"),
    ],
)
def test_models(name: str, preset: str) -> None:
    """A repository that a preset has among its aliases is that preset."""
    assert Models().find(name)[0] == load_model_preset(preset).spec


def test_a_variant_keeps_what_is_its_own() -> None:
    """Qwen2.5-7B-Instruct is Qwen2.5-7B with a maximum of its own."""
    found = Models().find("hf://Qwen/Qwen2.5-7B-Instruct")[0]
    base = load_model_preset("qwen2.5-7b").spec
    assert found.max_position_embeddings == 32768
    assert (found.layers, found.size) == (base.layers, base.size)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("/models/Qwen3-8B", "models: {/models/Qwen3-8B: qwen3-8b}"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8",
         "{model: llama-3.1-70b, quantization: fp8}"),
        ("TheBloke/Llama-2-7B-Chat-AWQ", "quantization: awq"),
        ("org/nothing-like-this-at-all", "path/to/config.json"),
        ("Qwen/Qwen3-33B-AWQ", "path/to/config.json"),
    ],
)  # fmt: skip
def test_unknown_models(name: str, hint: str) -> None:
    """A name that is only like a known one is not taken for it: how to say so is told."""
    with pytest.raises(UnknownNameError) as caught:
        Models().find(name)

    assert hint in caught.value.hint
    assert "--model" in caught.value.hint


def test_map(tmp_path: Path) -> None:
    """One's own map comes first: by the name, without a scheme, or by the last part of a path."""
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,'
        ' "head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "torch_dtype": "bfloat16",'
        ' "max_position_embeddings": 512}',
        encoding="utf-8",
    )
    models = Models(
        {"mine": Named("tiny/config.json", "fp8"), "llama-3.1-8b": Named("llama-3.1-70b")},
        base=str(tmp_path),
    )

    assert models.find("/mnt/models/mine")[0].num_hidden_layers == 2
    assert models.find("hf://mine") == models.find("mine")
    assert models.find("mine")[1] == "fp8"
    assert models.find("llama-3.1-8b")[0].name == "llama-3.1-70b"


def test_fallback() -> None:
    """A fallback stands for what is not known, and for nothing else."""
    models = Models(fallback="llama-3.1-70b")

    assert models.find("org/unknown")[0].name == "llama-3.1-70b"
    assert models.find("llama-3.1-8b")[0].name == "llama-3.1-8b"


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a manifest never leads to the network."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("kvcalc.models.hub.fetch_model_files", fail)
    for name in ("hf:org/some-model", "hf://org/some-model", "-", "org/some-model@main"):
        with pytest.raises(UnknownNameError):
            Models().find(name)


def test_bare() -> None:
    """Schemes and llama.cpp's `:QUANT` are no part of a repository's name."""
    assert bare("hf://org/name") == "org/name"
    assert bare("org/name-GGUF:Q4_K_M") == "org/name-GGUF"
    assert bare("/models/a:b/c") == "/models/a:b/c"
