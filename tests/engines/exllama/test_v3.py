"""exllamav3 1.4.1: cache/*.py and modules/*.py, in figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.api import load_model, shape_model
from kvcalc.core.attention import (
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet, Mamba2, ShortConv
from tests.engines.exllama.models import layers, planned
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

LLAMA = shape_model(32, 8, 128)
V3 = "exllamav3"


@pytest.mark.parametrize(
    ("quant", "k", "v"),
    [
        (None, 2048, 2048),
        # 32 groups of 32 elements: `bits` words of 4 B and a scale of 2 B each.
        ("8", 32 * 34, 32 * 34),
        ("4", 32 * 18, 32 * 18),
        ("8,4", 32 * 34, 32 * 18),
        ("3,2", 32 * 14, 32 * 10),
        (6, 32 * 26, 32 * 26),
    ],
)
def test_bytes_of_a_page(quant: str | int | None, k: int, v: int) -> None:
    """cache/fp16.py shape; cache/quant.py qshape_k, qshape_v, qshape_s."""
    found = planned(V3, LLAMA, cache_quant=quant)

    assert found.block_size == 256
    assert found.block_bytes == 32 * 256 * (k + v)
    assert found.capacity().num_blocks == 32  # 8,192 tokens
    assert found.reuse_tokens == 256


def test_tokens_are_shared_by_sequences() -> None:
    """cache/cache.py: max_num_tokens is the total of all jobs."""
    answer = planned(V3, LLAMA, cache_size=65536).capacity()

    assert (answer.num_blocks, answer.kv_cache_tokens, answer.max_sequences) == (256, 65536, 8)


@pytest.mark.parametrize(("quant", "row"), [(None, 1152), (8, 672), (6, 544), (4, 416)])
def test_latents_take_the_bits_of_k(quant: int | None, row: int) -> None:
    """cache/mla.py says these bytes for 512/64 itself; the rotary key stays in f16."""
    model = layers(2, Mla(kv_lora_rank=512, qk_rope_head_dim=64))
    found = planned(V3, model, cache_quant=None if quant is None else f"{quant},2")

    assert found.block_bytes == 2 * 256 * row


@pytest.mark.parametrize(
    ("architecture", "window", "rows"),
    [
        # ceil((window + 512) / 256) pages; gpt-oss counts its window without the query.
        ("Gemma4ForConditionalGeneration", 1024, 1536),
        ("GptOssForCausalLM", 128, 768),
        ("GptOssForCausalLM", 257, 768),
        ("LagunaForCausalLM", 257, 1024),
    ],
)
def test_windows_have_rings_in_every_slot(architecture: str, window: int, rows: int) -> None:
    """modules/sliding_attn.py, kv_state_size; SWALayerState is float16 whatever cache_quant is."""
    cache = SlidingWindow(num_kv_heads=8, head_dim=64, sliding_window=window)
    model = layers(12, cache, architecture=architecture)
    found = planned(V3, model, cache_quant=4, max_batch_size=3)
    (ring,) = found.rank.pools

    assert ring.total_bytes(ring.units or 0) == 12 * 3 * rows * 2 * 8 * 64 * 2
    assert found.capacity().max_sequences == found.max_sequences == 3
    assert found.wastes(8000).retention_bytes == 12 * (rows - window) * 2 * 8 * 64 * 2


def test_the_default_is_sixteen_slots() -> None:
    cache = SlidingWindow(num_kv_heads=1, head_dim=64, sliding_window=128)
    found = planned(V3, layers(1, cache, architecture="GptOssForCausalLM"))

    assert found.rank.pools[0].units == 16 * 768
    assert any("16 batch slots" in note for note in found.notes)


@pytest.mark.parametrize(
    ("architecture", "args"),
    [("Gemma3ForCausalLM", {}), ("Gemma4ForConditionalGeneration", {"swa_full": True})],
)
def test_other_windows_lie_in_pages(architecture: str, args: dict[str, Any]) -> None:
    """architecture/gemma3.py makes Attention of every layer, gemma4.py with swa_full as well."""
    cache = SlidingWindow(num_kv_heads=4, head_dim=256, sliding_window=1024)
    found = planned(V3, layers(6, cache, architecture=architecture), **args)

    assert found.held(8192) == {"pages": 32}
    assert found.wastes(8192).retention_bytes == 6 * (8192 - 1024) * 2 * 4 * 256 * 2
    assert any("save nothing" in note for note in found.notes)


@pytest.mark.parametrize("history", [0, 3, 31])
def test_states_and_their_history(history: int) -> None:
    """gated_delta_net.py, GDNLayerState: bf16 columns, f32 states, one more of each a token."""
    cache = GatedDeltaNet(
        num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128, conv_kernel=4
    )
    model = layers(36, cache)
    found = planned(V3, model, max_history=history, max_batch_size=2)
    (states,) = found.rank.pools
    conv = 8192 * (4 + history) * 2
    recurrent = (history + 1) * 32 * 128 * 128 * 4

    assert states.unit_bytes == 36 * (conv + recurrent)
    assert states.units == 2
    assert found.wastes(100).retention_bytes == 36 * history * (8192 * 2 + 32 * 128 * 128 * 4)
    assert found.block_size is None


def test_history_is_the_number_of_proposed_tokens() -> None:
    model = load_model("qwen3.5-27b")
    settings = {"num_speculative_tokens": 3}

    one = planned(V3, model, deployment=settings)
    other = planned(V3, model, max_history=3)
    assert one.rank.pools == other.rank.pools
    with pytest.raises(InvalidValueError, match="max_history is given as 4 and as 3"):
        planned(V3, model, deployment=settings, max_history=4)


def test_mamba2_and_short_convolutions() -> None:
    """mamba2.py uses GDNLayerState; short_conv.py keeps hidden_size x kernel in f16."""
    mamba = Mamba2(num_heads=128, head_dim=64, state_size=128, n_groups=8, conv_kernel=4)
    (states,) = planned(V3, layers(1, mamba)).rank.pools
    assert states.unit_bytes == 4 * (8192 + 2048) * 2 + 128 * 64 * 128 * 4

    short = ShortConv(hidden_size=2048, conv_kernel=3)
    (states,) = planned(V3, layers(1, short), max_history=2).rank.pools
    assert states.unit_bytes == (3 + 2) * 2048 * 2


def test_compressed_entries() -> None:
    """cache/dsa.py, DeepSeek-V4 with ratio 4: pages of entries, a ring, compressor buffers."""
    csa = (
        SlidingMla(head_dim=512, qk_rope_head_dim=64, sliding_window=128),
        CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=4, overlap=True),
        Indexer(index_head_dim=128, compress_ratio=4, overlap=True),
    )
    found = planned(V3, layers(1, *csa), cache_quant=4)
    pages, ring, states = found.rank.pools

    assert pages.unit_bytes == 256 // 4 * (512 + 128) * 2
    assert ring.unit_bytes * (ring.units or 0) == 16 * 768 * 512 * 2
    buffers = 2 * (256 + 4) * 1024 * 2 + 66 * 2 * 4 * 512 * 4
    indexer = 2 * (256 + 4) * 256 * 2 + 66 * 2 * 4 * 128 * 4
    assert states.unit_bytes == buffers + indexer
    assert found.held(8192)["pages"] == 32
    assert any("stay in float16" in note for note in found.notes)

    hca = (
        csa[0],
        CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=128),
    )
    pages, _, states = planned(V3, layers(1, *hca)).rank.pools
    assert pages.unit_bytes == 2 * 512 * 2
    assert states.unit_bytes == 2 * (256 + 128) * 512 * 2


def test_the_temporary_copy_and_the_host_are_told() -> None:
    said = " ".join(planned(V3, load_model("qwen3.5-27b"), cache_quant=4).unsupported)

    assert "read in its source" in said
    assert f"{8192 * 4 * 256 * 4:,} B" in said  # K and V of 4 heads of 256 in f16
    assert "up to 4 GiB" in said


def test_heads_are_split_and_latents_are_not() -> None:
    half = planned(V3, LLAMA, deployment={"tensor_parallel_size": 2})
    assert half.block_bytes == 32 * 256 * 2 * 4 * 128 * 2
    assert any("split evenly" in line for line in half.unsupported)

    latent = layers(2, Mla(kv_lora_rank=512, qk_rope_head_dim=64))
    assert planned(V3, latent, deployment={"tensor_parallel_size": 2}).block_bytes == 512 * 1152


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (LLAMA, {"cache_size": 1000}, "multiple of 256 tokens"),
        (LLAMA, {"cache_quant": "9"}, "2 to 8 bits"),
        (LLAMA, {"cache_quant": "4,4,4"}, "not one or two numbers"),
        (LLAMA, {"cache_quant": True}, "not a word"),
        (LLAMA, {"max_batch_size": 0}, "from 1"),
        (LLAMA, {"nbits": 4}, "unknown setting of exllamav3 'nbits'"),
        (shape_model(1, 1, 80), {"cache_quant": 4}, "a token's K has 80"),
        (
            layers(1, FullAttention(num_kv_heads=1, head_dim=192, v_head_dim=128)),
            {},
            "V as wide as K",
        ),
        (
            layers(1, CrossAttention(num_kv_heads=1, head_dim=64, encoder_tokens=8)),
            {},
            "cross_attention caches is not modelled",
        ),
        (
            layers(1, FullAttention(num_kv_heads=1, head_dim=64), architecture="OPTForCausalLM"),
            {},
            "no architecture OPTForCausalLM",
        ),
        (load_model("deepseek-v3.2"), {}, "no architecture DeepseekV32ForCausalLM"),
    ],
)
def test_what_is_refused(model: ModelSpec, args: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        planned(V3, model, **args)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_version": "0.3.2"}, "exllamav3 0.3.2 is not known"),
        ({"engine_version": "x"}, "is no exllamav3 release"),
        ({"kv_cache_dtype": "fp8"}, "keeps no fp8_e4m3 cache"),
        ({"block_size": 256}, "exllamav3 has no block_size"),
        ({"pipeline_parallel_size": 2}, "exllamav3 has no pipeline_parallel_size"),
        ({"tensor_parallel_size": 3}, "8 heads cannot be split over 3"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        planned(V3, LLAMA, deployment=settings)


def test_versions_differ_in_what_they_have() -> None:
    """cache/mla.py came with 1.3.0, cache/dsa.py with 1.4.0 (tags)."""
    with pytest.raises(UnsupportedError, match=r"1\.2\.1 has no latent attention"):
        planned(V3, load_model("deepseek-v3"), deployment={"engine_version": "1.2.1"})
    with pytest.raises(UnsupportedError, match=r"1\.3\.0 has no DeepSeek-V4's layers"):
        planned(V3, load_model("deepseek-v4-flash"), deployment={"engine_version": "1.3.0"})


@pytest.mark.parametrize("dtype", ["q8_0", "q8_0:q4_0"])
def test_a_dtype_of_the_same_layout_names_bits(dtype: str) -> None:
    found = planned(V3, LLAMA, deployment={"kv_cache_dtype": dtype})
    quant = dtype.replace("q", "").replace("_0", "").replace(":", ",")

    assert found.block_bytes == planned(V3, LLAMA, cache_quant=quant).block_bytes


@SETTINGS
@given(
    some.models(),
    some.some_lengths,
    st.sampled_from((1, 2, 16)),
    st.integers(0, 5),
    st.sampled_from((None, "4", "8,3")),
)
def test_nothing_is_lost(
    spec: ModelSpec, lengths: Any, batch: int, history: int, quant: str | None
) -> None:
    try:
        found = planned(V3, spec, max_batch_size=batch, max_history=history, cache_quant=quant)
    except UnsupportedError:
        return
    for wastes in (found.wastes(lengths), found.wastes_at_admission(lengths)):
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
