"""What transformers holds, in figures that were measured or can be worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

from kvcalc.api import load_model
from kvcalc.core.attention import CrossAttention, FullAttention, Mla, SharedKv, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.transformers import tensor_bytes
from tests.property import strategies as some
from tests.property.strategies import SETTINGS

EXPANDED = {"qk_nope_head_dim": 128, "v_head_dim": 128}


def _layers(count: int, cache: Cache, **fields: Any) -> ModelSpec:
    run = LayerRun(count=count, caches=(cache,))
    return ModelSpec(
        name="test", num_hidden_layers=count, dtype="bfloat16", layers=(run,), **fields
    )


def _plan(model: ModelSpec, version: str | None = None, **args: Any) -> CachePlan:
    return plan(
        model,
        Deployment(
            engine="transformers", engine_version=version, max_model_len=4096, engine_args=args
        ),
    )


def test_old_releases_expand_latents() -> None:
    """4.57.1, measured: 16 heads, 2 layers, 100 tokens: 2,048,000 B; 5.24: 1,152 B a token."""
    latent = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
    model = _layers(2, latent, num_attention_heads=16)

    assert _plan(model, "4.57.1", **EXPANDED).bytes_held(100) == 2_048_000
    assert _plan(model, "5.24.0").bytes_held(100) == 2 * 100 * 1152


def test_the_latent_came_with_5_15() -> None:
    """DeepSeek-V3's 128 heads: 81,920 B a token and layer, 71 times the latent."""
    model = load_model("deepseek-v3")

    assert _plan(model, "5.14.0", **EXPANDED).growth() == (61 * 81_920, 1)
    assert _plan(model, "5.15.0").growth() == (61 * 1_152, 1)
    with pytest.raises(UnsupportedError, match="every head of an MLA model"):
        _plan(model, "4.57.6")


def test_a_window_shows_one_token_less_than_it_holds() -> None:
    """Window 128: 127 visible, 128 held after a step, the whole prompt right after it."""
    model = _layers(1, SlidingWindow(num_kv_heads=1, head_dim=64, sliding_window=128))
    found = _plan(model)
    token = 2 * 64 * 2

    assert tensor_bytes(found, 135) == 127 * token
    assert found.bytes_held(135) == 128 * token
    assert found.bytes_needed(135) == 135 * token
    assert _plan(model, prompt_tokens=130).bytes_needed(4000) == 130 * token
    assert _plan(model, prompt_tokens=60).bytes_needed(4000) == 128 * token
    # In steps of 100: the 127 before and the step.
    assert _plan(model, prefill_chunk_size=100).bytes_needed(4000) == 227 * token
    assert _plan(model, cache_implementation="static").bytes_held(1) == 128 * token


def test_chunks_are_kept_as_windows() -> None:
    """Llama-4-Scout, 8192 + 8 tokens: the chunk is 8 tokens long, 8192 are held."""
    deployment = Deployment(engine="transformers", max_model_len=1 << 20)
    found = plan(load_model("llama-4-scout"), deployment)
    token = 36 * 2 * 8 * 128 * 2
    wastes = found.wastes(8200)

    assert wastes.retention_bytes == (8192 - 8) * token


def test_states_have_a_column_more_and_float32() -> None:
    """Qwen3-Next-80B: 36 x 2,162,688 B of state and 12 layers of 2,048 B a token."""
    found = _plan(load_model("qwen3-next-80b-a3b"))

    assert found.bytes_held(1000) == 36 * 2_162_688 + 12 * 2_048 * 1000


def test_an_indexer_key_is_kept_whole() -> None:
    """DeepSeek-V3.2: 1,152 B of latent and 256 B of key a token and layer."""
    assert _plan(load_model("deepseek-v3.2")).growth() == (61 * (1152 + 256), 1)


def test_layers_that_share_hold_nothing() -> None:
    """A layer that reads another's rows is a DummyLayer: here one of two holds any."""
    runs = (
        LayerRun(count=1, caches=(FullAttention(num_kv_heads=8, head_dim=128),)),
        LayerRun(count=1, caches=(SharedKv(source_layer=0),)),
    )
    model = ModelSpec(name="shared", num_hidden_layers=2, dtype="bfloat16", layers=runs)

    assert _plan(model).bytes_held(10) == 10 * 4_096


def test_an_encoder_is_held_once() -> None:
    """Whisper-large-v3: 1,500 frames in 32 layers, 245,760,000 B; 10 tokens more: 247,398,400 B."""
    caches = (
        FullAttention(num_kv_heads=20, head_dim=64),
        CrossAttention(num_kv_heads=20, head_dim=64, encoder_tokens=1500),
    )
    model = ModelSpec(
        name="whisper",
        num_hidden_layers=32,
        dtype="bfloat16",
        layers=(LayerRun(count=32, caches=caches),),
    )
    found = _plan(model)

    assert found.bytes_held(0) == 245_760_000
    assert found.bytes_held(10) == 247_398_400


LLAMA = _layers(2, FullAttention(num_kv_heads=8, head_dim=128))


@pytest.mark.parametrize(
    ("args", "tokens", "expected"),
    [
        ({"backend": "quanto", "nbits": 2}, 1000, 1_280_000),
        ({"backend": "quanto", "nbits": 4}, 1, 2_304),
        ({"backend": "hqq", "nbits": 2}, 1, 1_280),
        ({"backend": "hqq", "nbits": 3}, 1, 2 * 2 * 16 * (28 + 4)),
        ({"backend": "hqq", "nbits": 8, "q_group_size": 128}, 1, 2 * 2 * 8 * (128 + 4)),
        ({"backend": "fp8"}, 1000, 4_096_016),
        # 127 tokens wait; with the 128th all are quantised.
        ({"backend": "hqq", "nbits": 2, "prompt_tokens": 1000}, 1001, 1_280_000 + 8_192),
        ({"backend": "hqq", "nbits": 2, "prompt_tokens": 1000}, 1127, 1_280_000 + 127 * 8_192),
        ({"backend": "hqq", "nbits": 2, "prompt_tokens": 1000}, 1128, 1128 * 1_280),
    ],
)
def test_quantised(args: dict[str, Any], tokens: int, expected: int) -> None:
    found = _plan(LLAMA, cache_implementation="quantized", **args)

    assert found.bytes_held(tokens) == expected
    assert found.wastes(tokens).reserved_bytes == expected


def test_quantised_needs_full_attention_alone() -> None:
    with pytest.raises(UnsupportedError, match="nothing but full attention"):
        _plan(load_model("gemma-3-27b"), cache_implementation="quantized")
    odd = _layers(2, FullAttention(num_kv_heads=1, head_dim=80))
    with pytest.raises(UnsupportedError, match="no whole groups of 64"):
        _plan(odd, cache_implementation="quantized")


def test_a_static_cache_is_reserved_whole() -> None:
    """2,000 of 4,095 slots: the rest is reservation; 8 B a layer count the tokens."""
    found = _plan(LLAMA, cache_implementation="static")

    assert found.bytes_held(1) == found.bytes_held(4096) == 4095 * 8_192
    assert found.wastes(2000).reservation_bytes == 2095 * 8_192
    assert found.rank.fixed_bytes == 16
    longer = _plan(LLAMA, cache_implementation="static", max_cache_len=8000)
    assert longer.max_model_len == 8000


@pytest.mark.parametrize(
    ("version", "longest", "cache", "slots"),
    [
        ("5.24.0", 48, None, 47),  # generate of all releases: max_length - 1
        ("5.10.1", 48, None, 47),
        ("4.57.1", 48, None, 47),
        ("5.24.0", 48, 100, 100),
        ("5.13.0", 48, 100, 100),
        ("5.24.0", 48, 40, 47),
        ("5.12.0", 48, 100, 47),  # generate does not look at max_cache_len yet
        ("5.10.1", 48, 100, 47),
        ("5.10.1", None, 100, 100),  # a StaticCache of one's own
    ],
)
def test_slots_of_a_static_cache(
    version: str, longest: int | None, cache: int | None, slots: int
) -> None:
    """generation/utils.py, generate: the last token of the longest sequence is never read."""
    args = {"cache_implementation": "static", "max_cache_len": cache}
    deployment = Deployment(
        engine="transformers",
        engine_version=version,
        max_model_len=longest,
        engine_args={name: value for name, value in args.items() if value is not None},
    )
    found = plan(LLAMA, deployment)
    ignored = any("never reads max_cache_len" in note for note in found.notes)

    assert found.bytes_held(1) == slots * 8_192
    assert found.bytes_needed(longest or 1) == slots * 8_192
    assert ignored == (cache is not None and longest is not None and version < "5.13")


def test_offloaded_layers_are_on_the_gpu_two_at_a_time() -> None:
    model = _layers(32, FullAttention(num_kv_heads=8, head_dim=128))
    found = _plan(model, cache_implementation="offloaded")

    assert found.bytes_held(1000) == 2 * 1000 * 4_096
    assert any(f"the host holds {32 * 4096 * 4096:,} B" in note for note in found.notes)
    windows = _plan(load_model("gemma-3-27b"), cache_implementation="offloaded_static")
    assert sorted(group.layers for group in windows.rank.groups()) == [2, 52]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_args": {"nbitz": 4}}, "unknown setting of transformers 'nbitz'"),
        ({"engine_args": {"nbits": 4}}, "nbits is a setting of the quantized cache"),
        ({"engine_args": {"cache_implementation": "mamba"}}, "unknown cache_implementation"),
        ({"engine_args": {"prompt_tokens": 0}}, "prompt_tokens is 0"),
        ({"engine_args": {"prompt_tokens": 10**6}}, "more than the maximum"),
        ({"engine_args": {"backend": 3, "cache_implementation": "quantized"}}, "not a word"),
        ({"engine_version": "4.40"}, "4.40.0 is not known"),
        ({"engine_version": "new"}, "no transformers release"),
        ({"kv_cache_dtype": "fp8"}, "keeps K and V in the model dtype"),
        ({"block_size": 16}, "the dynamic cache has no blocks"),
        ({"pipeline_parallel_size": 2}, "transformers has no pipeline_parallel_size"),
        ({"tensor_parallel_size": 3}, "8 KV heads cannot be split over 3 ranks"),
        (
            {"engine_version": "5.22.0", "engine_args": {"cache_implementation": "paged"}},
            "continuous batching of transformers 5.22.0 is not modelled",
        ),
        (
            {
                "engine_version": "5.20.0",
                "engine_args": {"cache_implementation": "quantized", "backend": "fp8"},
            },
            "has no backend fp8",
        ),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((UnsupportedError, UnknownNameError, InvalidValueError), match=message):
        plan(LLAMA, Deployment(engine="transformers", max_model_len=4096, **settings))


def test_nothing_is_checked_at_start() -> None:
    """There is no start: a cache grows until there is no room."""
    for args in ({}, {"cache_implementation": "static"}, {"cache_implementation": "paged"}):
        found = _plan(LLAMA, **args).capacity(2**20)
        assert (found.fits, found.starts) == (False, True)


def test_the_longer_of_two_lengths() -> None:
    """generation/utils.py: max(max_length, max_cache_len); it is said which were given."""
    for size in (1000, 5000):
        found = _plan(LLAMA, cache_implementation="static", max_cache_len=size)
        assert found.max_model_len == max(4096, size)
        assert any(f"longer of max_cache_len {size:,} and" in note for note in found.notes)


def test_states_of_old_releases_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="classes of the models' own"):
        _plan(load_model("qwen3.5-27b"), "5.0.0")


def test_falcon_repeats_its_heads() -> None:
    """Falcon-40B caches 128 heads of 64 where the config has 8 KV heads."""
    model = _layers(
        60,
        FullAttention(num_kv_heads=8, head_dim=64),
        architecture="FalconForCausalLM",
        num_attention_heads=128,
    )

    assert _plan(model).growth() == (60 * 2 * 128 * 64 * 2, 1)


@SETTINGS
@given(some.models(), some.some_tokens)
def test_every_plan_conserves(model: ModelSpec, n: int) -> None:
    """Reserved = used + wastes for any model that transformers has a cache for."""
    for cache in ("dynamic", "static", "offloaded", "quantized", "paged"):
        try:
            found = _plan(model, cache_implementation=cache)
        except UnsupportedError:
            continue
        wastes = found.wastes(n)
        assert found.bytes_held(n) == wastes.reserved_bytes
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert found.bytes_held(n) <= found.bytes_needed(n) or n > 4096
        assume(found.rank.pools)
