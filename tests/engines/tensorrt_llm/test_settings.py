"""TensorRT-LLM's settings: what is refused, and that wastes conserve whatever is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.differences import differences
from kvcalc.core.attention import CrossAttention, FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.engines import plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu


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
        (
            "llama-4-scout",
            {"engine_args": {"max_attention_window": 8192}},
            "window beside chunked attention",
        ),
        ("mimo-v2-flash", {}, "in one width"),
        ("llama-3.1-8b", {"block_size": 64, "engine_args": {"tokens_per_block": 32}}, "contradict"),
        ("llama-3.1-8b", {"tensor_parallel_size": 3}, "cannot split 32 query heads over 3 ranks"),
        ("llama-3.1-8b", {"block_size": 48}, "48 is no power of two"),
        ("llama-3.1-8b", {"block_size": 1}, "1 is no power of two above 1"),
        ("llama-3.1-8b", {"num_speculative_tokens": 2}, "num_speculative_tokens is not modelled"),
        (
            "llama-3.1-8b",
            {"kv_cache_dtype": "nvfp4", "engine_args": {"use_kv_cache_manager_v2": True}},
            "KVCacheManagerV2 has no nvfp4",
        ),
        (
            "llama-3.1-8b",
            {"engine_args": {"use_kv_cache_manager_v2": True, "event_buffer_max_size": 8}},
            "keeps no events",
        ),
        (
            "llama-3.1-8b",
            {"engine_args": {"max_tokens": 64, "kv_cache_config.max_tokens": 64}},
            "max_tokens is given twice",
        ),
    ],
)
def test_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KvcalcError, match=message):
        plan(load_model(name), Deployment(engine="tensorrt-llm", **settings))


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-3.2-3b", {"tensor_parallel_size": 3, "pipeline_parallel_size": 3}),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}),
        ("deepseek-v3.2", {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8}),
        ("gpt-oss-20b", {}),
        ("llama-4-scout", {"max_model_len": 32768}),
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


def test_nvfp4_conserves() -> None:
    found = plan(
        load_model("llama-3.1-8b"), Deployment(engine="tensorrt-llm", kv_cache_dtype="nvfp4")
    )

    for n in (1, 32, 33, 5000):
        wastes = found.wastes(n)
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())


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
    assert any("each of 8 ranks holds all KV heads" in note for note in found.notes)


def _noted(name: str, args: dict[str, Any], **settings: Any) -> tuple[str, ...]:
    deployment = Deployment(engine="tensorrt-llm", engine_args=args, **settings)
    return plan(load_model(name), deployment).notes


def test_max_tokens_shortens_the_longest_sequence() -> None:
    """_validate_and_adjust_attention_windows: max_seq_len becomes what the blocks hold."""
    found = plan(
        load_model("llama-3.1-8b"),
        Deployment(engine="tensorrt-llm", engine_args={"max_tokens": 5000}),
    )
    capacity = found.capacity(None)

    assert (capacity.num_blocks, capacity.starts) == (156, True)
    assert capacity.max_model_len_served == 156 * 32
    assert any("max_tokens 5,000 bounds the pool: 4,992 tokens" in note for note in found.notes)
    assert any("lowers max_seq_len" in note for note in found.notes)


def test_a_pool_of_no_block_does_not_start() -> None:
    """get_max_atten_window_upper_bound asserts that one block is there."""
    found = plan(
        load_model("llama-3.1-8b"),
        Deployment(engine="tensorrt-llm", engine_args={"max_tokens": 31}),
    )

    assert not found.capacity(None).starts


@pytest.mark.parametrize(
    ("args", "settings", "most"),
    [
        ({"max_batch_size": 4}, {}, 4),
        ({}, {"max_num_seqs": 4}, 4),
        ({"max_batch_size": 4}, {"pipeline_parallel_size": 2}, 8),
        ({"max_batch_size": 4, "use_kv_cache_manager_v2": True}, {"pipeline_parallel_size": 2}, 4),
        ({}, {}, 2048),
    ],
)
def test_max_batch_size_bounds_the_sequences(
    args: dict[str, Any], settings: dict[str, Any], most: int
) -> None:
    """_util.py: max_batch_size of every stage; a V2 manager has max_batch_size places."""
    deployment = Deployment(engine="tensorrt-llm", engine_args=args, **settings)
    found = plan(load_model("llama-3.1-8b"), deployment)

    assert found.max_sequences == most
    assert found.capacity(2**50, at=32).max_sequences == most


def test_notes_of_what_plays_no_part_and_of_the_host() -> None:
    given = _noted("llama-3.1-8b", {"free_gpu_memory_fraction": 0.5})
    host = _noted("llama-3.1-8b", {"host_cache_size": 2**30})

    assert any("free_gpu_memory_fraction 0.5 decides" in note for note in given)
    assert not any("plays no part" in note for note in _noted("llama-3.1-8b", {}))
    assert any("holds 256 blocks that are out of use" in note for note in host)


@pytest.mark.parametrize(
    ("name", "gpu", "block", "note"),
    [
        ("deepseek-v3.2", None, 64, "not of 32: the sparse indexer"),
        ("deepseek-v3", "h100-80gb", 64, "not of 32: FlashMLA"),
        ("deepseek-v3", "b200", 32, None),
        ("deepseek-v3", None, 32, None),
        ("llama-3.1-8b", "h100-80gb", 32, None),
    ],
)
def test_blocks_that_the_kernels_set(
    name: str, gpu: str | None, block: int, note: str | None
) -> None:
    deployment = Deployment(
        engine="tensorrt-llm", gpu=None if gpu is None else load_gpu(gpu), tensor_parallel_size=8
    )
    found = plan(load_model(name), deployment)

    assert found.block_size == block
    assert any("blocks of 64 tokens" in told for told in found.notes) == (note is not None)
    assert note is None or any(note in told for told in found.notes)


def test_flash_mla_overrides_what_was_asked_for() -> None:
    deployment = Deployment(
        engine="tensorrt-llm", gpu=load_gpu("h200"), block_size=32, tensor_parallel_size=8
    )

    assert plan(load_model("deepseek-v3"), deployment).block_size == 64


@pytest.mark.parametrize(
    ("dtype", "gpu", "served"),
    [
        ("nvfp4", "b200", True),
        ("nvfp4", "rtx-5090", False),
        ("nvfp4", "h100-80gb", False),
        ("fp8", "a100-80gb", True),
        ("fp8", "l40s", True),
        ("fp8", "t4", False),
    ],
)
def test_the_support_matrix(dtype: str, gpu: str, served: bool) -> None:
    """docs/source/features/quantization.md, Hardware Support Matrix."""
    deployment = Deployment(engine="tensorrt-llm", gpu=load_gpu(gpu), kv_cache_dtype=dtype)
    if served:
        plan(load_model("llama-3.1-8b"), deployment)
    else:
        with pytest.raises(UnsupportedError, match=f"no {dtype} KV cache on {gpu}"):
            plan(load_model("llama-3.1-8b"), deployment)


def test_latents_are_not_shared_on_ada() -> None:
    deployment = Deployment(engine="tensorrt-llm", gpu=load_gpu("l40s"), tensor_parallel_size=8)

    assert plan(load_model("deepseek-v3"), deployment).reuse_tokens is None


@pytest.mark.parametrize("v2", [False, True])
def test_chunks_keep_every_token(v2: bool) -> None:
    """docs/source/features/kvcache.md: chunked attention does not partition the pools."""
    deployment = Deployment(engine="tensorrt-llm", engine_args={"use_kv_cache_manager_v2": v2})
    found = plan(load_model("llama-4-scout"), deployment)
    (pool,) = found.rank.pools

    assert pool.unit_bytes == 32 * 48 * 2 * 8 * 128 * 2
    assert found.held(40_000) == {"blocks": 1250}
    assert found.bytes_readable(8192) < found.bytes_readable(8191)
    assert any("36 layers with a chunk keep every token" in note for note in found.notes)


def test_cross_attention_is_refused_by_name() -> None:
    caches = (
        FullAttention(num_kv_heads=20, head_dim=64),
        CrossAttention(num_kv_heads=20, head_dim=64, encoder_tokens=1500),
    )
    model = ModelSpec(
        name="speech",
        dtype="float16",
        num_hidden_layers=32,
        layers=(LayerRun(count=32, caches=caches),),
    )

    with pytest.raises(UnsupportedError, match="cross_attention layers is not modelled"):
        plan(model, Deployment(engine="tensorrt-llm"))
    with pytest.raises(UnsupportedError, match="cross_kv_cache_fraction"):
        plan(model, Deployment(engine="tensorrt-llm", engine_args={"cross_kv_cache_fraction": 0.5}))


def test_tokens_are_the_blocks_not_the_places() -> None:
    """Places bound the sequences at once, and the logged tokens are those of the blocks."""
    model = load_model("llama-3.1-8b")
    mine, other = (
        plan(model, Deployment(engine=engine, max_model_len=8192))
        for engine in ("tensorrt-llm", "vllm")
    )
    found = {one.name: one for one in differences(mine, other, 20 * 2**30 + 2 * 2**20)}

    assert found["tokens"].reason.startswith("tensorrt-llm logs the blocks of one group in tokens")
