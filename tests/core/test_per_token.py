"""What a token, a block and a sequence cost, on the rank that holds the most and on all."""

from __future__ import annotations

from fractions import Fraction

import msgspec

from kvcalc.answers.per_token import layer_groups, per_token
from kvcalc.answers.results import SequenceSize
from kvcalc.core.attention import SharedKv
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.rules import Grow
from tests.core import builders
from tests.core.builders import model, plan_of
from tests.core.test_plan import group, one_rank, pool


def test_the_article() -> None:
    found = per_token(plan_of(builders.ARTICLE, max_model_len=8192))

    assert found.bytes_per_token == found.bytes_per_token_past_windows == 65_536
    assert found.bytes_per_token_all_ranks == 65_536
    assert (found.growth.bytes, found.growth.tokens) == (65_536, 1)
    assert (found.state_bytes, found.encoder_bytes) == (0, 0)
    assert (found.block_size, found.block_bytes) == (16, 1_048_576)
    assert found.sequences == (
        SequenceSize(tokens=8192, bytes=536_870_912, allocated_bytes=536_870_912),
        SequenceSize(tokens=131_072, bytes=2**33, allocated_bytes=2**33),
    )
    assert found.explain == ()


def test_in_whole_blocks() -> None:
    """200 tokens are allocated as 208."""
    found = per_token(plan_of(builders.LLAMA_8B), tokens=[200], explain=True)

    assert found.sequences[0].bytes == 200 * 131_072
    assert found.sequences[0].allocated_bytes == 208 * 131_072
    assert any("sequence of 200 tokens" in line for line in found.explain)


def test_layers_of_equal_caches() -> None:
    found = per_token(plan_of(builders.QWEN35_27B, max_model_len=8192))
    first, second = found.layers

    assert (first.kind, first.count, first.keeps) == ("gated_delta_net", 48, "one state")
    assert (first.bytes_per_token, first.state_bytes) == (0, 153_944_064)
    assert (second.kind, second.count, second.keeps) == ("full_attention", 16, "every token")
    assert (second.bytes_per_token, second.state_bytes) == (65_536, 0)
    assert second.shape == "4 KV heads x 256"
    assert found.state_bytes == 153_944_064


def test_windows() -> None:
    found = per_token(plan_of(builders.GEMMA_3_27B))

    assert found.bytes_per_token == 62 * 8192
    assert found.bytes_per_token_past_windows == 10 * 8192
    assert [(layer.kind, layer.count, layer.keeps) for layer in found.layers] == [
        ("sliding_window", 52, "last 1,024 tokens"),
        ("full_attention", 10, "every token"),
    ]


def test_several_caches_in_a_layer() -> None:
    """Their shapes and spans are told together, and the state beside them."""
    found = per_token(plan_of(builders.DEEPSEEK_V4, kv_cache_dtype="fp8_ds_mla"))
    assert found.bytes_per_token is None
    raw, csa, hca, lid = 43 * 584, 21 * 584, 20 * 584, 21 * 132
    mean = raw + Fraction(csa + lid, 4) + Fraction(hca, 128)
    assert Fraction(found.growth.bytes, found.growth.tokens) == mean
    second = found.layers[1]
    assert second.kind == "sliding_mla+compressed_attention+indexer"
    assert second.keeps == "last 128 tokens + 1 entry in 4 tokens + one state"
    assert second.state_bytes == 21 * (65_536 + 16_384)


def test_layers_that_keep_nothing() -> None:
    """A note stands for the shape of a layer without a cache."""
    spec = ModelSpec(
        name="test",
        num_hidden_layers=3,
        dtype="bfloat16",
        layers=(
            LayerRun(count=1, caches=(builders.FULL,)),
            LayerRun(count=1, caches=(SharedKv(source_layer=0),)),
            LayerRun(count=1, caches=(), note="no attention"),
        ),
    )
    found = per_token(plan_of(spec))
    assert [(layer.kind, layer.shape, layer.keeps) for layer in found.layers] == [
        ("full_attention", "8 KV heads x 128", "every token"),
        ("shared_kv", "reads layer 0", "nothing"),
        ("none", "no attention", "nothing"),
    ]


def test_all_ranks() -> None:
    """Four ranks of Llama-3.1-8B together keep what one would; eight copies of MLA are eight."""
    llama = per_token(plan_of(builders.LLAMA_8B, tensor_parallel_size=4))
    deepseek = per_token(plan_of(builders.DEEPSEEK_V3, tensor_parallel_size=8))

    assert (llama.num_gpus, llama.bytes_per_token) == (4, 32_768)
    assert llama.bytes_per_token_all_ranks == 131_072
    assert deepseek.bytes_per_token == 70_272
    assert deepseek.bytes_per_token_all_ranks == 8 * 70_272


def test_shared_tokens() -> None:
    """Eight ranks share the tokens: all of them together keep each row once."""
    plan = plan_of(builders.DEEPSEEK_V3, tensor_parallel_size=8, decode_context_parallel_size=8)
    found = per_token(plan, tokens=[8192])

    assert found.bytes_per_token_all_ranks == 70_272
    assert found.bytes_per_token == 8784
    assert found.sequences[0].bytes == 1024 * 70_272


def test_layers_add_up_to_the_rank() -> None:
    """The layers' bytes a token are the rank's, also where ranks share the tokens."""
    plan = plan_of(builders.DEEPSEEK_V3, tensor_parallel_size=8, decode_context_parallel_size=8)
    found = per_token(plan)

    assert sum(layer.bytes_per_token or 0 for layer in found.layers) == found.bytes_per_token


def test_a_plan_without_a_model() -> None:
    """The table of layers is that of the plan's groups."""
    found = per_token(one_rank(pool(group(Grow(block_tokens=16)))), tokens=[5])

    (only,) = found.layers
    assert (only.count, only.keeps, only.bytes_per_token) == (1, "every token", 10)
    assert found.sequences == (SequenceSize(tokens=5, bytes=50, allocated_bytes=160),)


def test_a_model_of_states() -> None:
    found = per_token(plan_of(model((1, (builders.GDN_27B,)))), tokens=[5])

    assert (found.bytes_per_token, found.block_bytes) == (0, None)
    assert found.sequences[0].bytes == found.state_bytes == 3_207_168


def test_groups_follow_what_the_checkpoint_asks_of_auto() -> None:
    """A checkpoint with an fp8 cache of its own counts so in every view of it."""
    spec = msgspec.structs.replace(builders.LLAMA_8B, kv_cache_dtype="fp8_e4m3")
    (group,) = layer_groups(spec)

    assert group.bytes_per_token == spec.bytes_per_token() == 65_536
