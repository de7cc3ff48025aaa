"""What V1 prints when it has sized its cache, word for word, by release.

v1/core/kv_cache_utils.py: _report_kv_cache_config, update_kv_cache_capacity (0.24),
check_enough_kv_cache_memory, _check_enough_kv_cache_memory (0.14); kv_cache_planning.py (0.33).
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.engines import plan, start_up_log
from kvcalc.engines.vllm.rules import COMPARED, rules_of
from kvcalc.engines.vllm.start_up import _gib, _too_long
from kvcalc.engines.vllm.version import release
from tests.core import builders
from tests.engines.vllm.asking import GIB, asked

_LLAMA = "llama-3.1-8b"
_BLOCK = 2 * 2**20
"""Bytes of a block of Llama-3.1-8B: 16 tokens of 131,072 B."""

_TRY = "Try increasing `gpu_memory_utilization`"
_OR = " or decreasing `max_model_len` when initializing the engine."
_CPU = " (which also controls CPU memory on the CPU backend)"
_FLAG = " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
_SEE = " See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


def _lines(at: str, memory: int, length: int, **settings: Any) -> tuple[str, ...]:
    return start_up_log(asked(_LLAMA, at, max_model_len=length, **settings), memory)


@pytest.mark.parametrize(
    ("at", "memory"),
    [
        ("0.9.2", "Available KV cache memory: 10.00 GiB"),
        ("0.13.0", "Available KV cache memory: 10.00 GiB"),
        ("0.14.0", "Available KV cache memory: 10.0 GiB"),
        ("0.27.0", "Available KV cache memory: 10.0 GiB"),
    ],
)
def test_two_lines_of_capacity(at: str, memory: str) -> None:
    assert _lines(at, 10 * GIB, 8192) == (
        memory,
        "GPU KV cache size: 81,920 tokens",
        "Maximum concurrency for 8,192 tokens per request: 10.00x",
    )


def test_the_memory_is_not_printed_before_0_9() -> None:
    assert _lines("0.8.5", 10 * GIB, 8192) == (
        "GPU KV cache size: 81,920 tokens",
        "Maximum concurrency for 8,192 tokens per request: 10.00x",
    )


@pytest.mark.parametrize("at", ["0.28.0", "0.29.0", "0.33.0"])
def test_one_line_of_capacity(at: str) -> None:
    line = (
        "GPU KV cache size: 81,920 tokens, Maximum concurrency for 8,192 tokens per request: 10.00x"
    )
    assert _lines(at, 10 * GIB, 8192) == ("Available KV cache memory: 10.0 GiB", line)


def test_a_fixed_number_of_blocks_is_told_without_memory() -> None:
    found = asked(_LLAMA, max_model_len=8192, num_gpu_blocks_override=1000)
    line = (
        "GPU KV cache size: 16,000 tokens, Maximum concurrency for 8,192 tokens per request: 1.95x"
    )

    assert start_up_log(found, None) == (line,)


@pytest.mark.parametrize(
    ("at", "size", "told"),
    [
        # Two decimals always, until 0.13; then utils/mem_utils.py, format_gib: round(x, 2).
        ("0.9.2", 10 * GIB, "10.00"),
        ("0.9.2", GIB // 2, "0.50"),
        ("0.13.0", 7_155_000_000, "6.66"),
        ("0.13.0", 1, "0.00"),
        ("0.14.0", 10 * GIB, "10.0"),
        ("0.14.0", GIB // 2, "0.5"),
        ("0.33", 7_155_000_000, "6.66"),
        ("0.33", 1, "0.0"),
    ],
)
def test_gib(at: str, size: int, told: str) -> None:
    assert _gib(size, rules_of(release(at))) == told


@pytest.mark.parametrize(
    ("at", "whose", "gib", "fits", "tail"),
    [
        ("0.9.2", "models's", ("16.00", "10.00"), 81920, _TRY + _OR),
        ("0.12.0", "models's", ("16.00", "10.00"), 81920, _TRY + _OR),
        ("0.13.0", "models's", ("16.00", "10.00"), 81920, _TRY + _OR + _SEE),
        ("0.14.0", "models's", ("16.0", "10.0"), 81920, _TRY + _OR + _SEE),
        ("0.21.0", "models's", ("16.0", "10.0"), 81920, _TRY + _OR + _SEE),
        ("0.22.0", "model's", ("16.0", "10.0"), 81920, _TRY + _CPU + _OR + _SEE),
        ("0.28.0", "model's", ("16.0", "10.0"), 81920, _TRY + _CPU + _OR + _SEE),
        # the null block
        ("0.29.0", "model's", ("16.0", "10.0"), 81904, _TRY + _CPU + _OR + _SEE),
        ("0.33.0", "model's", ("16.0", "10.0"), 81904, _TRY + _CPU + _OR + _SEE),
    ],
)
def test_refusal(at: str, whose: str, gib: tuple[str, str], fits: int, tail: str) -> None:
    """Needed, available, and the length that fits; the parenthesis is never closed."""
    needed, available = gib

    assert _lines(at, 10 * GIB, 131072) == (
        f"Available KV cache memory: {available} GiB",
        (
            f"ValueError: To serve at least one request with the {whose} max seq len (131072),"
            f" ({needed} GiB KV cache is needed, which is larger than the available KV cache memory"
            f" ({available} GiB). Based on the available memory, the estimated maximum model length"
            f" is {fits}. {tail}"
        ),
    )


@pytest.mark.parametrize(
    ("at", "tail"),
    [
        ("0.14.0", _TRY + _OR + _SEE),
        ("0.21.0", _TRY + _OR + _SEE),
        ("0.22.0", _TRY + _CPU + _OR + _SEE),
        ("0.28.0", _TRY + _CPU + _OR + _SEE),
    ],
)
def test_refusal_of_every_length(at: str, tail: str) -> None:
    """Not even one token fits: no length is told."""
    whose = "models's" if at < "0.22" else "model's"

    assert _lines(at, _BLOCK - 1, 131072)[1:] == (
        (
            f"ValueError: To serve at least one request with the {whose} max seq len (131072),"
            " (16.0 GiB KV cache is needed, which is larger than the available KV cache memory"
            f" (0.0 GiB). {tail}"
        ),
    )


def test_refusal_with_a_block_to_spare() -> None:
    """Two blocks, of which one is the null block: sixteen tokens."""
    (told,) = _lines("0.33", 2 * _BLOCK, 131072)[1:]

    assert "the estimated maximum model length is 16." in told
    assert "(0.0 GiB). Based" in told


def test_the_length_in_a_refusal_is_the_longest_that_starts() -> None:
    assert "maximum model length is 81904." in _lines("0.33", 10 * GIB, 131072)[1]
    assert _lines("0.33", 10 * GIB, 81905)[1].startswith("ValueError")
    assert _lines("0.33", 10 * GIB, 81904)[1].startswith("GPU KV cache size: 81,920 tokens")


@pytest.mark.parametrize(
    ("at", "tail"),
    [
        ("0.8.5", "."),
        ("0.9.2", "."),
        ("0.12.0", "."),
        ("0.13.0", "." + _SEE),
        ("0.21.0", "." + _SEE),
        ("0.22.0", _FLAG + "." + _SEE),
        ("0.33", _FLAG + "." + _SEE),
    ],
)
def test_no_available_memory(at: str, tail: str) -> None:
    found = asked(_LLAMA, at, max_model_len=8192)
    told = _too_long(found, found.rank, 0, 0, rules_of(release(at)))

    assert told == (
        "ValueError: No available memory for the cache blocks. Try increasing"
        f" `gpu_memory_utilization` when initializing the engine{tail}"
    )


def test_no_memory_beside_the_null_block() -> None:
    """Since 0.29 a memory of one block is none."""
    told = (
        "ValueError: No available memory for the cache blocks. Try increasing"
        f" `gpu_memory_utilization` when initializing the engine{_FLAG}.{_SEE}"
    )

    assert _lines("0.29.0", _BLOCK, 8192)[1:] == (told,)
    assert _lines("0.33", 100, 8192) == ("Available KV cache memory: 0.0 GiB", told)
    assert "To serve at least one request" in _lines("0.28.0", _BLOCK, 8192)[1]


def test_a_server_that_holds_no_whole_sequence_can_start() -> None:
    """0.14 to 0.18 ask for the first group's blocks alone: concurrency below one is logged."""
    lines = start_up_log(asked("gemma-3-1b", "0.18.0", max_model_len=32768), GIB // 10)

    assert lines[1].startswith("GPU KV cache size: ")
    assert lines[2] == "Maximum concurrency for 32,768 tokens per request: 0.31x"
    later = start_up_log(asked("gemma-3-1b", "0.19.0", max_model_len=32768), GIB // 10)
    assert later[1].startswith("ValueError: To serve at least one request")


def test_stages_log_the_least_of_them() -> None:
    """DeepSeek-V3 over two stages, 31 and 30 layers: the fuller one decides."""
    found = asked("deepseek-v3", max_model_len=8192, pipeline_parallel_size=2)
    blocks = GIB // (31 * 16 * 1152)

    assert start_up_log(found, GIB) == (
        "Available KV cache memory: 1.0 GiB",
        (
            f"GPU KV cache size: {int(blocks / 512 * 8192):,} tokens, Maximum concurrency for 8,192"
            f" tokens per request: {blocks / 512:.2f}x"
        ),
    )


def test_ranks_that_share_a_sequence() -> None:
    """The tokens are those of all of them, whatever a rank keeps."""
    found = asked(
        "deepseek-v3",
        max_model_len=8192,
        tensor_parallel_size=8,
        decode_context_parallel_size=8,
        kv_cache_dtype="fp8",
    )
    blocks = GIB // (61 * 64 * 576)

    assert found.need(8192) == {"blocks": 16}  # 1,024 tokens a rank, 64 a block
    assert start_up_log(found, GIB)[1] == (
        f"GPU KV cache size: {int(blocks / 16 * 8192):,} tokens, Maximum concurrency for 8,192"
        f" tokens per request: {blocks / 16:.2f}x"
    )


def test_other_engines_print_nothing() -> None:
    assert start_up_log(plan(builders.LLAMA_8B, Deployment(max_model_len=8192)), GIB) == ()


def test_every_release_prints_something() -> None:
    for name in COMPARED.split():
        started, refused = _lines(name, 10 * GIB, 8192), _lines(name, 10 * GIB, 131072)
        assert any("81,920 tokens" in line for line in started), name
        assert refused[-1].startswith("ValueError: To serve at least one request"), name
