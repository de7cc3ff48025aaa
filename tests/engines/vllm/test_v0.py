"""vLLM's first engine: which starts get it, what it keeps, and what it prints.

vLLM 0.8.5: engine/arg_utils.py, _is_v1_supported_oracle; worker/cache_engine.py,
get_cache_block_size; worker/worker.py, raise_if_cache_size_invalid; executor/executor_base.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.plan_summary import summarise
from kvcalc.core.attention import CrossAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.rules import Grow, Slots
from kvcalc.engines import plan, start_up_log
from tests.core import builders
from tests.engines.vllm.asking import GIB, NGRAM, asked, refused

_LLAMA = "llama-3.1-8b"
_LLAMA_BLOCK = 32 * 16 * 8 * 128 * 2 * 2
"""32 layers, 16 tokens, 8 heads of 128, K and V of 2 bytes: 2 MiB."""

_NONE: dict[str, Any] = {}
_HALF: dict[str, Any] = {"dtype": "float16"}
_FP8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
_TWO_STAGES: dict[str, Any] = {"pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    ("at", "model", "gpu", "settings", "first"),
    [
        # V0 alone until 0.7, V1 by default from 0.8, V0 gone for most by 0.10.2.
        ("0.2.7", _LLAMA, "h100-80gb", _NONE, True),
        ("0.6.4", _LLAMA, "h100-80gb", _NONE, True),
        ("0.7.3", _LLAMA, "h100-80gb", _NONE, True),
        ("0.7.3+v1", _LLAMA, "h100-80gb", _NONE, False),
        ("0.8.5", _LLAMA, "h100-80gb", _NONE, False),
        ("0.8.5+v0", _LLAMA, "h100-80gb", _NONE, True),
        ("0.10.2+v0", _LLAMA, "h100-80gb", _NONE, True),
        ("0.10.2", _LLAMA, "h100-80gb", _NONE, False),
        # Compute capability below 8.0: until 0.10.1.
        ("0.8.5", _LLAMA, "t4", {"dtype": "float16"}, True),
        ("0.10.1", _LLAMA, "v100-32gb", _NONE, True),
        ("0.10.1+v1", _LLAMA, "t4", _NONE, False),
        ("0.10.2", _LLAMA, "t4", _NONE, False),
        # Architectures and states.
        ("0.8.5", "bloom-560m", "h100-80gb", _NONE, True),
        ("0.10.1", "bloom-560m", "h100-80gb", _NONE, True),
        ("0.10.2", "bloom-560m", "h100-80gb", _NONE, False),
        ("0.8.5", "jamba-v0.1", "h100-80gb", _NONE, True),
        ("0.10.1", "jamba-v0.1", "h100-80gb", _NONE, True),
        ("0.10.2", "jamba-v0.1", "h100-80gb", _NONE, False),
        ("0.9.2", "granite-4.0-h-small", "h100-80gb", _NONE, True),
        ("0.10.0+v1", "granite-4.0-h-small", "h100-80gb", _NONE, False),
        # What V1 of 0.8 had not: fp8 but on Hopper, float32, several stages.
        ("0.8.5", _LLAMA, "a100-80gb", _FP8, True),
        ("0.8.5", _LLAMA, "l40s", _FP8, True),
        ("0.8.5", _LLAMA, "h100-80gb", _FP8, False),
        ("0.8.5", _LLAMA, "h100-80gb", {"dtype": "float32"}, True),
        ("0.8.5", _LLAMA, "h100-80gb", _TWO_STAGES, True),
        ("0.9.2", _LLAMA, "h100-80gb", _TWO_STAGES, False),
    ],
)
def test_which_starts_get_it(
    at: str, model: str, gpu: str, settings: dict[str, Any], first: bool
) -> None:
    """A plan of V0 says so in its version, has no null block and counts all blocks as tokens."""
    found = asked(model, at, gpu, max_model_len=2048, **settings)
    version = found.engine_version or ""

    assert version.endswith("+v0") is first
    assert version.removesuffix("+v0") == at.removesuffix("+v0")
    assert found.convention[0].startswith("This is V0") is first
    assert found.ranks[0].pools[0].reserved_units == (0 if first else 1)
    if first:
        assert (found.report, found.check, found.check_spares_reserved) == (
            "tokens",
            "units",
            False,
        )
        assert found.source == f"vLLM {at[: at.rindex('.')]} worker/cache_engine.py"


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.11.0+v0", "vLLM 0.11 has no V0 engine"),
        ("0.33+v0", "vLLM 0.33 has no V0 engine"),
        ("0.6.4+v1", "vLLM 0.6 has no V1 engine"),
        ("0.1.9", "vLLM 0.1.9 is not known: 0.2.0 to 0.33.0 are"),
    ],
)
def test_engines_that_a_release_has_not(version: str, told: str) -> None:
    assert refused(_LLAMA, version) == told


def test_speculation_starts_it_in_0_8_and_is_not_modelled() -> None:
    """Methods that V1 of 0.8 had not: a draft model, a model's own layers."""
    settings: dict[str, Any] = {"num_speculative_tokens": 1, "max_model_len": 2048}
    told = "V0 gives a draft model a cache of its own, which is not modelled"

    assert refused("deepseek-v3", "0.8.5", speculative_method="deepseek_mtp", **settings) == told
    assert refused(_LLAMA, "0.8.5", draft_model=builders.LLAMA_8B, **settings) == told
    assert refused(_LLAMA, "0.10.2+v0", max_model_len=2048, **NGRAM) == told


def test_what_it_has_not() -> None:
    split: dict[str, Any] = {"tensor_parallel_size": 16, "decode_context_parallel_size": 2}

    assert refused(_LLAMA, "0.10.2+v0", **split) == "V0 has no decode context parallelism"
    assert refused(_LLAMA, "0.8.5+v0", tensor_parallel_size=3) == (
        "32 attention heads cannot be split over 3 ranks"
    )
    cross = CrossAttention(num_kv_heads=8, head_dim=128, encoder_tokens=1500)
    spec = builders.model((4, (builders.FULL, cross)))
    with pytest.raises(UnsupportedError) as caught:
        plan(spec, Deployment(engine="vllm", engine_version="0.8.5"))
    assert caught.value.message == "V0's rules for cross_attention caches are not known"


# What it keeps


@pytest.mark.parametrize(
    ("settings", "block", "block_bytes"),
    [
        ({}, 16, _LLAMA_BLOCK),
        ({"block_size": 32}, 32, 2 * _LLAMA_BLOCK),
        ({"kv_cache_dtype": "fp8"}, 16, _LLAMA_BLOCK // 2),
        ({"tensor_parallel_size": 4}, 16, _LLAMA_BLOCK // 4),
        ({"tensor_parallel_size": 16}, 16, _LLAMA_BLOCK // 8),  # 8 heads, each on two ranks
    ],
)
def test_block_bytes(settings: dict[str, Any], block: int, block_bytes: int) -> None:
    """CacheEngine.get_cache_block_size; every byte of the memory that a block fills is counted."""
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=2048, **settings)
    capacity = found.capacity(10 * block_bytes + 1)

    assert (found.block_size, found.block_bytes) == (block, block_bytes)
    assert capacity.num_blocks == 10
    assert capacity.kv_cache_tokens == 10 * block
    assert capacity.max_concurrency == 10 * block / 2048
    assert capacity.overhead_bytes == 1


def test_a_sequence_of_all_blocks_fits() -> None:
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=2048)

    assert found.capacity(128 * _LLAMA_BLOCK).fits
    assert found.capacity(128 * _LLAMA_BLOCK).max_sequences == 1
    assert not found.capacity(128 * _LLAMA_BLOCK - 1).fits


@pytest.mark.parametrize(("model", "window"), [("mistral-7b-v0.1", 4096), ("gemma-3-1b", 512)])
def test_windows_are_kept_whole(model: str, window: int) -> None:
    """core/block_manager.py: a window has no effect on the number of blocks."""
    found = asked(model, "0.8.5+v0", max_model_len=8192)

    assert found.need(8192) == {"blocks": 512}
    assert window in {rows.rule.limit for rows in found.rank.rows() if isinstance(rows.rule, Grow)}
    assert found.notes == ("V0 frees nothing behind a window: every layer keeps every token",)
    assert asked(_LLAMA, "0.8.5+v0", max_model_len=8192).notes == ()


def test_layers_with_and_without_a_window_share_one_block() -> None:
    """Gemma-3-1b: 26 layers of 16 x 256 x 2 x 2 B; the windows' rows fill it at their own rate."""
    found = asked("gemma-3-1b", "0.8.5+v0", max_model_len=8192)
    (group,) = found.rank.groups()

    assert (group.layers, group.unit_bytes) == (26, 26 * 16_384)
    windows, full = group.rows
    assert windows.rule == Grow(block_tokens=16, limit=512)
    assert full.rule == Grow(block_tokens=16)
    assert (windows.slot_bytes, full.slot_bytes) == (22 * 1024, 4 * 1024)


def test_chunks_are_kept_whole() -> None:
    found = asked("llama-4-scout", "0.8.5+v0", tensor_parallel_size=8, max_model_len=65536)
    limits = {rows.rule for rows in found.rank.rows()}

    assert limits == {Grow(block_tokens=16, limit=8192, restarts=True), Grow(block_tokens=16)}
    assert found.need(65536) == {"blocks": 4096}


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({}, 256),
        ({"max_num_seqs": 1}, 1),
        ({"max_num_seqs": 3}, 4),  # graphs of 1, 2, 4, 8, 16, 24 ...
        ({"max_num_seqs": 5}, 8),
        ({"max_num_seqs": 9}, 16),
        ({"max_num_seqs": 100}, 104),
        ({"max_num_seqs": 100, "enforce_eager": True}, 100),
    ],
)
def test_states_lie_outside_the_pool(settings: dict[str, Any], slots: int) -> None:
    """models/mamba_cache.py, MambaCacheManager: one state for every sequence.

    Jamba: 28 states of 8,192 x (3 + 16) x 2 = 311,296 B and 4 attention layers.
    """
    found = asked("jamba-v0.1", "0.8.5", max_model_len=2048, **settings)
    blocks, states = found.rank.pools

    assert (blocks.name, blocks.unit_bytes) == ("blocks", 4 * 16 * 8 * 128 * 2 * 2)
    assert (states.name, states.unit_bytes, states.units) == ("states", 28 * 311_296, slots)
    assert states.groups[0].rule == Slots()
    assert found.rank.beside_bytes == states.total_bytes(slots)
    told = summarise(found, kv_cache_bytes=2**20 * 32)  # less than the states take
    assert not any("would fail" in note for note in told.notes)


def test_states_are_told_of() -> None:
    (told,) = asked("jamba-v0.1", "0.8.5", max_model_len=2048, max_num_seqs=1000).notes

    assert told == (
        "states lie outside the pool of blocks, one for each of 1,000 sequences (max_num_seqs); the"
        " memory profile has taken their bytes already"
    )


def test_states_take_nothing_of_the_memory() -> None:
    """The memory goes to blocks alone; sequences are no more than there are states."""
    found = asked("jamba-v0.1", "0.8.5", max_model_len=2048, max_num_seqs=8)
    capacity = found.capacity(8 * GIB)

    assert capacity.num_blocks == 8 * GIB // 262_144
    assert capacity.fits
    assert capacity.max_sequences == 8
    assert found.max_tail_bytes() == 15 * 16_384


@pytest.mark.parametrize(
    ("at", "gpu", "block", "token"),
    [
        ("0.6.4", "h100-80gb", 16, 2 * 16 * 256 * 2),  # K and V of 16 heads, padded to 256
        ("0.7.0", "h100-80gb", 16, 2 * 16 * 256 * 2),
        ("0.7.1", "h100-80gb", 16, 576 * 2),  # latents
        ("0.7.3", "h100-80gb", 16, 576 * 2),
        ("0.8.0+v0", "h100-80gb", 64, 576 * 2),  # FlashMLA
        ("0.8.0+v0", "a100-80gb", 16, 576 * 2),
        ("0.10.2+v0", "h100-80gb", 64, 576 * 2),
    ],
)
def test_mla(at: str, gpu: str, block: int, token: int) -> None:
    """DeepSeek-V2-Lite: 27 layers."""
    found = asked("deepseek-v2-lite", at, gpu, max_model_len=2048)

    assert found.block_size == block
    assert found.block_bytes == 27 * block * token


def test_mla_by_head_is_split_over_ranks() -> None:
    def width(at: str, tp: int) -> int | None:
        found = asked("deepseek-v2-lite", at, max_model_len=2048, tensor_parallel_size=tp)
        return found.block_bytes

    assert width("0.7.0", 2) == (width("0.7.0", 1) or 0) // 2
    assert width("0.7.1", 2) == width("0.7.1", 1)


def test_mla_by_head_wants_their_number() -> None:
    deployment = Deployment(engine="vllm", engine_version="0.7.0", max_model_len=2048)
    with pytest.raises(UnsupportedError, match="their number is not known"):
        plan(builders.DEEPSEEK_V3, deployment)


def test_stages() -> None:
    """Every stage has its own layers, and the start-up check divides the blocks by the stages."""
    found = asked(_LLAMA, "0.8.5", max_model_len=2048, pipeline_parallel_size=2)

    assert [rank.name for rank in found.ranks] == ["stage 0", "stage 1"]
    assert [rank.pools[0].unit_bytes for rank in found.ranks] == [_LLAMA_BLOCK // 2] * 2
    assert found.unsupported == (
        (
            "V0's start-up check gives a sequence 1 / 2 of the blocks: it refuses lengths above"
            " that, which this plan does not"
        ),
    )
    assert asked(_LLAMA, "0.8.5+v0", max_model_len=2048).unsupported == ()


@pytest.mark.parametrize(("cached", "reuse"), [(None, None), (False, None), (True, 16)])
def test_prefixes_are_cached_on_request(cached: bool | None, reuse: int | None) -> None:
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=2048, enable_prefix_caching=cached)

    assert found.reuse_tokens == reuse


# What it prints


@pytest.mark.parametrize(
    ("at", "device"),
    [("0.6.4", "GPU"), ("0.7.0", "cuda"), ("0.7.3", "cuda"), ("0.8.5+v0", "cuda")],
)
def test_log_lines(at: str, device: str) -> None:
    """Blocks in 10 GiB, and those of 4 GiB of swap space; no separators in the thousands."""
    found = asked(_LLAMA, at, max_model_len=20000)

    assert start_up_log(found, 10 * GIB) == (
        f"# {device} blocks: 5120, # CPU blocks: 2048",
        "Maximum concurrency for 20000 tokens per request: 4.10x",
    )


def test_log_lines_of_ranks() -> None:
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=20000, tensor_parallel_size=4)

    assert start_up_log(found, 10 * GIB) == (
        "# cuda blocks: 20480, # CPU blocks: 8192",
        "Maximum concurrency for 20000 tokens per request: 16.38x",
    )


def test_log_lines_of_a_fixed_number_of_blocks() -> None:
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=2048, num_gpu_blocks_override=200)

    assert start_up_log(found, None) == (
        "# cuda blocks: 200, # CPU blocks: 2048",
        "Maximum concurrency for 2048 tokens per request: 1.56x",
    )


def test_refusal() -> None:
    """raise_if_cache_size_invalid: the blocks hold fewer tokens than the maximum."""
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=131072)
    first, *_, last = start_up_log(found, 10 * GIB)

    assert first == "# cuda blocks: 5120, # CPU blocks: 2048"
    assert last == (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens"
        " that can be stored in KV cache (81920). Try increasing `gpu_memory_utilization` or"
        " decreasing `max_model_len` when initializing the engine."
    )


def test_no_block_at_all() -> None:
    found = asked(_LLAMA, "0.8.5+v0", max_model_len=2048)

    assert start_up_log(found, _LLAMA_BLOCK - 1)[-1] == (
        "ValueError: No available memory for the cache blocks. Try increasing"
        " `gpu_memory_utilization` when initializing the engine."
    )
