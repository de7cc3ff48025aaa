"""Positions that rope scaling stretches: as vLLM counts them (_get_and_verify_max_len)."""

from __future__ import annotations

from typing import Any

import pytest

import kvcalc
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config

BASE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}


def model(**changes: Any) -> ModelSpec:
    return read_config({**BASE, **changes}, "config.json", "ours")


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        (None, 32768),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "linear", "factor": 2}, 65536),
        ({"rope_type": "dynamic", "factor": 2.5}, 81920),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32768),
        ({"rope_type": "longrope", "factor": 32}, 32768),
        ({"rope_type": "default"}, 32768),
        ({"rope_type": "linear", "factor": 0.5}, 32768),
        ({"rope_type": "linear", "factor": "2"}, 32768),
        ({"rope_type": "linear", "factor": True}, 32768),
        ("linear", 32768),
        ({"rope_type": ["linear"] * 9, "factor": 2}, 32768),
    ],
)
def test_stretched(scaling: Any, longest: int) -> None:
    """The longest is positions x factor, those from before the scaling where yarn tells them."""
    assert model(rope_scaling=scaling).longest == longest
    assert model(rope_parameters=scaling).longest == longest


def test_gemma_3_states_its_maximum_scaled() -> None:
    gemma = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 64}
    assert model(**gemma, rope_scaling={"rope_type": "linear", "factor": 8.0}).longest == 32768


def test_who_serves_it() -> None:
    """The stretched maximum is what vLLM takes; SGLang takes positions as they stand."""
    ours = model(rope_scaling={"rope_type": "linear", "factor": 2})
    served = {
        engine: kvcalc.plan(ours, kvcalc.Deployment(engine=engine, gpu="h100-80gb"))
        for engine in ("vllm", "sglang")
    }
    asked = kvcalc.Deployment(engine="sglang", gpu="h100-80gb", max_model_len=65536)

    assert served["vllm"].max_model_len == 65536
    assert served["sglang"].max_model_len == 32768
    assert any("made for" in note for note in kvcalc.plan(ours, asked).notes)
    assert kvcalc.capacity(ours, kvcalc.Deployment(engine="vllm", gpu="l4")).fits
    assert not kvcalc.capacity(ours, asked).fits
