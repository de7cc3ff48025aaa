"""What vllm-ascend's source says, worked out by hand, and what one server logged.

Source: vllm-ascend at 182b75e. utils.py, refresh_block_size: blocks of 128;
patch/platform/patch_mamba_config.py: the K rows of a block are as large as a state.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines import plan, start_up_log
from kvcalc.models import load_model
from tests.conftest import ABSENT, SHARED
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

LISTED = {
    "vllm-v1-220": "vllm-ascend 0.23: how it keeps DeepSeek-V4's caches is not modelled",
}
"""Cases of servers on Ascend that are not reproduced -> why."""
REPRODUCED = ("vllm-v1-221",)


def _plan(name: str, **settings: Any) -> CachePlan:
    return plan(load_model(name), Deployment(engine="vllm-ascend", **settings))


def test_blocks_have_128_tokens_whatever_is_asked() -> None:
    """Llama-3.1-8B: 128 x 2 x 8 x 128 x 2 B x 32 layers."""
    found = _plan("llama-3.1-8b", block_size=16)

    assert (found.block_size, found.block_bytes) == (128, 128 * 131_072)
    assert any("128 tokens, not of 16" in note for note in found.notes)
    assert _plan("llama-3.1-8b").block_bytes == 128 * 131_072


def test_mla_lies_in_two_tensors_and_takes_no_more() -> None:
    """_get_attention_kv_cache_dims: 512 and 64 of 576 elements of the one page."""
    found = _plan("deepseek-v3")

    assert found.block_bytes == 128 * 576 * 2 * 61
    assert found.wastes(128).page_padding_bytes == 0


def test_indexer_keys_are_kept_in_the_cache_dtype() -> None:
    """AscendSFAIndexerCacheSpec without C8: 128 x 2 B a token beside 576 x 2."""
    assert _plan("deepseek-v3.2").block_bytes == 128 * (576 + 128) * 2 * 61


def test_a_log_of_qwen_3_5_on_8_npus() -> None:
    """Case vllm-v1-221: blocks of 512, K 512 B a token, a state of 262,144 B, page 536,576 B.

    The case does not say that tokens were proposed: three are inferred from its convolution page of
    12,288 B, 3 + 3 rows of 1,024 channels. The block and 512 x 2 x 512 + 12,288 = 536,576 follow.
    """
    found = _plan(
        "qwen3.5-35b-a3b",
        tensor_parallel_size=8,
        num_speculative_tokens=3,
        speculative_method="mtp",
    )
    groups = found.rank.pools[0].groups

    assert {group.page_bytes for group in groups} == {536_576}
    (full,) = [group for group in groups if group.name.startswith("full")]
    assert full.block_size == 512
    # A state of one layer needs 262,144 and 3 x 1,024 x 2 B of it; without proposed tokens the
    # page is 6,144 B smaller.
    plain = _plan("qwen3.5-35b-a3b", tensor_parallel_size=8)
    assert {group.page_bytes for group in plain.rank.pools[0].groups} == {530_432}


def test_a_state_that_k_rows_do_not_fill_is_refused() -> None:
    """The assertion in patch_mamba_config.py: 96 x 96 x 4 B = 36,864 B over blocks of 32,768."""
    state = GatedDeltaNet(
        num_k_heads=1,
        num_v_heads=1,
        head_k_dim=96,
        head_v_dim=96,
        conv_kernel=4,
        state_dtype="float32",
    )
    full = FullAttention(num_kv_heads=1, head_dim=128)
    model = ModelSpec(
        name="odd",
        num_hidden_layers=2,
        dtype="bfloat16",
        layers=(LayerRun(count=1, caches=(state,)), LayerRun(count=1, caches=(full,))),
        architecture="Qwen3_5ForCausalLM",
        num_attention_heads=8,
    )
    with pytest.raises(UnsupportedError, match="256 tokens have 65,536 B"):
        plan(model, Deployment(engine="vllm-ascend"))


def test_cached_prefixes_keep_two_states() -> None:
    """patch_mamba_config.py: blocks of states are the attention's where prefixes are cached."""
    off = _plan("qwen3.5-27b")
    on = _plan("qwen3.5-27b", enable_prefix_caching=True)

    for found, block, slots in ((off, 262_144, 1), (on, 1536, 2)):
        group = found.rank.pools[0].groups[0]
        assert (group.block_size, group.rule.held(5)) == (block, slots)
    with pytest.raises(UnsupportedError, match="state at every block"):
        _plan("nemotron-3-nano-30b-a3b", enable_prefix_caching=True)


def test_the_log_has_the_plugins_line_of_memory() -> None:
    """worker.py prints two decimals; 0.27.1 the tokens and the concurrency apart."""
    found = _plan("llama-3.1-8b")

    assert start_up_log(found, 40 * 2**30) == (
        "Available KV cache memory: 40.00 GiB",
        "GPU KV cache size: 327,680 tokens",
        "Maximum concurrency for 131,072 tokens per request: 2.50x",
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("deepseek-v4-flash", "sliding_mla|compressed_attention|indexer"),
        ("minimax-m3-nvfp4", "indexer"),
        ("jamba-v0.1", "mamba1"),
        ("kimi-k3", "kimi_delta_attention"),
    ],
)
def test_models_that_are_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        _plan(name)


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"kv_cache_dtype": "fp8"}, UnsupportedError, "fp8 cache"),
        ({"attention_backend": "FLASHINFER"}, UnsupportedError, "attention_backend"),
        ({"decode_context_parallel_size": 2, "tensor_parallel_size": 2}, UnsupportedError,
         "decode_context_parallel_size"),
        ({"engine_version": "0.23"}, UnsupportedError, "0.23"),
        ({"engine_args": {"x": 1}}, UnsupportedError, "engine_args"),
        ({"tensor_parallel_size": 3}, UnsupportedError, "attention heads"),
    ],
)  # fmt: skip
def test_refused_settings(settings: dict[str, Any], error: type[KvcalcError], why: str) -> None:
    with pytest.raises(error, match=why):
        _plan("llama-3.1-8b", **settings)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_case_is_reproduced_or_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    cases = map(json.loads, path.read_text(encoding="utf-8").splitlines())

    told = {c["id"] for c in cases if "vllm-ascend" in (c["url"] or "")}
    assert told == {*REPRODUCED, *LISTED}


@SETTINGS
@given(
    st.sampled_from(
        (
            "llama-3.1-8b",
            "deepseek-v3.2",
            "gpt-oss-20b",
            "qwen3-next-80b-a3b",
            "nemotron-3-nano-30b-a3b",
        )
    ),
    some.tokens,
)
def test_wastes_add_up(name: str, n: int) -> None:
    found = _plan(name)
    parts = found.wastes(n)

    assert parts.reserved_bytes == parts.used_bytes + parts.waste_bytes
    assert parts.reserved_bytes == found.bytes_held(n)
