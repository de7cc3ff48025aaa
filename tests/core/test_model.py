"""Models: what a token, a window, a state and a sequence cost."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    SharedKv,
    SlidingWindow,
)
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec, stage_sizes
from kvcalc.core.recurrent import GatedDeltaNet
from tests.core import builders
from tests.core.builders import model


def _gqa(layers: int, heads: int, head_dim: int) -> ModelSpec:
    return model((layers, (FullAttention(num_kv_heads=heads, head_dim=head_dim),)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (builders.ARTICLE, 65_536),
        (builders.LLAMA_8B, 131_072),
        (_gqa(32, 32, 128), 524_288),
        (builders.LLAMA_70B, 327_680),
        (builders.QWEN35_27B, 65_536),
        (builders.GEMMA_3_27B, 62 * 8192),
        (model((48, (FullAttention(num_kv_heads=4, head_dim=128),))).on_rank(4), 2 * 12_288),
        (_gqa(64, 8, 128).on_rank(4), 2 * 32_768),
    ],
    ids=["article", "8B", "7B", "70B", "Qwen3.5-27B", "Gemma-3", "Qwen3-30B-A3B tp4", "32B tp4"],
)
def test_bytes_per_token(spec: ModelSpec, expected: int) -> None:
    """The seeds' and NVIDIA aiconfigurator's figures, windows open."""
    assert spec.bytes_per_token() == expected
    assert spec.growth() == (expected, 1)


def test_llama_2_7b_costs_four_times_llama_3_8b() -> None:
    assert _gqa(32, 32, 128).sequence_bytes(4096) == 4 * builders.LLAMA_8B.sequence_bytes(4096)


def test_the_article() -> None:
    """8,192 tokens are half a GiB, and four of them two."""
    assert builders.ARTICLE.sequence_bytes(8192) == 536_870_912
    assert 4 * builders.ARTICLE.sequence_bytes(8192) == 2 * builders.GIB


def test_the_state_that_the_article_leaves_out() -> None:
    """Qwen3.5-27B: 146.8 MiB a sequence, worth 2,349 tokens."""
    spec = builders.QWEN35_27B

    assert spec.num_hidden_layers == 64
    assert spec.state_bytes() == 153_944_064
    assert spec.sequence_bytes(8192) == 690_814_976
    assert spec.sequence_bytes(0) == 153_944_064
    assert spec.state_bytes() == 2349 * 65_536


@pytest.mark.parametrize("n", [0, 1, 512, 1023, 1024, 1025, 4096, 65_536, 262_144])
def test_windows(n: int) -> None:
    """A Gemma-4-like model: 25 windows of 1,024, five layers with wide global heads."""
    window = SlidingWindow(num_kv_heads=8, head_dim=256, sliding_window=1024)
    wide = FullAttention(num_kv_heads=2, head_dim=512)
    spec = model((25, (window,)), (5, (wide,)))

    assert spec.sequence_bytes(n) == 25 * 8192 * min(n, 1024) + 5 * 4096 * n
    assert spec.on_rank(8).sequence_bytes(n) == 25 * 1024 * min(n, 1024) + 5 * 2048 * n
    assert spec.bytes_per_token() == 25 * 8192 + 5 * 4096
    assert spec.bytes_per_token_past_windows() == 5 * 4096


def test_qwen35_35b_on_four_ranks() -> None:
    """10,240 B a token and 16,097,280 B of state a rank."""
    gdn = GatedDeltaNet(
        num_k_heads=16,
        num_v_heads=32,
        head_k_dim=128,
        head_v_dim=128,
        conv_kernel=4,
        state_dtype="float32",
    )
    full = FullAttention(num_kv_heads=2, head_dim=256)
    rank = model((30, (gdn,)), (10, (full,))).on_rank(4)

    assert rank.bytes_per_token() == 10_240
    assert rank.state_bytes() == 16_097_280
    assert rank.sequence_bytes(4096) == 4096 * 10_240 + 16_097_280


def test_chunks() -> None:
    """A chunk is counted at its fullest."""
    chunk = ChunkedAttention(num_kv_heads=8, head_dim=128, attention_chunk_size=8192)
    spec = model((36, (chunk,)), (12, (builders.FULL,)))

    assert spec.sequence_bytes(8193) == 36 * 4096 * 8192 + 12 * 4096 * 8193
    assert spec.bytes_per_token() == 48 * 4096
    assert spec.bytes_per_token_past_windows() == 12 * 4096


def test_an_encoder() -> None:
    """whisper-large-v3: 245,760,000 B of encoder rows, 247,398,400 B with ten tokens written."""
    cross = CrossAttention(num_kv_heads=20, head_dim=64, encoder_tokens=1500)
    own = FullAttention(num_kv_heads=20, head_dim=64)
    spec = model((32, (own, cross)))

    assert spec.encoder_bytes() == 245_760_000
    assert spec.growing_bytes(10) == 1_638_400
    assert spec.sequence_bytes(10) == 247_398_400
    assert spec.sequence_bytes(0) == 245_760_000
    assert spec.bytes_per_token() == 163_840


def test_two_attention_blocks_in_one_layer() -> None:
    """LongCat: 28 layers with two MLA caches each."""
    spec = model((28, (builders.MLA, builders.MLA)))

    assert spec.bytes_per_token() == 56 * 1152


def test_borrowed_caches_cost_nothing() -> None:
    """Gemma-3n E4B: 15 of 35 layers read another layer's K and V."""
    spec = model((20, (builders.FULL,)), (10, (SharedKv(source_layer=18),)), (5, ()))

    assert spec.bytes_per_token() == 20 * 4096
    assert spec.state_bytes() == 0


def test_a_model_without_rows() -> None:
    spec = model((4, (builders.GDN_27B,)))

    assert spec.bytes_per_token() == 0
    assert spec.growth() == (0, 1)
    assert spec.sequence_bytes(10**6) == 4 * 3_207_168


def test_deepseek_v4_grows_by_entries() -> None:
    """One entry for every 4 or 128 tokens: on average no token adds a whole number of bytes."""
    spec = builders.DEEPSEEK_V4
    raw, csa, hca, lid = 43 * 584, 21 * 584, 20 * 584, 21 * 132
    mean = raw + Fraction(csa + lid, 4) + Fraction(hca, 128)
    past = Fraction(csa + lid, 4) + Fraction(hca, 128)

    assert spec.bytes_per_token("fp8_ds_mla") is None
    assert spec.bytes_per_token_past_windows("fp8_ds_mla") is None
    assert Fraction(*spec.growth("fp8_ds_mla")) == mean
    assert past.denominator > 1
    for n in (0, 3, 4, 127, 128, 129, 10_000):
        rows = min(n, 128) * raw + n // 4 * (csa + lid) + n // 128 * hca
        assert spec.growing_bytes(n, "fp8_ds_mla") == rows


def test_a_mean_that_is_a_whole_number() -> None:
    """1,024 B with every fourth token are 256 B a token, counted when the entry is complete."""
    entry = CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=4)
    spec = model((1, (entry,)))

    assert spec.bytes_per_token() == 256
    assert [spec.growing_bytes(n) for n in (3, 4, 7, 8)] == [0, 1024, 1024, 2048]


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (61, 1, (61,)),
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (64, 4, (16, 16, 16, 16)),
        (32, 3, (11, 11, 10)),
        (5, 5, (1, 1, 1, 1, 1)),
    ],
)
def test_stage_sizes(layers: int, pp: int, expected: tuple[int, ...]) -> None:
    """Layers left over go to the stages counted back from the last but one."""
    assert stage_sizes(layers, pp) == expected


def test_more_stages_than_layers() -> None:
    with pytest.raises(UnsupportedError, match="61 layers cannot be split over 62"):
        stage_sizes(61, 62)
    with pytest.raises(UnsupportedError, match="4 layers"):
        model((4, (builders.FULL,))).stages(5)


def test_stages_keep_the_order() -> None:
    """Runs are cut where a stage ends, and every layer is in exactly one stage."""
    a, b = builders.WINDOW, builders.GLOBAL
    spec = model((3, (a,)), (1, (b,)), (3, (a,)), (1, (b,)))
    first, last = spec.stages(2)

    assert [(r.count, r.caches) for r in first.layers] == [(3, (a,)), (1, (b,))]
    assert [(r.count, r.caches) for r in last.layers] == [(3, (a,)), (1, (b,))]
    assert [s.num_hidden_layers for s in builders.DEEPSEEK_V3.stages(4)] == [15, 15, 16, 15]
    three = model((5, (a,)), (1, (b,))).stages(3)
    assert [[(r.count, r.caches) for r in s.layers] for s in three] == [
        [(2, (a,))],
        [(2, (a,))],
        [(1, (a,)), (1, (b,))],
    ]
    assert spec.stages(1) == (spec,)


def test_on_one_rank_nothing_changes() -> None:
    assert builders.LLAMA_8B.on_rank(1) is builders.LLAMA_8B


def test_on_rank_passes_the_engines_split_on() -> None:
    rank = _gqa(1, 10, 128).on_rank(4, lambda heads, tp: -(-heads // tp))

    assert rank.bytes_per_token() == 3 * 128 * 2 * 2


def test_with_layers() -> None:
    spec = builders.GEMMA_3_27B.with_layers(2, (builders.FULL,))

    assert spec.num_hidden_layers == 2
    assert spec.bytes_per_token() == 2 * 4096


def test_caches_in_order() -> None:
    caches: list[tuple[int, Cache]] = [(5, builders.WINDOW), (1, builders.GLOBAL)] * 10

    assert list(builders.GEMMA_3_27B.caches()) == [*caches, (2, builders.WINDOW)]


def test_kv_dtype_as_a_name_or_a_value() -> None:
    spec = builders.LLAMA_8B

    assert spec.sequence_bytes(10, "fp8") == 655_360
    assert spec.sequence_bytes(10, kv_dtype("fp8", "bfloat16")) == 655_360
    assert model((1, (builders.FULL,)), dtype="float32").bytes_per_token() == 8192
    with pytest.raises(UnknownNameError):
        spec.bytes_per_token("fp9")


def test_a_sequence_of_less_than_nothing() -> None:
    assert builders.LLAMA_8B.sequence_bytes(0) == 0
    with pytest.raises(InvalidValueError, match="-1 tokens"):
        builders.LLAMA_8B.sequence_bytes(-1)


def test_layers_must_add_up() -> None:
    run = LayerRun(count=2, caches=(builders.FULL,))
    with pytest.raises(InvalidValueError, match="layers add up to 2, num_hidden_layers is 3"):
        ModelSpec(name="m", num_hidden_layers=3, dtype="bfloat16", layers=(run,))


def test_refusals() -> None:
    run = LayerRun(count=2, caches=(builders.FULL,))
    with pytest.raises(UnsupportedError, match="fp8"):
        ModelSpec(name="m", num_hidden_layers=2, dtype="fp8", layers=(run,))
    with pytest.raises(InvalidValueError, match="num_hidden_layers"):
        ModelSpec(name="m", num_hidden_layers=0, dtype="bfloat16", layers=())
    with pytest.raises(InvalidValueError, match="max_position_embeddings"):
        ModelSpec(
            name="m",
            num_hidden_layers=2,
            dtype="bfloat16",
            layers=(run,),
            max_position_embeddings=0,
        )
