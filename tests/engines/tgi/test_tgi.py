"""What text-generation-inference's source says, worked out by hand.

Source: text-generation-inference at db931fc. models/flash_causal_lm.py, warmup: a block is
BLOCK_SIZE x heads x head size x 2 x element size x layers.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.attention import FullAttention, Mla
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from tests.property import strategies as some
from tests.property.strategies import SETTINGS


def _plan(model: ModelSpec | str, **settings: Any) -> CachePlan:
    if isinstance(model, str):
        model = load_model(model)
    return plan(model, Deployment(engine="tgi", **settings))


def _model(architecture: str, kv_heads: int, head: int, heads: int = 32) -> ModelSpec:
    run = LayerRun(count=2, caches=(FullAttention(num_kv_heads=kv_heads, head_dim=head),))
    return ModelSpec(
        name="test",
        num_hidden_layers=2,
        dtype="float16",
        layers=(run,),
        architecture=architecture,
        num_attention_heads=heads,
        max_position_embeddings=4096,
    )


@pytest.mark.parametrize(
    ("attention", "block"), [("flashinfer", 1), ("flashdecoding", 256), ("paged", 16)]
)
def test_blocks_by_attention(attention: str, block: int) -> None:
    """globals.py, BLOCK_SIZE; Llama-3.1-8B keeps 2 x 8 x 128 x 2 B x 32 layers = 131,072 B."""
    found = _plan("llama-3.1-8b", attention_backend=attention)

    assert (found.block_size, found.block_bytes) == (block, block * 131_072)
    assert found.reuse_tokens == (None if attention == "paged" else block)
    assert found.rank.pools[0].reserved_units == 1


def test_the_default_is_flashinfer_where_the_head_allows() -> None:
    """The launcher's main.rs, resolve_attention: heads of 64, 128 or 256 only."""
    assert _plan("llama-3.1-8b").block_size == 1
    assert _plan("phi-2").block_size == 256
    assert _plan("phi-2", gpu=load_gpu("t4")).block_size == 16
    # GPT-2's config says n_head and n_embd, so the launcher knows no head size.
    assert _plan("gpt2").block_size == 256
    # Forced for its family, though 2,048 / 16 = 128; prefix caching stays on.
    lite = _plan("deepseek-v2-lite")
    assert (lite.block_size, lite.reuse_tokens) == (256, 256)
    assert _plan("deepseek-v3").reuse_tokens is None
    # A vision model has no prefix caching.
    assert _plan("gemma-3-27b").reuse_tokens is None
    assert _plan("gemma-3-1b").reuse_tokens == 1


def test_it_runs_half_precision_whatever_the_config_says() -> None:
    """FlashCausalLM's default_dtype is float16, for Gemma bfloat16: float32 models are halved."""
    found = _plan("smollm-1.7b")
    assert found.kv_cache_dtype == "float16"
    assert found.block_bytes == 2 * 32 * 64 * 2 * 24
    assert any("float32" in note for note in found.notes)
    assert _plan("llama-3.1-8b", dtype="bfloat16").kv_cache_dtype == "bfloat16"
    assert _plan("gemma-7b").kv_cache_dtype == "bfloat16"
    with pytest.raises(UnsupportedError, match="float32"):
        _plan("llama-3.1-8b", dtype="float32")


def test_mla_is_kept_decompressed_and_padded() -> None:
    """get_model: head_size = max(128 + 64, 128) = 192 for K and V of 128 heads, 61 layers.

    61 x 2 x 128 x 192 x 2 B = 5,996,544 B a token, where the latents have 61 x 576 x 2 = 70,272;
    V needs 128 of its 192, so that 61 x 128 x 64 x 2 B a token are padding.
    """
    found = _plan("deepseek-v3")

    assert found.block_bytes == 256 * 5_996_544
    assert found.wastes(256).page_padding_bytes == 256 * 61 * 128 * 64 * 2
    assert _plan("deepseek-v3", tensor_parallel_size=8).block_bytes == 256 * 5_996_544 // 8


def test_windows_save_nothing() -> None:
    """models/model.py, info: window_size is None. Gemma-3-27B: 62 x 16 x 128 x 2 x 2 B a token."""
    found = _plan("gemma-3-27b")

    assert found.bytes_needed(8192) == 8192 * 62 * 16 * 128 * 2 * 2
    assert found.wastes(8192).retention_bytes == (8192 - 1024) * 52 * 16 * 128 * 2 * 2


def test_heads_are_floored_and_never_repeated() -> None:
    """FlashCausalLM: kv // world, 0 fails its assertion; a single head is kept by all or refused.

    flash_gemma_modeling.py divides a single head down to none; FlashSantacoder and FlashRW keep it.
    """
    assert _plan("llama-3.1-8b", tensor_parallel_size=8).block_bytes == 131_072 // 8
    with pytest.raises(UnsupportedError, match="8 KV heads over 16 ranks"):
        _plan("llama-3.1-8b", tensor_parallel_size=16)
    with pytest.raises(UnsupportedError, match="1 KV heads over 2 ranks"):
        _plan("gemma-2b", tensor_parallel_size=2)
    with pytest.raises(UnsupportedError, match="10 KV heads cannot be split"):
        _plan(_model("Phi3ForCausalLM", 10, 128, heads=40), tensor_parallel_size=4)
    with pytest.raises(UnsupportedError, match="attention heads"):
        _plan("llama-3.1-8b", tensor_parallel_size=3)
    starcoder = _model("GPTBigCodeForCausalLM", 1, 128)
    alone, split = (_plan(starcoder, tensor_parallel_size=tp).block_bytes for tp in (1, 4))
    assert alone == split == 256 * 2 * 128 * 2 * 2


def test_fp8() -> None:
    """kv_cache.py, KVCache: fp8 with FlashInfer or paged attention on CUDA, one byte an element."""
    assert _plan("llama-3.1-8b", kv_cache_dtype="fp8_e5m2").block_bytes == 65_536
    paged = _plan("llama-3.1-8b", kv_cache_dtype="fp8", attention_backend="paged")
    assert paged.block_bytes == 16 * 65_536
    with pytest.raises(UnsupportedError, match="no fp8 cache with flashdecoding"):
        _plan("llama-3.1-8b", kv_cache_dtype="fp8", attention_backend="flashdecoding")
    with pytest.raises(UnsupportedError, match="int8"):
        _plan("llama-3.1-8b", kv_cache_dtype="int8")


def test_paged_keys_come_in_parts() -> None:
    """kv_cache.py: K is [.., head // x, 16, x] with x = 16 // element size: 100 is no multiple."""
    with pytest.raises(UnsupportedError, match="parts of 8 elements and a head has 100"):
        _plan(_model("LlamaForCausalLM", 8, 100), attention_backend="paged")


def test_blocks_from_the_free_memory() -> None:
    """warmup: int((free - 0.1 x total) // block) + the warm-up batch's blocks.

    Free 60 GiB of 80: 52 GiB are left, 425,984 blocks of 131,072 B; floating point makes 1 - 0.9
    a little less than 0.1, so that the last block still fits. 4,096 tokens to prefill are 4,096
    blocks of one token; where the maximum is given (8,192), the one request grows to 8,191.
    """
    args = {
        "free_memory": 60 * 2**30,
        "total_memory": 80 * 2**30,
        "max_batch_prefill_tokens": 4096,
    }
    found = _plan("llama-3.1-8b", engine_args=args)
    assert found.capacity().num_blocks == 425_984 + 4096
    assert start_up_log(found, None) == (
        "KV-cache blocks: 430080, size: 1",
        "Setting max batch total tokens to 430080",
    )
    longer = _plan("llama-3.1-8b", max_model_len=8192, engine_args=args)
    assert longer.capacity().num_blocks == 425_984 + 8191
    # Two requests of 2,048 tokens that may grow to 8,191 each.
    two = _plan("llama-3.1-8b", max_model_len=8192, engine_args={**args, "max_input_tokens": 2048})
    assert two.capacity().num_blocks == 425_984 + 2 * 8191
    one = _plan(
        "llama-3.1-8b",
        max_model_len=8192,
        max_num_seqs=1,
        engine_args={**args, "max_input_tokens": 2048},
    )
    assert one.capacity().num_blocks == 425_984 + 8191
    assert one.capacity().max_sequences == 1
    for missing in ("total_memory", "max_batch_prefill_tokens"):
        with pytest.raises(UnsupportedError, match="not known"):
            _plan("llama-3.1-8b", engine_args={**args, missing: None})


def test_the_start_up_check_counts_block_0() -> None:
    """lib.rs: max_total_tokens is compared with all blocks; the allocator hands out one fewer."""
    found = _plan("llama-3.1-8b", max_model_len=4096, attention_backend="paged")
    unit = 16 * 131_072

    exact = found.capacity(256 * unit)
    assert exact.fits and exact.max_sequences == 0
    assert start_up_log(found, 256 * unit)[1] == "Setting max batch total tokens to 4096"
    assert not found.capacity(255 * unit).fits
    assert start_up_log(found, 255 * unit) == (
        "KV-cache blocks: 255, size: 16",
        "Not enough memory to handle `max_total_tokens=4096`",
    )
    # A maximum that was not asked for gives way instead.
    easy = _plan("llama-3.1-8b", attention_backend="paged")
    assert start_up_log(easy, 255 * unit)[1] == "Setting max batch total tokens to 4080"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3-8b", "Qwen3ForCausalLM"),
        ("falcon-rw-1b", "pads Falcon"),
        ("falcon-mamba-7b", "FalconMamba"),
        ("llama-3.2-11b-vision", "Mllama"),
        ("deepseek-v3.2", "DeepseekV32"),
    ],
)
def test_models_without_blocks_are_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        _plan(name)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"attention_backend": "flashdecoding-ipex"}, UnsupportedError, "Intel"),
        ({"attention_backend": "flash_attn"}, UnknownNameError, "flash_attn"),
        ({"block_size": 32}, UnsupportedError, "blocks have 1 token with"),
        ({"pipeline_parallel_size": 2}, UnsupportedError, "pipeline_parallel_size"),
        ({"num_gpu_blocks_override": 9}, UnsupportedError, "num_gpu_blocks_override"),
        ({"engine_args": {"speculate": 2}}, UnsupportedError, "speculation"),
        ({"engine_args": {"wiggle_room": 1.0}}, InvalidValueError, "wiggle_room"),
        ({"engine_args": {"free_memory": 0}}, InvalidValueError, "free_memory"),
        ({"engine_args": {"quantize": "awq"}}, UnknownNameError, "quantize"),
        ({"engine_version": "2.4"}, UnsupportedError, "2.4"),
        (
            {"attention_backend": "paged", "enable_prefix_caching": True},
            InvalidValueError,
            "prefix caching",
        ),
    ],
)
def test_refused_settings(settings: dict[str, Any], error: type[KvcalcError], why: str) -> None:
    with pytest.raises(error, match=why):
        _plan("llama-3.1-8b", **settings)


def test_heads_of_other_latents_are_not_guessed() -> None:
    run = LayerRun(count=1, caches=(Mla(kv_lora_rank=512, qk_rope_head_dim=64),))
    odd = ModelSpec(
        name="odd",
        num_hidden_layers=1,
        dtype="bfloat16",
        layers=(run,),
        architecture="DeepseekV3ForCausalLM",
        num_attention_heads=64,
    )
    with pytest.raises(UnsupportedError, match="hidden size over heads"):
        _plan(odd)


@SETTINGS
@given(
    st.sampled_from(
        ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "phi-2", "mixtral-8x7b-v0.1", "gpt2")
    ),
    st.sampled_from(("flashinfer", "flashdecoding", "paged")),
    some.tokens,
)
def test_wastes_add_up(name: str, attention: str, n: int) -> None:
    found = _plan(name, attention_backend=attention)
    parts = found.wastes(n)

    assert parts.reserved_bytes == parts.used_bytes + parts.waste_bytes
    assert parts.reserved_bytes == found.bytes_held(n)
