"""exllamav2 0.3.2: cache.py and generator/dynamic.py, in figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.api import load_model, shape_model
from kvcalc.core.attention import Mla, SlidingWindow
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from tests.engines.exllama.models import layers, planned
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

LLAMA = shape_model(32, 8, 128)
V2 = "exllamav2"
COPY = 2 * 2 * 8192 * 8 * 128  # K and V of one layer in f16


@pytest.mark.parametrize(
    ("mode", "k", "v", "copy"),
    [
        ("FP16", 256, 256, 0),
        ("FP8", 128, 128, COPY),
        # A head of 128: bytes of its elements and four f16 scales.
        ("Q8", 128 + 8, 128 + 8, COPY),
        ("Q6", 128 + 8, 64 + 8, COPY),
        ("q4", 64 + 8, 64 + 8, COPY),
    ],
)
def test_cache_classes(mode: str, k: int, v: int, copy: int) -> None:
    """shape_wk, shape_wv, shape_s; touch_device: temporaries in f16 for all layers of a card."""
    found = planned(V2, LLAMA, cache_mode=mode)

    assert found.block_bytes == 32 * 256 * 8 * (k + v)
    assert found.rank.fixed_bytes == copy
    assert found.capacity().num_blocks == 32
    assert any("float16 lie beside" in note for note in found.notes) == bool(copy)


def test_scales_are_whole_groups_of_a_head() -> None:
    """head_dim // 32 scales: a head of 80 has two, not two and a half."""
    found = planned(V2, shape_model(1, 1, 80), cache_mode="Q8")
    assert found.block_bytes == 256 * 2 * (80 + 2 * 2)


def test_windows_save_nothing() -> None:
    cache = SlidingWindow(num_kv_heads=8, head_dim=128, sliding_window=1024)
    found = planned(V2, layers(2, cache, architecture="Gemma2ForCausalLM"))

    assert found.held(8192) == {"pages": 32}
    assert found.wastes(8192).retention_bytes == 2 * (8192 - 1024) * 2 * 8 * 128 * 2


def test_rows_of_a_batch() -> None:
    """Without pages each of batch_size sequences has a row of its own."""
    found = planned(V2, LLAMA, cache_size=4096, batch_size=4)
    (rows,) = found.rank.pools

    assert rows.total_bytes(rows.units or 0) == 4 * 4096 * 32 * 2 * 8 * 128 * 2
    assert found.block_size is None
    assert found.capacity().max_sequences == found.max_sequences == 4
    assert found.wastes(1000).reservation_bytes == 3096 * 32 * 2 * 8 * 128 * 2


def test_the_length_that_it_says_is_rounded() -> None:
    """ExLlamaV2Cache_Q rounds max_seq_len to its block after the tensors were made."""
    # 1 head of 80: 32 tokens are 5 x 512 elements.
    found = planned(V2, shape_model(1, 1, 80), cache_mode="Q4", generator="basic", cache_size=1000)

    assert any("1,024 tokens for its cache, which has 1,000" in note for note in found.notes)
    assert found.rank.pools[0].units == 1000


def test_heads_are_split() -> None:
    found = planned(V2, LLAMA, cache_mode="Q4", deployment={"tensor_parallel_size": 2})

    assert found.block_bytes == 32 * 256 * 4 * 2 * 72
    assert found.rank.fixed_bytes == COPY // 2


@pytest.mark.parametrize(
    ("dtype", "mode"),
    [("fp16", "FP16"), ("fp8_e5m2", "FP8"), ("q8_0", "Q8"), ("q8_0:q4_0", "Q6"), ("q4_0", "Q4")],
)
def test_dtypes_name_classes(dtype: str, mode: str) -> None:
    found = planned(V2, LLAMA, deployment={"kv_cache_dtype": dtype})

    assert found.block_bytes == planned(V2, LLAMA, cache_mode=mode).block_bytes


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (LLAMA, {"cache_mode": "Q5"}, "unknown cache_mode"),
        (LLAMA, {"cache_size": 1000}, "multiple of 256 tokens"),
        (LLAMA, {"batch_size": 2, "generator": "dynamic"}, "batch size 1, not 2"),
        (LLAMA, {"generator": "fast"}, "unknown generator"),
        (LLAMA, {"cache_size": "a"}, "not a whole number"),
        (layers(1, Mla(kv_lora_rank=512, qk_rope_head_dim=64)), {}, "layers with mla cache"),
        (load_model("deepseek-v3"), {}, "no architecture DeepseekV3ForCausalLM"),
        (load_model("gemma-4-26b-a4b"), {}, "no architecture Gemma4"),
    ],
)
def test_what_is_refused(model: ModelSpec, args: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        planned(V2, model, **args)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_version": "0.1.0"}, "exllamav2 0.1.0 is not known"),
        ({"kv_cache_dtype": "fp8"}, "keeps no fp8_e4m3 cache"),
        ({"max_num_seqs": 4}, "exllamav2 has no max_num_seqs"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        planned(V2, LLAMA, deployment=settings)


@SETTINGS
@given(
    some.models(),
    some.some_lengths,
    st.sampled_from(("FP16", "FP8", "Q8", "Q6", "Q4")),
    st.sampled_from((1, 3)),
)
def test_nothing_is_lost(spec: ModelSpec, lengths: Any, mode: str, batch: int) -> None:
    try:
        found = planned(V2, spec, cache_mode=mode, batch_size=batch)
    except UnsupportedError:
        return
    for wastes in (found.wastes(lengths), found.wastes_at_admission(lengths)):
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
