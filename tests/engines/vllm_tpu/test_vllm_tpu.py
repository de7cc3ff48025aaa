"""What tpu-inference's source says, worked out by hand.

Source: tpu-inference at b8692ff. kernels/ragged_paged_attention/v3/kernel.py: a page is
[tokens, align(2 x heads, packing) / packing, packing, align(head, 128)], packing 2 elements of 16
bits or 4 of 8; kernel_hd64.py: [tokens, align(heads, packing) / packing, packing, 128];
kernels/mla/v2/kernel.py: [align(tokens, 32) / 32, 32, align(512, 128) + align(64, 128)].
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.engines.vllm_tpu import unasked_block
from kvcalc.models import load_model
from tests.property import strategies as some
from tests.property.strategies import SETTINGS


def _plan(model: ModelSpec | str, **settings: Any) -> CachePlan:
    if isinstance(model, str):
        model = load_model(model)
    return plan(model, Deployment(engine="vllm-tpu", **settings))


def _model(kv_heads: int, head: int, heads: int = 32) -> ModelSpec:
    run = LayerRun(count=1, caches=(FullAttention(num_kv_heads=kv_heads, head_dim=head),))
    return ModelSpec(
        name="test",
        num_hidden_layers=1,
        dtype="bfloat16",
        layers=(run,),
        architecture="LlamaForCausalLM",
        num_attention_heads=heads,
        max_position_embeddings=4096,
    )


@pytest.mark.parametrize(
    ("heads", "head", "dtype", "token_bytes"),
    [
        (8, 128, "auto", 16 * 128 * 2),  # nothing to fill up
        (8, 80, "auto", 16 * 128 * 2),  # 80 to 128 lanes
        (8, 256, "auto", 16 * 256 * 2),
        (8, 64, "auto", 8 * 128 * 2),  # K and V side by side
        (1, 64, "auto", 2 * 128 * 2),  # one head to a word of two
        (1, 128, "fp8", 4 * 128),  # K and V of one head to a word of four
        (2, 128, "fp8", 4 * 128),
        (3, 128, "fp8", 8 * 128),  # 6 to 8
        (8, 128, "fp8_e5m2", 16 * 128),
    ],
)
def test_pages_are_packed_and_filled_up(
    heads: int, head: int, dtype: str, token_bytes: int
) -> None:
    query_heads = heads * 4
    found = _plan(_model(heads, head, query_heads), kv_cache_dtype=dtype, block_size=64)

    assert found.block_bytes == 64 * token_bytes
    size = 1 if dtype.startswith("fp8") else 2
    assert found.wastes(64).page_padding_bytes == 64 * (token_bytes - 2 * heads * head * size)


def test_mla_rows_are_filled_up_apart() -> None:
    """512 + 128 elements where 576 are needed, in blocks of 1,024 (flash_attn_mla.py)."""
    found = _plan("deepseek-v3")

    assert found.block_size == 1024
    assert found.block_bytes == 1024 * 640 * 2 * 61
    assert found.wastes(1024).page_padding_bytes == 1024 * 64 * 2 * 61
    # A page's tokens come in packs of 32.
    assert _plan("deepseek-v3", block_size=40).block_bytes == 64 * 640 * 2 * 61
    with pytest.raises(UnsupportedError, match="attention data parallelism"):
        _plan("deepseek-v3", tensor_parallel_size=8)


@pytest.mark.parametrize(
    ("length", "sequences", "block"),
    [
        (100, 1, 16),  # 128 / 16 = 8, at least 16
        (1024, 1, 64),
        (3000, 1, 256),  # 4,096 / 16
        (8192, 1, 256),  # 512, at most 256
        (8193, 1, 16),
        (8192, 256, 256),
        # 524,288 / 256 / 4 = 512 page numbers a sequence: 131,072 / 512 = 256 tokens a page.
        (131_072, 256, 256),
        (131_073, 256, 512),  # 257 to a power of two
        (131_072, 8, 16),  # 16,384 numbers: 8 tokens would do
    ],
)
def test_blocks_by_length_and_sequences(length: int, sequences: int, block: int) -> None:
    """flash_attn.py, get_page_size and get_min_page_size."""
    assert unasked_block(length, sequences, []) == block
    found = _plan("llama-3.1-8b", max_model_len=length, max_num_seqs=sequences)
    assert found.block_size == block


def test_heads_are_repeated_to_the_chips() -> None:
    """utils.py, get_padded_num_heads: 8 heads over 16 chips are 16, one each, K and V in a word."""
    whole, half, many = (
        _plan(_model(8, 128), tensor_parallel_size=tp, block_size=16).block_bytes
        for tp in (1, 2, 16)
    )
    assert (whole, half, many) == (16 * 4096, 16 * 2048, 16 * 512)
    with pytest.raises(UnsupportedError, match="8 heads cannot be split over 12"):
        _plan(_model(8, 128, 48), tensor_parallel_size=12)


def test_windows_by_whose_code_runs_the_model() -> None:
    """get_kv_cache_spec: JAX models have no windows; those of vLLM's own code do."""
    torch = _plan("gpt-oss-120b")
    assert [group.layers for group in torch.rank.pools[0].groups] == [18, 18]
    jax = _plan("gpt-oss-120b", engine_args={"model_impl_type": "flax_nnx"})
    (group,) = jax.rank.pools[0].groups
    assert group.layers == 36
    # 8 heads of 64: 8 x 128 x 2 B a token and layer.
    assert jax.bytes_needed(2560) == 2560 * 36 * 8 * 128 * 2
    # Heads of two sizes: windows are not told either.
    mixed = _plan("gemma-4-26b-a4b", engine_args={"model_impl_type": "vllm"}, max_model_len=8192)
    assert len(mixed.rank.pools[0].groups) == 1


def test_the_log_is_vllms() -> None:
    """131,072 B a token: 40 GiB are 1,280 blocks of 256 tokens, one of them the null block."""
    found = _plan("llama-3.1-8b")

    assert found.rank.pools[0].reserved_units == 1
    (line,) = start_up_log(found, 40 * 2**30)
    assert line.startswith("GPU KV cache size: 327,680 tokens")
    assert found.capacity(40 * 2**30).max_sequences == 2
    (refused,) = start_up_log(found, 2**30)
    assert "is larger than the available KV cache memory" in refused


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3.5-27b", "gated_delta_net"),
        ("deepseek-v3.2", "indexer"),
        ("deepseek-v4-flash", "sliding_mla|compressed_attention|indexer"),
        ("mimo-v2-flash", "K and V of one size"),
    ],
)
def test_models_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        _plan(name)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"pipeline_parallel_size": 2}, UnsupportedError, "pipeline_parallel_size"),
        ({"decode_context_parallel_size": 2, "tensor_parallel_size": 2}, UnsupportedError,
         "decode_context_parallel_size"),
        ({"num_speculative_tokens": 2}, UnsupportedError, "num_speculative_tokens"),
        ({"attention_backend": "FLASHINFER"}, UnsupportedError, "attention_backend"),
        ({"kv_cache_dtype": "nvfp4"}, UnsupportedError, "nvfp4"),
        ({"dtype": "float32"}, UnsupportedError, "float32"),
        ({"engine_version": "0.32"}, UnsupportedError, "0.32"),
        ({"tensor_parallel_size": 3}, UnsupportedError, "attention heads"),
        ({"engine_args": {"model_impl_type": "jax"}}, UnknownNameError, "jax"),
        ({"engine_args": {"use_2d_tp": True}}, UnknownNameError, "use_2d_tp"),
    ],
)  # fmt: skip
def test_refused_settings(settings: dict[str, Any], error: type[KvcalcError], why: str) -> None:
    with pytest.raises(error, match=why):
        _plan("llama-3.1-8b", **settings)


@SETTINGS
@given(
    st.sampled_from(
        ("llama-3.1-8b", "gpt-oss-120b", "deepseek-v3", "phi-2", "gemma-3-27b", "gemma-4-26b-a4b")
    ),
    some.tokens,
)
def test_wastes_add_up(name: str, n: int) -> None:
    found = _plan(name)
    parts = found.wastes(n)

    assert parts.reserved_bytes == parts.used_bytes + parts.waste_bytes
    assert parts.reserved_bytes == found.bytes_held(n)
