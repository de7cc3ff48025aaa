"""Every kind of cache: its rows, its states, its share on a rank, against engines' own figures."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.dtypes import Row
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.kind import (
    All,
    CacheBase,
    Chunks,
    EveryNth,
    Once,
    Span,
    StateTensor,
    Windowed,
    divide,
    split_heads,
)
from kvcalc.core.layers import CACHE_KINDS, Cache, LayerRun
from kvcalc.core.model import span_tokens
from kvcalc.core.recurrent import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    Rwkv,
    ShortConv,
)
from kvcalc.core.states import LLAMA_CPP_STATES, TRANSFORMERS_STATES, VLLM_STATES, StateLayout
from tests.core import builders

FALCON_MAMBA = Mamba1(intermediate_size=8192, state_size=16, conv_kernel=4)
MAMBA_28B = Mamba1(intermediate_size=5120, state_size=16, conv_kernel=4)


def _mamba2(heads: int, head_dim: int, state: int, groups: int, dtype: str | None = None) -> Mamba2:
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        state_size=state,
        n_groups=groups,
        conv_kernel=4,
        state_dtype=dtype,
    )


def _gdn(k_heads: int, v_heads: int, dtype: str | None = None) -> GatedDeltaNet:
    return GatedDeltaNet(
        num_k_heads=k_heads,
        num_v_heads=v_heads,
        head_k_dim=128,
        head_v_dim=128,
        conv_kernel=4,
        state_dtype=dtype,
    )


CODESTRAL = _mamba2(128, 64, 128, 8)
GRANITE = _mamba2(128, 64, 128, 1)
NEMOTRON_3_NANO = _mamba2(64, 64, 128, 8, "float32")
FALCON_H1_05B = _mamba2(24, 64, 128, 1)
QWEN3_NEXT = _gdn(16, 32)
KIMI_LINEAR = KimiDeltaAttention(num_heads=32, head_dim=128, conv_kernel=4, state_dtype="float32")
KIMI_K3 = KimiDeltaAttention(num_heads=96, head_dim=128, conv_kernel=4, state_dtype="float32")
MINIMAX_01 = LightningAttention(num_heads=64, head_dim=128)
LFM2 = ShortConv(hidden_size=2048, conv_kernel=3)
RWKV7 = Rwkv(hidden_size=2560, head_size=64)
RECURRENT_GEMMA = RgLru(lru_width=2560, conv_kernel=4)


def _state_bytes(cache: Cache, layout: StateLayout = VLLM_STATES, dtype: str = "bfloat16") -> int:
    return sum(layout.bytes_of(state, dtype) for state in cache.states())


@pytest.mark.parametrize(
    ("cache", "tp", "expected"),
    [
        (FALCON_MAMBA, 1, 311_296),
        (FALCON_MAMBA, 2, 155_648),
        (FALCON_MAMBA, 8, 38_912),
        (MAMBA_28B, 1, 194_560),
        (MAMBA_28B, 8, 24_320),
        (CODESTRAL, 1, 2_158_592),
        (CODESTRAL, 2, 1_079_296),
        (CODESTRAL, 8, 269_824),
        (GRANITE, 1, 2_147_840),
        (GRANITE, 2, 1_074_688),
        (GRANITE, 4, 538_112),
        (GRANITE, 8, 269_824),
        (NEMOTRON_3_NANO, 1, 2_134_016),
        (NEMOTRON_3_NANO, 4, 533_504),
        (NEMOTRON_3_NANO, 8, 266_752),
        (FALCON_H1_05B, 1, 403_968),
        (FALCON_H1_05B, 2, 202_752),
        (FALCON_H1_05B, 8, 51_840),
        (QWEN3_NEXT, 1, 1_097_728),
        (QWEN3_NEXT, 4, 274_432),
        (QWEN3_NEXT, 8, 137_216),
        (builders.GDN_27B, 1, 3_207_168),
        (builders.GDN_27B, 2, 1_603_584),
        (builders.GDN_27B, 4, 801_792),
        (builders.GDN_27B, 8, 400_896),
        (_gdn(16, 32, "float32"), 4, 536_576),
        (KIMI_LINEAR, 1, 2_170_880),
        (KIMI_LINEAR, 2, 1_085_440),
        (KIMI_LINEAR, 8, 271_360),
        (KIMI_K3, 1, 6_512_640),
        (KIMI_K3, 8, 814_080),
        (MINIMAX_01, 1, 2_097_152),
        (MINIMAX_01, 8, 262_144),
        (LFM2, 1, 8192),
        (LFM2, 2, 4096),
        (LFM2, 8, 1024),
        (RECURRENT_GEMMA, 1, 3 * 2560 * 2 + 2560 * 2),
        (RECURRENT_GEMMA, 2, 3 * 1280 * 2 + 1280 * 2),
        (RWKV7, 1, 2 * 2560 * 2 + 40 * 64 * 64 * 2),
        (RWKV7, 4, 2 * 640 * 2 + 10 * 64 * 64 * 2),
    ],
)
def test_states_of_vllm(cache: Cache, tp: int, expected: int) -> None:
    """Bytes of one layer's state on a rank, as vLLM's specs (or plain arithmetic) give them."""
    assert _state_bytes(cache.on_rank(tp)) == expected


@pytest.mark.parametrize(
    ("cache", "conv", "recurrent"),
    [
        (MAMBA_28B, 61_440, 327_680),
        (Mamba1(intermediate_size=8192, state_size=16, conv_kernel=4), 98_304, 524_288),
        (CODESTRAL, 122_880, 4_194_304),
        (GRANITE, 101_376, 4_194_304),
        (_mamba2(128, 80, 128, 8), 147_456, 5_242_880),
        (RWKV7, 20_480, 655_360),
        (QWEN3_NEXT, 98_304, 2_097_152),
        (MINIMAX_01, 0, 4_194_304),
        (LFM2, 16_384, 0),
    ],
    ids=["mamba", "jamba", "mamba2", "granite", "nemotron-nano", "rwkv7", "gdn", "minimax", "lfm2"],
)
def test_states_of_llama_cpp(cache: Cache, conv: int, recurrent: int) -> None:
    """llama.cpp's R and S bytes of one layer and sequence: everything in 32 bits."""
    sizes = {state.role: LLAMA_CPP_STATES.bytes_of(state, "bfloat16") for state in cache.states()}

    assert sizes.pop("recurrent", 0) == recurrent
    assert sum(sizes.values()) == conv


@pytest.mark.parametrize(
    ("cache", "expected"),
    [(CODESTRAL, 4_276_224), (FALCON_MAMBA, 589_824), (QWEN3_NEXT, 2_162_688)],
)
def test_states_of_transformers(cache: Cache, expected: int) -> None:
    """In transformers as many rows as the kernel, and the recurrent state in 32 bits."""
    assert _state_bytes(cache, TRANSFORMERS_STATES) == expected


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (builders.CSA, 8 * 8 * 2 * 512),
        (builders.HCA, 8 * 128 * 512),
        (builders.LID, 8 * 8 * 2 * 128),
    ],
    ids=["ratio 4", "ratio 128", "indexer"],
)
def test_compressor_states(cache: Cache, expected: int) -> None:
    """What waits to be folded is in 32 bits in every layout; llama.cpp's bytes a sequence."""
    for layout in (VLLM_STATES, LLAMA_CPP_STATES, TRANSFORMERS_STATES):
        assert _state_bytes(cache, layout) == expected


def test_a_kernel_of_one_keeps_no_row() -> None:
    assert Mamba1(intermediate_size=8, state_size=4, conv_kernel=1).states() == (
        StateTensor(role="recurrent", shape=(8, 4)),
    )
    assert ShortConv(hidden_size=8, conv_kernel=1).states() == ()


WINDOWED = SlidingWindow(num_kv_heads=8, head_dim=64, sliding_window=128)
CHUNKED = ChunkedAttention(num_kv_heads=8, head_dim=128, attention_chunk_size=8192)
WHISPER = CrossAttention(num_kv_heads=20, head_dim=64, encoder_tokens=1500)


def _kv_rows(heads: int, width: int) -> tuple[Row, ...]:
    return (Row(role="k", width=width, count=heads), Row(role="v", width=width, count=heads))


@pytest.mark.parametrize(
    ("cache", "rows", "span"),
    [
        (builders.FULL, _kv_rows(8, 128), All()),
        (WINDOWED, _kv_rows(8, 64), Windowed(tokens=128)),
        (CHUNKED, _kv_rows(8, 128), Chunks(tokens=8192)),
        (WHISPER, _kv_rows(20, 64), Once(tokens=1500)),
        (builders.MLA, (Row(role="latent", width=512), Row(role="rope", width=64)), All()),
        (Mla(kv_lora_rank=512, qk_rope_head_dim=0), (Row(role="latent", width=512),), All()),
        (
            builders.RAW,
            (Row(role="nope", width=448), Row(role="rope", width=64)),
            Windowed(tokens=128),
        ),
        (
            builders.HCA,
            (Row(role="nope", width=448), Row(role="rope", width=64)),
            EveryNth(ratio=128),
        ),
        (
            SlidingMla(head_dim=512, qk_rope_head_dim=0, sliding_window=4),
            (Row(role="nope", width=512),),
            Windowed(tokens=4),
        ),
        (
            Indexer(index_head_dim=128),
            (Row(role="index", width=128, dtype="fp8_block128"),),
            All(),
        ),
        (builders.LID, (Row(role="index", width=128, dtype="fp8_block128"),), EveryNth(ratio=4)),
        (SharedKv(source_layer=18), (), All()),
        (FALCON_MAMBA, (), All()),
    ],
)
def test_rows(cache: Cache, rows: tuple[Row, ...], span: Span) -> None:
    """Each kind names the vectors it keeps and the tokens it keeps them for."""
    assert cache.rows() == rows
    assert cache.span == span


@pytest.mark.parametrize(("v_head_dim", "width"), [(None, 192), (128, 128), (192, 192), (256, 256)])
def test_v_of_another_width(v_head_dim: int | None, width: int) -> None:
    cache = FullAttention(num_kv_heads=4, head_dim=192, v_head_dim=v_head_dim)

    assert cache.rows() == (
        Row(role="k", width=192, count=4),
        Row(role="v", width=width, count=4),
    )


def test_one_vector_that_is_both() -> None:
    """v_head_dim 0: K only."""
    cache = FullAttention(num_kv_heads=1, head_dim=576, v_head_dim=0)

    assert cache.rows() == (Row(role="k", width=576),)


def test_plain_kinds_keep_no_state() -> None:
    for cache in (builders.FULL, WINDOWED, CHUNKED, WHISPER, builders.MLA, SharedKv()):
        assert cache.states() == ()
    assert Indexer(index_head_dim=128).states() == ()


def _subclasses(kind: type) -> set[type]:
    found: set[type] = set()
    children: list[type] = kind.__subclasses__()
    for sub in children:
        found |= {sub} | _subclasses(sub)
    return found


def test_the_union_is_complete() -> None:
    """Every kind that can be made is in the union, under the name that presets use."""
    public = {
        kind
        for kind in _subclasses(CacheBase)
        # Other tests make kinds of their own.
        if kind.__module__.startswith("kvcalc.") and not kind.__name__.startswith("_")
    }

    assert public == set(CACHE_KINDS.values())
    assert len(CACHE_KINDS) == 17
    assert {name: kind.__struct_config__.tag for name, kind in CACHE_KINDS.items()} == {
        name: name for name in CACHE_KINDS
    }


def test_kind() -> None:
    assert builders.FULL.kind == "full_attention"
    assert builders.GDN_27B.kind == "gated_delta_net"


@pytest.mark.parametrize(
    ("heads", "tp", "expected"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (8, 16, 1), (1, 8, 1), (6, 3, 2)]
)
def test_split_heads(heads: int, tp: int, expected: int) -> None:
    assert split_heads(heads, tp) == expected


@pytest.mark.parametrize(("heads", "tp"), [(8, 3), (8, 12), (10, 4), (10, 8), (2, 3)])
def test_heads_that_do_not_divide(heads: int, tp: int) -> None:
    """phi-4's ten heads over four ranks: an error, not a floor."""
    with pytest.raises(UnsupportedError, match=f"{heads} heads cannot be split over {tp}"):
        FullAttention(num_kv_heads=heads, head_dim=128).on_rank(tp)


def test_divide() -> None:
    assert divide(48, 8, "value heads") == 6
    with pytest.raises(UnsupportedError, match="48 value heads cannot be split over 5 ranks"):
        divide(48, 5, "value heads")


def test_an_engine_may_round_heads_its_own_way() -> None:
    """SGLang rounds down to at least one head, TensorRT-LLM up."""
    cache = FullAttention(num_kv_heads=10, head_dim=128)

    assert cache.on_rank(4, lambda heads, tp: max(1, heads // tp)).num_kv_heads == 2
    assert cache.on_rank(4, lambda heads, tp: -(-heads // tp)).num_kv_heads == 3


@pytest.mark.parametrize("cache", [builders.FULL, WINDOWED, CHUNKED, WHISPER])
def test_per_head_kinds_are_split(cache: Any) -> None:
    heads = cache.num_kv_heads

    assert cache.on_rank(2).num_kv_heads == heads // 2
    assert type(cache.on_rank(2)) is type(cache)
    assert [cache.replicas(tp) for tp in (1, 2, heads, 2 * heads)] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "cache", [builders.MLA, builders.RAW, builders.CSA, builders.LID, Indexer(index_head_dim=128)]
)
def test_latent_kinds_are_replicated(cache: Cache) -> None:
    """MLA rows and indexer keys are on every rank, whole."""
    assert cache.on_rank(8) is cache
    assert cache.replicas(8) == 8


@pytest.mark.parametrize(
    "cache", [SharedKv(), FALCON_MAMBA, CODESTRAL, QWEN3_NEXT, KIMI_LINEAR, MINIMAX_01, LFM2, RWKV7]
)
def test_kinds_without_rows_replicate_none(cache: Cache) -> None:
    assert cache.replicas(16) == 1


def test_a_layer_that_borrows_is_the_same_everywhere() -> None:
    assert SharedKv(source_layer=3).on_rank(8) == SharedKv(source_layer=3)


@pytest.mark.parametrize(
    ("cache", "tp"),
    [
        (FALCON_MAMBA, 3),
        (CODESTRAL, 3),
        (QWEN3_NEXT, 3),
        (_gdn(3, 8), 2),
        (KIMI_LINEAR, 5),
        (MINIMAX_01, 3),
        (LFM2, 3),
        (RWKV7, 3),
        (RECURRENT_GEMMA, 3),
    ],
)
def test_states_that_do_not_divide(cache: Cache, tp: int) -> None:
    with pytest.raises(UnsupportedError, match=f"cannot be split over {tp} ranks"):
        cache.on_rank(tp)


@pytest.mark.parametrize(
    ("groups", "tp", "expected"), [(8, 2, 4), (8, 8, 1), (1, 2, 1), (1, 8, 1), (2, 8, 1), (4, 4, 1)]
)
def test_groups_of_mamba2(groups: int, tp: int, expected: int) -> None:
    """Groups that do not divide are replicated until they do; never more than needed."""
    rank = _mamba2(64, 64, 128, groups).on_rank(tp)

    assert rank.n_groups == expected
    assert rank.num_heads == 64 // tp


def test_no_group_of_mamba2_is_lost() -> None:
    """Three groups over two ranks: refused, or both ranks together keep at least three."""
    try:
        rank = _mamba2(64, 64, 128, 3).on_rank(2)
    except UnsupportedError:
        return
    assert 2 * rank.n_groups >= 3


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        (builders.FULL, "8 KV heads x 128"),
        (FullAttention(num_kv_heads=4, head_dim=192, v_head_dim=128), "4 KV heads x 192 (V 128)"),
        (FullAttention(num_kv_heads=4, head_dim=192, v_head_dim=192), "4 KV heads x 192"),
        (FullAttention(num_kv_heads=1, head_dim=576, v_head_dim=0), "1 KV head x 576 (K only)"),
        (builders.MLA, "latent 512 + rope 64"),
        (builders.RAW, "entry 512, rope 64 of it"),
        (builders.CSA, "entry 512, rope 64 of it"),
        (Indexer(index_head_dim=128), "index key 128 (fp8_block128)"),
        (SharedKv(), "reads another layer"),
        (SharedKv(source_layer=18), "reads layer 18"),
        (FALCON_MAMBA, "8192 channels x 16"),
        (CODESTRAL, "128 heads x 64 x 128"),
        (builders.GDN_27B, "48 heads x 128 x 128"),
        (KIMI_LINEAR, "32 heads x 128 x 128"),
        (MINIMAX_01, "64 heads x 128 x 128"),
        (RECURRENT_GEMMA, "2560 channels"),
        (LFM2, "2 x 2048"),
        (RWKV7, "40 heads x 64 x 64"),
    ],
)
def test_describe(cache: Cache, expected: str) -> None:
    assert cache.describe() == expected


NASTY = [0, -1, 2**31, True, 1.0, "8", None]


@pytest.mark.parametrize("bad", NASTY)
@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (FullAttention, {"num_kv_heads": 8, "head_dim": 128}),
        (SlidingWindow, {"num_kv_heads": 8, "head_dim": 128, "sliding_window": 16}),
        (ChunkedAttention, {"num_kv_heads": 8, "head_dim": 128, "attention_chunk_size": 16}),
        (CrossAttention, {"num_kv_heads": 8, "head_dim": 128, "encoder_tokens": 16}),
        (Mla, {"kv_lora_rank": 512}),
        (SlidingMla, {"head_dim": 512, "sliding_window": 16}),
        (CompressedAttention, {"head_dim": 512, "compress_ratio": 4}),
        (Indexer, {"index_head_dim": 128, "compress_ratio": 4}),
        (Mamba1, {"intermediate_size": 8, "state_size": 8, "conv_kernel": 4}),
        (
            Mamba2,
            {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "conv_kernel": 4},
        ),
        (
            GatedDeltaNet,
            {
                "num_k_heads": 2,
                "num_v_heads": 2,
                "head_k_dim": 8,
                "head_v_dim": 8,
                "conv_kernel": 4,
            },
        ),
        (KimiDeltaAttention, {"num_heads": 8, "head_dim": 8, "conv_kernel": 4}),
        (LightningAttention, {"num_heads": 8, "head_dim": 8}),
        (RgLru, {"lru_width": 8, "conv_kernel": 4}),
        (ShortConv, {"hidden_size": 8, "conv_kernel": 4}),
        (Rwkv, {"hidden_size": 64, "head_size": 64, "token_shifts": 2}),
        (LayerRun, {"count": 1}),
    ],
)
def test_no_dimension_is_nothing(kind: Any, good: dict[str, int], bad: object) -> None:
    """Every dimension is a whole number from 1 to 2^31 - 1, and the error names it."""
    rest: dict[str, Any] = {
        name: 0
        for name in ("qk_rope_head_dim",)
        if name in kind.__struct_fields__ and name not in good
    }
    if kind is LayerRun:
        rest["caches"] = ()
    kind(**good, **rest)
    for name in good:
        with pytest.raises(InvalidValueError, match=name):
            kind(**{**good, **rest, name: bad})


def test_the_rotary_part_is_smaller_than_the_entry() -> None:
    SlidingMla(head_dim=512, qk_rope_head_dim=511, sliding_window=1)
    with pytest.raises(InvalidValueError, match="qk_rope_head_dim is 512"):
        SlidingMla(head_dim=512, qk_rope_head_dim=512, sliding_window=1)
    with pytest.raises(InvalidValueError, match="qk_rope_head_dim is -1"):
        Mla(kv_lora_rank=512, qk_rope_head_dim=-1)


def test_refusals_of_other_fields() -> None:
    with pytest.raises(InvalidValueError, match="v_head_dim"):
        FullAttention(num_kv_heads=1, head_dim=64, v_head_dim=-1)
    with pytest.raises(InvalidValueError, match="source_layer"):
        SharedKv(source_layer=-1)
    with pytest.raises(InvalidValueError, match="no multiple of head_size 48"):
        Rwkv(hidden_size=64, head_size=48)
    with pytest.raises(UnknownNameError):
        Indexer(index_head_dim=128, index_dtype="fp7")
    for dtype in ("fp8", "q8_0"):
        with pytest.raises(UnsupportedError):
            LightningAttention(num_heads=8, head_dim=8, state_dtype=dtype)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidValueError) as caught:
        FullAttention(num_kv_heads=10**400, head_dim=1)

    assert len(caught.value.message) < 200


def test_label() -> None:
    """A run is called after what its layers keep."""
    assert LayerRun(count=1, caches=(builders.MLA, Indexer(index_head_dim=128))).label == (
        "mla+indexer"
    )
    assert LayerRun(count=1, caches=(), note="borrows").label == "none"


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (All(), [0, 1, 1023, 1024, 8192]),
        (Windowed(tokens=1024), [0, 1, 1023, 1024, 1024]),
        (Chunks(tokens=1024), [0, 1, 1023, 1024, 1024]),
        (EveryNth(ratio=4), [0, 0, 255, 256, 2048]),
        (Once(tokens=1500), [1500] * 5),
    ],
)
def test_span_tokens(span: Span, expected: list[int]) -> None:
    """The most rows kept at once on the way to 0, 1, 1,023, 1,024 and 8,192 tokens."""
    assert [span_tokens(span, n) for n in (0, 1, 1023, 1024, 8192)] == expected
