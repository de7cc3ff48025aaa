"""Golden row bytes: every dtype against the engines' own tables."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcalc.core.attention import FullAttention, Indexer, Mla
from kvcalc.core.dtypes import (
    DTYPES,
    KvDtype,
    Row,
    cache_dtype,
    element_bytes,
    kv_dtype,
)
from kvcalc.core.errors import UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache
from kvcalc.core.model import row_bytes
from tests.core import builders

K = Row(role="k", width=128)


def _kv(cache: Cache, name: str) -> int:
    return row_bytes(cache, kv_dtype(name, "bfloat16"))


# vLLM 0.33: bytes of K and V of one head and token, head dim d.
VLLM_PER_HEAD = {
    "auto": lambda d: 4 * d,
    "bfloat16": lambda d: 4 * d,
    "float16": lambda d: 4 * d,
    "float32": lambda d: 8 * d,
    "fp8": lambda d: 2 * d,
    "fp8_e4m3": lambda d: 2 * d,
    "fp8_e5m2": lambda d: 2 * d,
    "fp8_per_token_head": lambda d: 2 * d + 8,
    "int8_per_token_head": lambda d: 2 * d + 8,
    "int4_per_token_head": lambda d: d + 8,
    "nvfp4": lambda d: 2 * (d // 2 + d // 16),
}


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("name", VLLM_PER_HEAD)
def test_vllm(name: str, head_dim: int) -> None:
    expected = VLLM_PER_HEAD[name](head_dim)

    assert _kv(FullAttention(num_kv_heads=1, head_dim=head_dim), name) == expected
    assert _kv(FullAttention(num_kv_heads=8, head_dim=head_dim), name) == 8 * expected


# llama.cpp: bytes of a block of so many elements.
LLAMA_CPP_BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


@pytest.mark.parametrize("width", [32, 64, 128, 576, 1024])
@pytest.mark.parametrize("name", LLAMA_CPP_BLOCKS)
def test_llama_cpp(name: str, width: int) -> None:
    elements, size = LLAMA_CPP_BLOCKS[name]

    assert cache_dtype(name).row_bytes(Row(role="k", width=width)) == width // elements * size


@pytest.mark.parametrize(
    ("name", "expected"),
    [("float16", 4096), ("int8_asym", 2112), ("int4_asym", 1088)],
)
def test_lmdeploy(name: str, expected: int) -> None:
    """Bytes a token and layer of Llama-3.1-8B under quant_policy 0, 8 and 4."""
    assert _kv(builders.FULL, name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int8_asym_g64", Fraction("1.0625")),
        ("int4_asym_g64", Fraction("0.5625")),
        ("int4_asym_g32", Fraction("0.625")),
    ],
)
def test_mlx(name: str, expected: Fraction) -> None:
    """Bytes an element: packed bits, and a scale and a bias in 16 bits for every group."""
    for width in (64, 128, 256):
        assert cache_dtype(name).row_bytes(Row(role="v", width=width)) == expected * width


@pytest.mark.parametrize(("name", "expected"), [("int2_asym_g64", 640), ("int4_asym_g64", 1152)])
def test_quanto_and_hqq(name: str, expected: int) -> None:
    """Bytes a token and layer of 8 heads of 128, as transformers 5.24 holds them."""
    assert _kv(builders.FULL, name) == expected


def test_sglang_mxfp8() -> None:
    """One byte an element and one byte of scale for every 32."""
    elements = 8 * (128 + 128)

    assert _kv(builders.FULL, "mxfp8") == elements + elements // 32


@pytest.mark.parametrize(
    ("name", "expected"), [("bfloat16", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4", 324)]
)
def test_mla(name: str, expected: int) -> None:
    """DeepSeek-V3's 512 + 64 a token and layer, as vLLM and SGLang hold it."""
    assert _kv(builders.MLA, name) == expected


def test_deepseek_v2_in_six_bits() -> None:
    """60 layers of 576 elements of 6 bits: 25,920 B a token."""
    spec = builders.model((60, (builders.MLA,)))

    assert spec.bytes_per_token("6bit") == 25_920


@pytest.mark.parametrize(("bits", "expected"), [(1, 72), (4, 288), (6, 432), (8, 576), (16, 1152)])
def test_plain_bits(bits: int, expected: int) -> None:
    assert _kv(builders.MLA, f"{bits}bit") == expected


def test_a_last_byte_is_filled_up() -> None:
    """Plain bits round a row up to a whole byte."""
    assert cache_dtype("int4").row_bytes(Row(role="k", width=3)) == 2
    assert cache_dtype("1bit").row_bytes(Row(role="k", width=1)) == 1
    assert cache_dtype("6bit").row_bytes(Row(role="k", width=5)) == 4
    assert cache_dtype("int8").row_bytes(Row(role="k", width=3)) == 3


@pytest.mark.parametrize("name", ["bfloat16", "fp8", "fp8_ds_mla"])
def test_indexer(name: str) -> None:
    """An indexer's key takes 132 B, whatever the KV dtype."""
    assert _kv(Indexer(index_head_dim=128), name) == 132


@pytest.mark.parametrize(
    ("spec", "name", "expected"),
    [
        (builders.DEEPSEEK_V3, "bfloat16", 70_272),
        (builders.DEEPSEEK_V3, "fp8", 35_136),
        (builders.DEEPSEEK_V32, "bfloat16", 78_324),
        (builders.DEEPSEEK_V32, "fp8_ds_mla", 48_068),
        (builders.model((78, (builders.MLA, Indexer(index_head_dim=128)))), "fp8_e4m3", 55_224),
    ],
    ids=["V3", "V3 fp8", "V3.2", "V3.2 fp8_ds_mla", "GLM-5 fp8"],
)
def test_sparse_models(spec: object, name: str, expected: int) -> None:
    """Bytes a token that vLLM logged."""
    assert spec.bytes_per_token(name) == expected  # type: ignore[attr-defined]  # a ModelSpec


@pytest.mark.parametrize(
    "name",
    [
        "bfloat16",
        "bf16",
    ],
)
def test_minimax_m3(name: str) -> None:
    """60 GQA layers, 57 of them with an indexer's key in bf16: 137,472 B a token."""
    attention = FullAttention(num_kv_heads=4, head_dim=128)
    key = Indexer(index_head_dim=128, index_dtype=name)
    spec = builders.model((3, (attention,)), (57, (attention, key)))

    assert spec.bytes_per_token("bfloat16") == 137_472


@pytest.mark.parametrize("cache", [builders.RAW, builders.CSA, builders.HCA])
def test_deepseek_v4_entry(cache: Cache) -> None:
    """448 fp8, 128 B of rotary part and 8 B of scales: 584 B an entry."""
    assert _kv(cache, "fp8_ds_mla") == 584
    assert _kv(cache, "bfloat16") == 1024


def test_k_and_v_apart() -> None:
    """Llama-3.1-8B with q8_0 keys and q4_0 values: 32 x 8 x (136 + 72) B a token."""
    dtype = kv_dtype("q8_0:q4_0", "bfloat16")

    assert dtype.name == "q8_0:q4_0"
    assert builders.LLAMA_8B.bytes_per_token(dtype) == 53_248
    assert builders.LLAMA_8B.bytes_per_token("q8_0:q4_0") == 53_248
    assert builders.LLAMA_8B.bytes_per_token("auto:q4_0") == 32 * 8 * (256 + 72)
    assert builders.LLAMA_8B.bytes_per_token("q4_0:auto") == 32 * 8 * (72 + 256)


def test_equal_k_and_v_have_one_name() -> None:
    assert kv_dtype("fp8:fp8_e4m3", "bfloat16").name == "fp8_e4m3"
    assert kv_dtype("auto", "bf16").name == "bfloat16"


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "iq4_nl"])
def test_blocks_of_32_need_whole_blocks(name: str) -> None:
    """phi-2 has a head dim of 80: llama.cpp refuses it, and so does every packing of 32."""
    with pytest.raises(
        UnsupportedError, match="32 elements at a time and a k row has 80"
    ) as caught:
        _kv(FullAttention(num_kv_heads=32, head_dim=80), name)

    assert caught.value.hint


def test_fp8_ds_mla_is_for_mla() -> None:
    with pytest.raises(UnsupportedError, match="packs latent and rope and nope rows, not k rows"):
        _kv(builders.FULL, "fp8_ds_mla")
    with pytest.raises(UnsupportedError, match="128 elements at a time"):
        _kv(Mla(kv_lora_rank=500, qk_rope_head_dim=64), "fp8_ds_mla")


@pytest.mark.parametrize("cache", [builders.MLA, builders.RAW, builders.HCA])
def test_mla_is_k_and_v_at_once(cache: Cache) -> None:
    with pytest.raises(UnsupportedError, match="an MLA row is K and V at once"):
        _kv(cache, "q8_0:q4_0")


@pytest.mark.parametrize(
    ("name", "close"),
    [("fp18", "fp8"), ("q8", "q8_0"), ("BF15", "bf16"), ("nvfp", "nvfp4"), ("float", "float32")],
)
def test_unknown_dtype(name: str, close: str) -> None:
    """An unknown name is an error that offers the nearest."""
    wrong = "flaot" if name == "float" else name
    with pytest.raises(UnknownNameError, match="unknown cache dtype") as caught:
        cache_dtype(wrong)

    assert close in caught.value.suggestions
    assert close in caught.value.hint


def test_a_dtype_that_resembles_none() -> None:
    """All are listed where none is near."""
    with pytest.raises(UnknownNameError) as caught:
        cache_dtype("xyzzy")

    assert set(DTYPES) <= set(caught.value.hint.removeprefix("known: ").split(", "))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "auto",
        "0bit",
        "17bit",
        "-1bit",
        "3bits",
        "int8_asym_g60",
        "int3_asym_g64",
        "int8_asym_g",
        "int8_asym_g8",
        "\u0666bit",
        "q8_0 ",
        "a:b",
    ],
)
def test_no_dtype(name: str) -> None:
    with pytest.raises(UnknownNameError):
        cache_dtype(name)


@pytest.mark.parametrize("text", [":", "fp8:", ":fp8", "fp8:q8_0:q4_0", "auto:nothing"])
def test_no_pair(text: str) -> None:
    with pytest.raises(UnknownNameError):
        kv_dtype(text, "bfloat16")


@pytest.mark.parametrize("name", ["int8_asym_g00", "int4_asym_g0000"])
def test_groups_of_nothing(name: str) -> None:
    """A group of no elements is no dtype."""
    with pytest.raises(UnknownNameError):
        cache_dtype(name).row_bytes(K)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fp32", "float32"),
        ("f32", "float32"),
        ("float", "float32"),
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("f16", "float16"),
        ("half", "float16"),
        ("fp8", "fp8_e4m3"),
        ("fp8_e4m3fn", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("float8_e5m2", "fp8_e5m2"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert cache_dtype(alias) is DTYPES[name]


def test_every_dtype_has_a_source_and_its_own_name() -> None:
    for name, dtype in DTYPES.items():
        assert dtype.name == name
        assert dtype.source
    for name in ("int4_asym_g64", "6bit"):
        assert cache_dtype(name).name == name
        assert cache_dtype(name).source


@pytest.mark.parametrize(
    ("name", "size"), [("float32", 4), ("fp32", 4), ("bf16", 2), ("float16", 2), ("half", 2)]
)
def test_element_bytes(name: str, size: int) -> None:
    assert element_bytes(name) == size


@pytest.mark.parametrize("name", ["fp8", "int8", "q8_0", "auto", "", "x" * 500])
def test_states_are_kept_in_floats(name: str) -> None:
    """Only plain floats are dtypes of models and states; the message stays short."""
    with pytest.raises(UnsupportedError, match="not a dtype of models or states") as caught:
        element_bytes(name)

    assert len(caught.value.message) < 120


def test_a_row_with_its_own_dtype() -> None:
    """A row's own dtype wins over the KV dtype, also where both are the same."""
    fixed = Row(role="index", width=128, count=2, dtype="bfloat16")

    assert cache_dtype("fp8").row_bytes(fixed) == 256
    assert cache_dtype("bfloat16").bytes_of(fixed) == 512
    pair = KvDtype(k=cache_dtype("q8_0"), v=cache_dtype("q4_0"))
    assert pair.bytes_of(fixed) == 512
