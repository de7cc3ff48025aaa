"""TensorRT-LLM's settings: what is refused, and that wastes conserve whatever is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.engines import plan
from kvcalc.models import load_model


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama-3.1-8b", {"engine_args": {"page_size": 64}}, "unknown TensorRT-LLM setting"),
        ("llama-3.1-8b", {"engine_args": {"max_beam_width": 4}}, "beam search"),
        ("llama-3.1-8b", {"decode_context_parallel_size": 2, "tensor_parallel_size": 2}, "decode_"),
        ("llama-3.1-8b", {"kv_cache_dtype": "q8_0"}, "KV cache dtype"),
        ("llama-3.1-8b", {"engine_args": {"max_attention_window": "wide"}}, "no pattern"),
        ("llama-3.1-8b", {"engine_args": {"free_gpu_memory_fraction": 1.5}}, "between 0 and 1"),
        ("llama-3.1-8b", {"engine_version": "0.5"}, "is not known"),
        ("deepseek-v3", {"kv_cache_dtype": "nvfp4"}, "nvfp4 cache of latents"),
        ("qwen3.5-27b", {}, "gated_delta_net layers is not modelled"),
        ("llama-4-scout", {}, "chunked_attention layers is not modelled"),
        ("mimo-v2-flash", {}, "in one width"),
        ("llama-3.1-8b", {"block_size": 64, "engine_args": {"tokens_per_block": 32}}, "contradict"),
    ],
)
def test_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KvcalcError, match=message):
        plan(load_model(name), Deployment(engine="tensorrt-llm", **settings))


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-3.1-8b", {"tensor_parallel_size": 3, "pipeline_parallel_size": 3}),
        ("llama-3.1-8b", {"kv_cache_dtype": "nvfp4"}),
        ("deepseek-v3.2", {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8}),
        ("gpt-oss-20b", {}),
        ("gpt-oss-20b", {"engine_args": {"max_attention_window": "model"}}),
        ("gpt-oss-20b", {"engine_args": {"max_attention_window": "128,131072"}}),
    ],
)
def test_wastes_conserve(name: str, settings: dict[str, Any], v2: bool) -> None:
    args = {**settings.get("engine_args", {}), "use_kv_cache_manager_v2": v2}
    deployment = Deployment(engine="tensorrt-llm", **{**settings, "engine_args": args})
    found = plan(load_model(name), deployment)

    for n in (1, 31, 32, 33, 127, 128, 129, 5000):
        for wastes in (found.wastes(n), found.wastes_at_admission(n)):
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert found.wastes(n).reserved_bytes == found.bytes_held(n)


def test_the_first_stages_have_a_layer_more() -> None:
    found = plan(
        load_model("llama-3.1-8b"), Deployment(engine="tensorrt-llm", pipeline_parallel_size=5)
    )

    assert [rank.pools[0].groups[0].layers for rank in found.ranks] == [7, 7, 6, 6, 6]


def test_attention_dp_keeps_all_heads() -> None:
    """Ranks of attention DP serve requests of their own: heads are not split among them."""
    found = plan(
        load_model("llama-3.1-8b"),
        Deployment(
            engine="tensorrt-llm",
            tensor_parallel_size=8,
            engine_args={"enable_attention_dp": True},
        ),
    )

    assert found.growth() == (131_072, 1)
