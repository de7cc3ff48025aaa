"""TensorRT-LLM's settings: what is refused, and that wastes conserve whatever is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.plan_summary import summarise
from kvcalc.engines import plan, start_up_log
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
        ("llama-4-scout", {"engine_args": {"max_attention_window": 8192}}, "reads chunks"),
        ("deepseek-v4-flash", {}, "sliding_mla layers is not modelled"),
        ("nemotron-3-nano-30b-a3b", {"enable_prefix_caching": True}, "keeps no prefixes"),
        (
            "nemotron-3-nano-30b-a3b",
            {"engine_args": {"use_kv_cache_manager_v2": True}},
            "KVCacheManagerV2 beside states",
        ),
        (
            "nemotron-3-nano-30b-a3b",
            {"engine_args": {"max_attention_window": 8192}},
            "max_attention_window beside states",
        ),
        ("nemotron-3-nano-30b-a3b", {"pipeline_parallel_size": 26}, "without attention"),
        ("deepseek-v3", {"num_speculative_tokens": 2, "speculative_method": "ngram"}, "by ngram"),
        ("llama-3.1-8b", {"num_speculative_tokens": 2}, "no layers that propose"),
        ("deepseek-v3", {"speculative_method": "mtp"}, "without a number of tokens"),
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


_BESIDE = [
    ("nemotron-3-nano-30b-a3b", {}),
    ("qwen3-next-80b-a3b", {"tensor_parallel_size": 4, "max_num_seqs": 64}),
    ("llama-4-scout", {}),
    ("deepseek-v3", {"num_speculative_tokens": 3, "tensor_parallel_size": 8}),
]


@pytest.mark.parametrize(("name", "settings"), _BESIDE)
def test_wastes_conserve_beside_states(name: str, settings: dict[str, Any]) -> None:
    found = plan(load_model(name), Deployment(engine="tensorrt-llm", **settings))

    for n in (1, 31, 32, 33, 8191, 8192, 8193):
        for wastes in (found.wastes(n), found.wastes_at_admission(n)):
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert found.wastes(n).reserved_bytes == found.bytes_held(n)


def test_states_lie_beside_the_budget() -> None:
    """Qwen3-Next over 4 ranks: 36 layers with a state of 8 heads of 128 x 128 each.

    mamba_cache_manager.py (1.2): [layers, max_batch_size, conv_dim / tp, kernel - 1] and
    [layers, max_batch_size, heads / tp, head_dim, d_state], in the model dtype by default.
    """
    deployment = Deployment(engine="tensorrt-llm", tensor_parallel_size=4, max_num_seqs=64)
    found = plan(load_model("qwen3-next-80b-a3b"), deployment)
    conv, ssm = 36 * (8192 // 4) * 3 * 2, 36 * (32 // 4) * 128 * 128 * 2
    states = found.rank.pools[1]
    capacity = found.capacity(10 * 2**30, at=4096)
    token = 12 * 1 * 256 * 2 * 2

    assert states.groups[0].payload == {"conv": conv, "recurrent": ssm}
    assert states.units == 64
    assert capacity.kv_cache_tokens == 10 * 2**30 // token // 32 * 32
    assert capacity.max_sequences == 64
    assert start_up_log(found, 10 * 2**30)[0] == (
        f"Mamba Cache is allocated. max_mamba_cache_size: 64, conv_state size:"
        f" {64 * conv / 2**30:.2f}GB, ssm_state size: {64 * ssm / 2**30:.2f}GB"
    )


def test_states_beside_the_budget_are_no_reason_to_fail() -> None:
    """2,048 requests' states are more than the blocks' memory, and are not paid for by it."""
    found = plan(load_model("nemotron-3-nano-30b-a3b"), Deployment(engine="tensorrt-llm"))
    said = summarise(found, kv_cache_bytes=20 * 2**30)
    (note,) = [line for line in said.notes if "beside the budget" in line]

    assert "2,048 requests (max_batch_size)" in note
    assert not any("allocating them would fail" in line for line in said.notes)
    assert found.capacity(20 * 2**30).fits


def test_states_of_the_dtype_asked_for() -> None:
    """The model dtype unless told otherwise, whatever the model's own config says."""
    model = load_model("qwen3-next-80b-a3b")
    args: dict[str, Any] = {"mamba_ssm_cache_dtype": "float32"}
    plain, wide = (
        plan(model, Deployment(engine="tensorrt-llm", engine_args=given)) for given in ({}, args)
    )
    sizes = [found.rank.pools[1].groups[0].payload["recurrent"] for found in (plain, wide)]

    assert sizes[1] == 2 * sizes[0]


def test_a_layer_for_every_token_proposed() -> None:
    """DeepSeek-V3 with three tokens by MTP: 64 layers, and room for the three tokens."""
    model = load_model("deepseek-v3")
    found = plan(model, Deployment(engine="tensorrt-llm", num_speculative_tokens=3))

    assert found.growth() == (64 * 1152, 1)
    assert [found.held(n)["blocks"] for n in (29, 30)] == [1, 2]


def test_layers_with_chunks_keep_every_token() -> None:
    found = plan(load_model("llama-4-scout"), Deployment(engine="tensorrt-llm"))

    assert found.growth() == (48 * 8 * 128 * 2 * 2, 1)
    assert found.wastes(8192 + 1).retention_bytes == 36 * 8 * 128 * 2 * 2 * 8192
    assert any("layers with a chunk keep every token" in note for note in found.notes)


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
