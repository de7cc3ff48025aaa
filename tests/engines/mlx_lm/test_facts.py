"""What mlx-lm's source says, in figures worked out by hand, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.api import load_model, shape_model
from kvcalc.core.attention import CrossAttention, FullAttention, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.property import strategies as some
from tests.property.strategies import SETTINGS


def _plan(model: ModelSpec, longest: int = 8192, **args: Any) -> CachePlan:
    deployment = Deployment(engine="mlx-lm", max_model_len=longest, engine_args=args)
    return plan(model, deployment)


def _layers(count: int, *caches: Cache, architecture: str | None = None) -> ModelSpec:
    return ModelSpec(
        name="test",
        num_hidden_layers=count,
        dtype="bfloat16",
        layers=(LayerRun(count=count, caches=caches),),
        architecture=architecture,
    )


LLAMA = shape_model(32, 8, 128)
ROW = 2 * 8 * 128 * 2  # K and V of a token and layer


@pytest.mark.parametrize(("n", "rows"), [(0, 0), (1, 256), (256, 256), (257, 512), (8192, 8192)])
def test_caches_grow_by_256_rows(n: int, rows: int) -> None:
    """models/cache.py, KVCache.step: ceil(n / 256) steps."""
    found = _plan(LLAMA)

    assert found.bytes_held(n) == 32 * rows * ROW
    assert found.wastes(n).tail_bytes == 32 * (rows - n) * ROW


@pytest.mark.parametrize(
    ("bits", "group", "per_element"),
    [(8, 64, 1.0625), (4, 64, 0.5625), (4, 32, 0.625), (3, 64, 0.4375), (6, 128, 0.78125)],
)
def test_quantised_rows(bits: int, group: int, per_element: float) -> None:
    """QuantizedKVCache: packed words, and a scale and a bias in bf16 for every group."""
    found = _plan(LLAMA, kv_bits=bits, kv_group_size=group, quantized_kv_start=0)

    assert found.bytes_held(256) == int(32 * 256 * 2 * 8 * 128 * per_element)
    assert found.kv_cache_dtype == f"int{bits}_asym_g{group}"


def test_sequences_are_quantised_from_a_length_on() -> None:
    """generate.py, DEFAULT_QUANTIZED_KV_START: 5,000 tokens; shorter ones stay plain."""
    found = _plan(LLAMA, kv_bits=8)

    assert found.bytes_held(4999) == 32 * 5120 * ROW
    assert found.bytes_held(5000) == 32 * 5120 * ROW * 17 // 32  # 1.0625 of 2 bytes
    # Looked at after the third step of 2,048: 6,144 plain rows and as many packed ones.
    assert found.bytes_needed(6200) == 32 * (6144 * ROW + 6400 * ROW * 17 // 32)
    assert any("from 5,000 tokens on" in note for note in found.notes)


def test_below_the_start_nothing_is_quantised() -> None:
    found = _plan(LLAMA, longest=4096, kv_bits=4)

    assert found.bytes_held(4096) == 32 * 4096 * ROW
    assert any("no sequence is quantised" in note for note in found.notes)


def test_a_dtype_names_bits_and_group() -> None:
    deployment = Deployment(
        engine="mlx-lm",
        max_model_len=8192,
        kv_cache_dtype="int4_asym_g32",
        engine_args={"quantized_kv_start": 0},
    )
    found = plan(LLAMA, deployment)

    assert found.bytes_held(256) == 32 * 256 * ROW * 5 // 16  # 0.625 of 2 bytes


GEMMA = _layers(
    6,
    SlidingWindow(num_kv_heads=4, head_dim=256, sliding_window=1024),
    architecture="Gemma3ForCausalLM",
)
GEMMA_ROW = 6 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(
    ("prompt", "n", "rows"),
    [
        # The prompt but its last token as it is, then 256 rows at a time up to the window.
        (300, 300, 299 + 256),
        (300, 555, 299 + 256),
        (300, 556, 299 + 512),
        (900, 900, 1024),
        (300, 5000, 1024),
        # One token, or two that come one by one: whole steps from the start.
        (1, 1, 256),
        (2, 257, 512),
    ],
)
def test_rotating_caches(prompt: int, n: int, rows: int) -> None:
    """RotatingKVCache._update_concat and _update_in_place."""
    assert _plan(GEMMA, prompt_tokens=prompt).bytes_held(n) == rows * GEMMA_ROW


@pytest.mark.parametrize(
    ("n", "rows"), [(300, 555), (2049, 2048), (2050, 2048), (2051, 1023 + 2), (9000, 1023 + 2048)]
)
def test_a_step_of_the_prompt_lies_beside_the_window(n: int, rows: int) -> None:
    """_update_concat: max_size + S - 1 rows; of 2,050 tokens the 2,049th comes by itself."""
    rows = max(rows, 2048 if n > 2048 else 0)
    assert _plan(GEMMA, longest=16384).bytes_needed(n) == rows * GEMMA_ROW


def test_max_kv_size_is_for_classes_without_caches_of_their_own() -> None:
    """make_prompt_cache: Qwen3's class has no make_cache, Llama's has one in 0.32."""
    full = FullAttention(num_kv_heads=8, head_dim=128)
    qwen = _plan(_layers(2, full, architecture="Qwen3ForCausalLM"), max_kv_size=1024)
    llama = _plan(_layers(2, full, architecture="LlamaForCausalLM"), max_kv_size=1024)

    assert qwen.bytes_held(5000) == 2 * 1024 * ROW
    assert llama.bytes_held(5000) == 2 * 5120 * ROW
    assert any("changes nothing" in note for note in llama.notes)


def test_classes_without_windows_keep_every_token() -> None:
    """gemma2.py and llama.py without layer_types make a KVCache for every layer."""
    cache = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=4096)
    found = _plan(_layers(2, cache, architecture="Gemma2ForCausalLM"))

    assert found.bytes_held(8192) == 2 * 8192 * ROW
    assert found.wastes(8192).retention_bytes == 2 * 4096 * ROW


def test_chunks_are_copied_with_every_token() -> None:
    """llama4.py, ChunkedKVCache.maybe_trim_front: the chunk, and a step of 256 rows behind it."""
    found = _plan(load_model("llama-4-scout"), longest=20_000)
    chunks = next(g for g in found.rank.groups() if g.name == "chunk 8192")

    assert chunks.rule.held(8192) == 8192
    assert [chunks.rule.held(n) for n in (8193, 8194, 20_000)] == [8192 + 256] * 3
    assert chunks.rule.peak(20_000) == 8192 + 2048
    assert any("kept as windows" in note for note in found.notes)


def test_left_padding_and_copies_are_told() -> None:
    said = " ".join(_plan(LLAMA).unsupported)

    assert "padded on the left" in said
    assert "prompt cache keeps up to 10" in said
    # One layer of 8,192 tokens.
    assert f"{8192 * ROW:,} B" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"nbits": 4}, "unknown setting of mlx-lm 'nbits'"),
        ({"kv_bits": 7}, "does not quantise to 7 bits"),
        ({"kv_bits": 4, "kv_group_size": 16}, "no groups of 16"),
        ({"kv_group_size": 64}, "has no effect without kv_bits"),
        ({"kv_bits": "a"}, "kv_bits is 'a'"),
        ({"prefill_step_size": 500}, "only multiples of 256"),
        ({"prompt_tokens": 9000}, "more than the maximum"),
    ],
)
def test_what_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        _plan(LLAMA, **args)


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (GEMMA, {"kv_bits": 8, "quantized_kv_start": 0}, "quantises no rotating cache"),
        (shape_model(2, 8, 80), {"kv_bits": 8, "quantized_kv_start": 0}, "a k row has 80"),
        (_layers(2, SlidingWindow(num_kv_heads=1, head_dim=64, sliding_window=8)), {}, "windows"),
        (
            _layers(2, CrossAttention(num_kv_heads=1, head_dim=64, encoder_tokens=8)),
            {},
            "cross_attention caches is not modelled",
        ),
        (
            _layers(2, FullAttention(num_kv_heads=1, head_dim=64), architecture="OPTForCausalLM"),
            {},
            "no class for OPTForCausalLM",
        ),
        (load_model("deepseek-v3"), {"kv_bits": 8, "quantized_kv_start": 0}, "latent attention"),
    ],
)
def test_models_that_are_refused(model: ModelSpec, args: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _plan(model, **args)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_version": "0.20.0"}, "0.20.0 is not known"),
        ({"engine_version": "newest"}, "is no mlx-lm release"),
        ({"kv_cache_dtype": "fp8"}, "not in fp8_e4m3"),
        ({"block_size": 64}, "mlx-lm has no block_size"),
        ({"tensor_parallel_size": 2}, "mlx-lm has no tensor_parallel_size"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        plan(LLAMA, Deployment(engine="mlx-lm", max_model_len=8192, **settings))


@SETTINGS
@given(
    some.models(),
    some.some_lengths,
    st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": st.integers(1, 5000),
            "kv_bits": st.sampled_from((2, 4, 8)),
            "quantized_kv_start": st.integers(0, 4000),
            "max_kv_size": st.sampled_from((16, 1024)),
        },
    ),
)
def test_nothing_is_lost(spec: ModelSpec, lengths: Any, args: dict[str, Any]) -> None:
    """What is held is used or in exactly one waste; what is needed is never less."""
    try:
        found = _plan(spec, **args)
    except (UnsupportedError, InvalidValueError):
        return
    for wastes in (found.wastes(lengths), found.wastes_at_admission(lengths)):
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
    for n, _ in lengths:
        assert found.bytes_held(n) <= found.bytes_needed(n)
