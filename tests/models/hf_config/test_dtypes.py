"""The model's dtype and what the checkpoint asks its KV cache to be."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.models.hf_config import read_config

from .builders import SMALL, read

FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": False}
FLOAT4 = {"num_bits": 4, "type": "float"}


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, "float16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
    ],
)
def test_either_spelling_of_the_dtype(keys: dict[str, Any], dtype: str) -> None:
    """`dtype` is the newer name and wins."""
    assert read("LlamaForCausalLM", **keys).dtype == dtype


def test_the_language_models_dtype_wins() -> None:
    """The text part's own dtype before the whole config's; a missing one is said."""
    part = {k: v for k, v in SMALL.items() if k != "torch_dtype"} | {"model_type": "llama"}
    outer: dict[str, Any] = {"architectures": ["LlavaForConditionalGeneration"]}

    def dtype(**keys: Any) -> str:
        return read_config({**outer, **keys}, "config.json", "x").dtype

    assert dtype(text_config={**part, "dtype": "float16"}, dtype="float32") == "float16"
    assert dtype(text_config=part, torch_dtype="float32") == "float32"
    notes = read("LlamaForCausalLM", "torch_dtype").notes
    assert "the config gives no dtype: bfloat16 is taken" in notes


def test_an_unknown_dtype_is_refused() -> None:
    """With those that models are kept in, and the place."""
    with pytest.raises(UnsupportedError, match="bfloat61") as caught:
        read("LlamaForCausalLM", torch_dtype="bfloat61")

    assert caught.value.where == "config.json"
    assert "bfloat16" in caught.value.hint


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "modelopt", "kv_cache_scheme": FLOAT8}, "fp8_e4m3"),
        ({"quant_method": "modelopt_fp4", "kv_cache_scheme": FLOAT8}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {**FLOAT8, "dynamic": True}}, None),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, None),
        ({"quant_method": "modelopt", "kv_cache_scheme": FLOAT4}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": None}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt_mixed", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "INT8"}, None),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": None}, None),
        (
            {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}},
            "fp8_e4m3",
        ),
        (
            {"quant_method": "modelopt", "quantization": {"kv_cache_scheme": FLOAT8}},
            "fp8_e4m3",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": FLOAT8}, "fp8_e4m3"),
        (
            {"quant_method": "compressed-tensors", "kv_cache_scheme": {**FLOAT8, "dynamic": True}},
            "fp8_e4m3",
        ),
        ({"quant_method": "compressed-tensors", "kv_cache_quant_algo": "FP8"}, None),
        ({"kv_cache_scheme": "FP8"}, None),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}, None),
        ({"quant_method": "gptq", "kv_cache_scheme": FLOAT8}, None),
    ],
)
def test_the_cache_dtype_of_the_checkpoint(
    quantization: dict[str, Any], expected: str | None
) -> None:
    """Followed where vLLM 0.33 follows it: get_kv_cache_quant_algo_string, attention layers."""
    model = read("LlamaForCausalLM", quantization_config=quantization)
    method = str(quantization.get("quant_method")).partition("_")[0]

    assert model.kv_cache_dtype == expected
    assert model.kv_cache_method == (method if expected else None)


def test_a_quantisation_in_the_text_part_counts() -> None:
    """The language model's own section, where the whole config has none."""
    part = {k: v for k, v in SMALL.items() if k != "torch_dtype"} | {"model_type": "llama"}
    part["quantization_config"] = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": part}

    assert read_config(config, "config.json", "x").kv_cache_dtype == "fp8_e4m3"


def test_a_scheme_that_is_not_followed_is_said() -> None:
    """Eight-bit integers are no scheme that vLLM takes over."""
    scheme = {"num_bits": 8, "type": "int"}
    keys = {"quant_method": "modelopt", "kv_cache_scheme": scheme}
    model = read("LlamaForCausalLM", quantization_config=keys)

    assert model.kv_cache_dtype is None
    assert any("KV cache scheme is not followed" in note for note in model.notes)


def test_a_quantisation_that_is_no_object_is_a_fault() -> None:
    """The key is named."""
    with pytest.raises(InputError, match="quantization_config is"):
        read("LlamaForCausalLM", quantization_config=[])
