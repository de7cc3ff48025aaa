"""What MLC-LLM's source says, worked out by hand.

Source: mlc-llm at 79d603f, cpp/serve/config.cc (EstimateMemoryUsageOnMode), and TVM's
paged_kv_cache.cc and attn_utils.h: pages = ceil(tokens / 16) + 1, and two more a sequence where
the cache has one window; a page of a layer is 2 x heads x 16 x head dim, or 16 x row for MLA.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from tests.conftest import ABSENT, SHARED
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

LISTED = {
    "mlc-208": "the compiled library's temporary buffer and the model are not told",
    "mlc-209": "the compiled library's temporary buffer and the model are not told",
}
"""Verifiable cases that are not reproduced -> why; both are refusals, whose text is tested here."""


def _plan(name: str, *, settings: dict[str, Any] | None = None, **args: Any) -> CachePlan:
    args.setdefault("quantization", "q4f16_1")
    deployment = Deployment(engine="mlc-llm", engine_args=args, **(settings or {}))
    return plan(load_model(name), deployment)


def test_local_mode_has_four_sequences_and_8192_tokens() -> None:
    """Steps 1 and 4 of the estimate; 512 pages of 2 x 8 x 16 x 128 x 2 B x 32 layers, and one."""
    found = _plan("llama-3.1-8b")
    (pages,) = found.rank.pools

    assert found.max_sequences == 4
    assert (pages.units, pages.reserved_units, pages.unit_bytes) == (512, 1, 2_097_152)
    assert pages.total_bytes(512) == 513 * 2_097_152
    assert found.capacity().kv_cache_tokens == 8192
    assert found.max_model_len == 8192
    (line,) = start_up_log(found, None)
    assert line == (
        'The actual engine mode is "local". So max batch size is 4, max KV cache token capacity is'
        " 8192, prefill chunk size is 8192."
    )


def test_interactive_mode_has_one_sequence_of_the_whole_context() -> None:
    found = _plan("llama-3.1-8b", mode="interactive")

    assert found.max_sequences == 1
    assert found.capacity().kv_cache_tokens == 131_072
    assert found.max_model_len == 131_072


def test_a_longer_request_than_the_cache_is_told() -> None:
    """Asked for 16,384 tokens, local mode still makes 8,192."""
    found = _plan("llama-3.1-8b", settings={"max_model_len": 16_384})

    assert found.max_model_len == 16_384
    assert not found.capacity().fits
    assert found.capacity().max_model_len_that_fits == 8192


def test_the_estimate() -> None:
    """Llama-3.1-8B on 24 GiB in server mode with 16 sequences, step 3 put in numbers.

    A token: 128 x 8 x 32 x 4 + 1.25 = 131,073.25 B. Workspaces with chunks of 2,048:
    aux 17 x 88 + 2,048 x 33 x 8 + 2,048 x 128 x 40 x 4 + 48 MiB = 92,816,856;
    model 8,192 + 64 + (4,096 + 16) x 4,096 x 2 = 33,693,760;
    logits 16 x 20 + 16 x 128,256 x 16.125 = 33,090,368. With 4,500,000,000 B of weights and
    200,000,000 B of temporary buffer, counted twice:
    25,769,803,776 x 0.85 - 4,900,000,000 - 159,600,984 = 16,844,732,225 B are 128,513 tokens.
    """
    found = _plan(
        "llama-3.1-8b",
        settings={"max_num_seqs": 16},
        mode="server",
        prefill_chunk_size=2048,
        vocab_size=128_256,
        params_bytes=4_500_000_000,
        temp_buffer_bytes=200_000_000,
        gpu_memory=24 * 2**30,
    )
    (pages,) = found.rank.pools

    assert pages.units == 8033  # ceil(128,513 / 16)
    (line,) = start_up_log(found, None)
    assert "max KV cache token capacity is 128513, prefill chunk size is 2048." in line


def test_a_card_that_is_too_small() -> None:
    """The refusal's words, and 48 MiB + 17 x 88 B and so on as MB of 2^20 with three decimals."""
    with pytest.raises(UnsupportedError) as refused:
        _plan(
            "llama-3.1-8b",
            settings={"gpu": load_gpu("t4")},
            vocab_size=128_256,
            params_bytes=16_060_522_496,
            temp_buffer_bytes=0,
        )
    text = str(refused.value)
    assert text.startswith("Insufficient GPU memory error: The available single GPU memory is ")
    assert "less than the sum of model weight size (15316.508 MB) and temporary buffer" in text


def test_bytes_are_priced_with_the_page_table() -> None:
    """A page of 16 tokens is priced at 16 x 131,072 + 20 B and makes one page more than it buys."""
    found = _plan("llama-3.1-8b", mode="server")
    price = 16 * 131_072 + 20

    assert found.capacity(1000 * price).num_blocks == 1000
    assert found.capacity(1000 * price - 1).num_blocks == 999
    (pool,) = found.capacity(1000 * price).pools
    assert pool.total_bytes == 1001 * 2_097_152
    assert found.max_sequences == 128


def test_mla_is_held_once_and_priced_twice() -> None:
    """GetKVCacheShape: 16 x 576 a page of a layer, 61 layers; the price is 576 x 61 x 4 + 1.25."""
    found = _plan("deepseek-v3", mode="server")
    (pages,) = found.rank.pools

    assert pages.unit_bytes == 16 * 576 * 2 * 61
    assert pages.check_unit_bytes == 16 * 576 * 61 * 4 + 20
    split = _plan("deepseek-v3", settings={"tensor_parallel_size": 8}, mode="server")
    assert split.rank.pools[0].unit_bytes == pages.unit_bytes
    assert any("prices an MLA row twice" in note for note in found.notes)


@pytest.mark.parametrize(
    ("quantization", "dtype", "size"),
    [("q4f16_1", "float16", 2), ("q0bf16", "bfloat16", 2), ("q4f32_1", "float32", 4)],
)
def test_the_quantization_decides_the_dtype(quantization: str, dtype: str, size: int) -> None:
    found = _plan("llama-3.1-8b", quantization=quantization)

    assert found.kv_cache_dtype == dtype
    assert found.block_bytes == 16 * 2 * 8 * 128 * 32 * size
    assert found.rank.pools[0].check_unit_bytes == 16 * 131_072 + 20


def test_one_window_slides_by_pages() -> None:
    """SlideWindowForSequence gives back pages that lie wholly before the window; 1 + 2 x 4 more."""
    found = _plan("mistral-7b-v0.1", attention_sink_size=0)
    (pages,) = found.rank.pools
    rule = pages.groups[0].rule

    assert pages.reserved_units == 1 + 2 * 4
    assert (rule.held(4096), rule.held(4097), rule.held(4112), rule.held(9000)) == (
        256,
        257,
        256,
        257,
    )
    assert found.reuse_tokens is None
    with pytest.raises(UnsupportedError, match="first 4 tokens"):
        _plan("mistral-7b-v0.1")
    # A model of the same class without a window is as any other.
    assert _plan("mistral-7b-instruct-v0.2").rank.pools[0].reserved_units == 1


def test_gemma_2_is_cut_to_its_window() -> None:
    """gemma2_model.py: context_window_size is the window, as windows are not supported yet."""
    found = _plan("gemma-2-2b-jpn", mode="interactive")

    assert found.max_model_len == 4096
    assert found.capacity().kv_cache_tokens == 4096
    # Chunks are sized by the context before it is cut; at run time by the shortest of all.
    (line,) = start_up_log(found, None)
    assert line.endswith("prefill chunk size is 4096.")
    server = _plan("gemma-2-2b-jpn", mode="server")
    (line,) = start_up_log(server, 10 * 2**30)
    assert line.endswith("prefill chunk size is 8192.")


def test_states_have_slots_beside_the_pages() -> None:
    """model.cc, CreateKVCache: max_num_sequence + recycled slots; rnn_state.cc: one history.

    48 layers of 48 x 128 x 128 float32 and 3 x 10,240 float16, which qwen35_model.py does not
    split over ranks.
    """
    found = _plan("qwen3.5-27b")
    pages, states = found.rank.pools

    assert pages.unit_bytes == 16 * 2 * 4 * 256 * 2 * 16
    assert states.unit_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10_240 * 2)
    assert (states.units, states.reserved_units) == (8, 4)
    alone = _plan("qwen3.5-27b", prefix_cache_max_num_recycling_seqs=0)
    assert alone.rank.pools[1].units == 4
    with pytest.raises(UnsupportedError, match="not split"):
        _plan("qwen3.5-27b", settings={"tensor_parallel_size": 2})
    with pytest.raises(UnsupportedError, match="known only where their number is"):
        _plan("qwen3.5-27b", mode="server")


def test_heads_must_divide() -> None:
    """llama_model.py: num_kv_heads must be divisible by tensor_parallel_shards, and not fewer."""
    half = _plan("llama-3.1-8b", settings={"tensor_parallel_size": 2})
    assert half.block_bytes == 2_097_152 // 2
    with pytest.raises(UnsupportedError, match="8 KV heads cannot be split over 16"):
        _plan("llama-3.1-8b", settings={"tensor_parallel_size": 16})
    with pytest.raises(UnsupportedError, match="1 KV heads cannot be split"):
        _plan("gemma-2b", settings={"tensor_parallel_size": 2})
    with pytest.raises(UnsupportedError, match="does not split GPTBigCode"):
        _plan("starcoderbase-7b", settings={"tensor_parallel_size": 2})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma-3-27b", "windows are given back"),
        ("gpt-oss-20b", "GptOss"),
        ("deepseek-v3.2", "DeepseekV32"),
        ("falcon-mamba-7b", "FalconMamba"),
    ],
)
def test_models_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        _plan(name)


@pytest.mark.parametrize(
    ("settings", "args", "error", "why"),
    [
        ({"block_size": 32}, {}, UnsupportedError, "pages of 16"),
        ({"kv_cache_dtype": "fp8"}, {}, UnsupportedError, "K and V in the dtype"),
        ({"pipeline_parallel_size": 2}, {}, UnsupportedError, "pipeline_parallel_size"),
        ({"dtype": "bfloat16"}, {}, UnsupportedError, "float16 with q4f16_1"),
        ({"engine_version": "0.1"}, {}, UnsupportedError, "0.1"),
        ({}, {"mode": "batch"}, UnknownNameError, "batch"),
        ({}, {"quantization": "q5"}, UnknownNameError, "q5"),
        ({}, {"max_history_size": 2}, UnknownNameError, "max_history_size"),
        ({}, {"speculative_mode": "eagle"}, UnsupportedError, "speculation"),
        ({}, {"vocab_size": 0}, InvalidValueError, "vocab_size"),
    ],
)
def test_refused_settings(
    settings: dict[str, Any], args: dict[str, Any], error: type[KvcalcError], why: str
) -> None:
    with pytest.raises(error, match=why):
        _plan("llama-3.1-8b", settings=settings, **args)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    cases = map(json.loads, path.read_text(encoding="utf-8").splitlines())

    told = {c["id"] for c in cases if c["engine"] == "mlc-llm" and c.get("verifiable")}
    assert told == set(LISTED)


@SETTINGS
@given(
    st.sampled_from(
        ("llama-3.1-8b", "gemma-2-2b-jpn", "deepseek-v3", "mistral-7b-v0.1", "qwen3.5-27b")
    ),
    some.tokens,
)
def test_wastes_add_up(name: str, n: int) -> None:
    found = _plan(name, attention_sink_size=0)
    parts = found.wastes(n)

    assert parts.reserved_bytes == parts.used_bytes + parts.waste_bytes
    assert parts.reserved_bytes == found.bytes_held(n)
