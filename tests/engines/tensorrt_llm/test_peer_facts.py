"""Numbers that TensorRT-LLM's own tests state, and aiconfigurator's where it follows them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv
from kvcalc.engines import plan
from kvcalc.engines.tensorrt_llm.notes import (
    blocks_in_memory,
    context_bytes,
    estimated_bytes_per_token,
    estimation_tokens,
    free_blocks,
    offset_table_bytes,
    sequence_blocks,
)
from kvcalc.models import load_model
from kvcalc.models.hf_config import read_config


def _model(*heads: int, width: int = 64, windows: tuple[int | None, ...] = ()) -> ModelSpec:
    runs = []
    for number, count in enumerate(heads):
        window = windows[number] if windows else None
        cache: FullAttention | SlidingWindow
        if window is None:
            cache = FullAttention(num_kv_heads=count, head_dim=width)
        else:
            cache = SlidingWindow(num_kv_heads=count, head_dim=width, sliding_window=window)
        runs.append(LayerRun(count=1, caches=(cache,)))
    return ModelSpec(name="test", dtype="bfloat16", num_hidden_layers=len(runs), layers=tuple(runs))


def _plan(model: ModelSpec, args: dict[str, Any] | None = None, **settings: Any) -> CachePlan:
    deployment = Deployment(engine="tensorrt-llm", engine_args=args or {}, **settings)
    return plan(model, deployment)


@pytest.mark.parametrize(
    ("prompts", "beams", "dp", "tokens"),
    [
        ([128], 1, 1, 192),
        ([128] * 4, 1, 1, 768),
        ([128], 4, 1, 768),
        ([128] * 4, 1, 4, 192),
        ([128] * 2, 1, 2, 192),
        ([128] * 8, 1, 8, 192),
    ],
)
def test_the_dry_run(prompts: list[int], beams: int, dp: int, tokens: int) -> None:
    """test_kv_cache_estimation.py: blocks of 64, a prompt of 128 and one token more."""
    assert estimation_tokens(prompts, 64, beams=beams, attention_dp=dp) == tokens


@pytest.mark.parametrize(("scratch", "size"), [(False, 400_000), (True, 306_400)])
def test_a_prompt_under_the_second_manager(scratch: bool, size: int) -> None:
    """test_kv_cache_manager_v2_capacity.py: 4 layers of 100 B, windows 64, 64, none, none."""
    found = context_bytes(1000, 64, full_bytes=200, window_bytes=[100, 100], scratch=scratch)

    assert found == size


def test_a_token_more_under_the_second_manager() -> None:
    """The layers without a window alone grow: 200 B of 400."""
    model = _model(1, 1, 1, 1, width=25, windows=(64, 64, None, None))
    found = _plan(
        model,
        {"use_kv_cache_manager_v2": True, "max_attention_window": "model"},
        block_size=16,
        max_model_len=4096,
    )

    assert found.growth(windows_open=False) == (200, 1)
    assert found.growth() == (400, 1)


def test_the_second_manager_counts_bytes() -> None:
    """A quota of 8 GiB is 8 GiB of room; a sequence has the pages that its tokens fill."""
    found = _plan(load_model("llama-3.1-8b"), {"use_kv_cache_manager_v2": True})
    page = found.block_bytes or 0

    assert found.capacity(8 * 2**30, at=32).max_sequences == 8 * 2**30 // page
    for n in (1, 31, 32, 33, 1000, 1024):
        assert found.held(n) == {"blocks": cdiv(n, 32)}


def test_blocks_of_beams() -> None:
    """kvCacheManagerTest.cpp: 10 blocks of 64, 4 beams, a prompt of 575 tokens, 8 sequences."""
    each = sequence_blocks(575, 640, 64, beams=4)

    assert (each, 8 * each) == (16, 128)
    assert free_blocks(128, 575, 575, 64, beams=4) == 116
    assert free_blocks(128, 575, 576, 64, beams=4) == 116
    assert free_blocks(128, 575, 577, 64, beams=4) == 112
    assert 128 - 8 * each == 0


def test_blocks_of_one_beam() -> None:
    """10 blocks a sequence, 80 in all; 575 tokens hold 9, two more a tenth; five less, nine."""
    assert 8 * sequence_blocks(575, 640, 64) == 80
    assert free_blocks(80, 575, 575, 64) == 71
    assert free_blocks(80, 575, 577, 64) == 70
    assert free_blocks(80, 575, 576, 64) == 71


def test_a_tensor_for_every_number_of_heads() -> None:
    """Heads 3, 2, 1, 2 of 64 in blocks of 64: one block is all layers' rows side by side."""
    found = _plan(_model(3, 2, 1, 2), block_size=64, max_model_len=639)  # and a token more
    (pool,) = found.rank.pools

    assert pool.unit_bytes == (3 + 2 + 1 + 2) * 64 * 64 * 2 * 2
    assert f"{offset_table_bytes(3, 2048, 10):,} B of pinned host memory" in "\n".join(found.notes)


def test_a_window_of_575_tokens() -> None:
    """No sequence holds more than 9 blocks of 64."""
    found = _plan(_model(1, 1), {"max_attention_window": 575}, block_size=64, max_model_len=640)

    assert [found.held(n)["window 575"] for n in (64, 574, 575, 640)] == [1, 9, 9, 9]


def test_the_estimator_and_the_manager_disagree() -> None:
    """2 heads over 8 ranks: the estimator takes a quarter of a head, the manager a whole one."""
    model = _model(2, width=128)
    found = _plan(model, tensor_parallel_size=8, max_model_len=640)

    assert estimated_bytes_per_token(heads=2, head_dim=128, layers=1, tp=8) == 2 * 32 * 2
    assert found.growth() == (2 * 128 * 2, 1)
    assert any("takes 512 B of the cache" in note and "says 128 B" in note for note in found.notes)


def test_nvfp4() -> None:
    """Half a byte an element and a byte of scale for sixteen."""
    found = _plan(load_model("llama-3.1-8b"), kv_cache_dtype="nvfp4")
    elements = 2 * 8 * 128 * 32

    assert found.growth() == (elements // 2 + elements // 16, 1)
    assert estimated_bytes_per_token(heads=8, head_dim=128, layers=32, bits=4) == (
        elements // 2 + elements // 16
    )


def test_latents_are_on_every_rank() -> None:
    """aiconfigurator: 35,136 elements a token at any tensor-parallel size, and not 218,624."""
    for name in ("deepseek-v3", "kimi-k2.5"):
        for tp in (1, 4, 8):
            found = _plan(load_model(name), tensor_parallel_size=tp, kv_cache_dtype="bfloat16")
            assert found.growth() == (35_136 * 2, 1)


@pytest.mark.parametrize("tp", [1, 8])
def test_latents_beside_an_indexer(tp: int) -> None:
    """aiconfigurator: DeepSeek-V3.2 has 512 x 2 + 64 x 2 + 132 B a token and layer in bfloat16."""
    found = _plan(load_model("deepseek-v3.2"), tensor_parallel_size=tp, kv_cache_dtype="bfloat16")

    assert found.growth() == (61 * (512 * 2 + 64 * 2 + 132), 1)


def test_the_last_layers_have_windows() -> None:
    """test_kv_cache_estimation.py: max_window_layers 2 of 4: none, none, 4096, 4096."""
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 256,
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 2,
        "max_position_embeddings": 32_768,
        "torch_dtype": "bfloat16",
    }
    found = _plan(read_config(config, "config.json", "qwen2"), {"max_attention_window": "model"})

    assert [(pool.name, pool.groups[0].layers) for pool in found.rank.pools] == [
        ("blocks", 2),
        ("window 4096", 2),
    ]


@pytest.mark.parametrize(
    ("name", "tp", "elements"),
    [("llama-3.1-8b", 1, 65_536), ("qwen3-32b-nvfp4", 4, 32_768), ("qwen3-30b-a3b-fp8", 4, 12_288)],
)
def test_elements_a_token(name: str, tp: int, elements: int) -> None:
    """Aiconfigurator's tests, with a rank's heads rounded up as the manager does."""
    found = _plan(load_model(name), tensor_parallel_size=tp, kv_cache_dtype="bfloat16")

    assert found.growth() == (elements * 2, 1)


def test_sparse_attention() -> None:
    """DeepSeek-V3.2 in fp8: 576 B of latent and 132 B of index key a token and layer."""
    found = _plan(load_model("deepseek-v3.2"), kv_cache_dtype="fp8")

    assert found.growth() == (61 * (576 + 132), 1)
    assert found.block_size == 64


def test_windows_share_the_memory_evenly() -> None:
    """A pool a window, each with the same bytes; max_tokens does not count."""
    model = _model(4, 4, 4, 4, windows=(64, 64, 64, None))
    found = _plan(
        model,
        {"max_attention_window": "model", "max_tokens": 64},
        block_size=32,
        max_model_len=4096,
    )
    full, window = found.capacity(2**20).pools

    assert full.units == 2**19 // (32 * 1024)
    assert window.units == 2**19 // (3 * 32 * 1024)


def test_blocks_are_rounded_down() -> None:
    """And the smaller of memory and max_tokens decides."""
    assert blocks_in_memory(10 * 2**30, 0.9, 131_072, 32) == 2304
    assert blocks_in_memory(10 * 2**30, 0.9, 131_072, 32, max_tokens=1000) == 31
    capped = _plan(load_model("llama-3.1-8b"), {"max_tokens": 1000})
    assert capped.capacity(9 * 2**30).num_blocks == 31
    assert _plan(load_model("llama-3.1-8b")).capacity(9 * 2**30).num_blocks == 2304
