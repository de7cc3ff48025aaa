"""What llama.cpp cannot allocate: nothing is held, and the longest context that would fit is told.

llama_kv_cache allocates every cell when the context is made (src/llama-kv-cache.cpp); where a
device has less, llama_init_from_model returns nothing and the server does not start.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.harness import call

LLAMA = ("plan", "llama-3.1-8b", "--engine", "llama.cpp")
CELL = 32 * 2 * 8 * 128 * 2
MIB = 2**20


def planned(*words: str) -> tuple[Any, str]:
    outcome = call(*LLAMA, *words, "--format", "json")
    assert outcome.code == 0, outcome
    return outcome.results[0], outcome.err


@pytest.mark.parametrize(
    ("words", "longest"),
    [
        # 500 MiB hold 4,000 cells of 131,072 B, and they come in multiples of 256.
        (("-c", "8192", "--kv-memory", "500MiB"), 3840),
        # Each of four gets a quarter, rounded up: 4 x 768 are 384 MiB, 4 x 1,024 512.
        (("-c", "8192", "--engine-arg", "parallel=4", "--kv-memory", "500MiB"), 768),
        (("--engine-arg", "num_ctx=8192", "--kv-memory", "500MiB"), 3840),
        (("--engine-arg", "n_ctx=8192", "--kv-memory", "500MiB"), 3840),
        (("-c", "8192", "--kv-memory", "20MiB"), 0),
        # 25,757,220,864 B of the card, less 15,009,849,344 of weights, hold 81,995 cells.
        (("-c", "10000000", "--gpu", "rtx-4090", "-ngl", "99"), 81_920),
        (("-c", "800000", "--engine-arg", "device_memory=24GiB", "-ngl", "99"), 81_920),
        (("-c", "800000", "--engine-arg", "device_memory=8GiB", "-ngl", "99"), 0),
    ],
)
def test_what_does_not_fit_holds_nothing(words: tuple[str, ...], longest: int) -> None:
    found, _ = planned(*words)
    start = found["start_up"]

    assert not start["fits"]
    assert (start["kv_cache_tokens"], start["max_concurrency"], start["max_sequences"]) == (0, 0, 0)
    assert start["max_model_len_that_fits"] == longest
    assert found["notes"][0].startswith("the cells that are set come to ")


def test_what_fits_by_the_last_cell() -> None:
    found, _ = planned("-c", "3840", "--kv-memory", str(3840 * CELL))

    assert found["start_up"]["fits"]
    assert found["start_up"]["kv_cache_tokens"] == 3840


def test_devices_and_the_host_apart() -> None:
    """20 of 33 layers, the output one of them: 19 on the card, 13 on the host."""
    found, said = planned("-c", "8192", "--engine-arg", "n_gpu_layers=20")

    assert "figures of GPU 0, which keeps more than the host, at 8,192 tokens" in said
    assert [(rank["name"], rank["num_gpus"]) for rank in found["ranks"]] == [
        ("GPU 0", 1),
        ("host", 0),
    ]
    assert found["num_gpus"] == 1
    _, said = planned("-c", "8192", "--engine-arg", "n_gpu_layers=5")
    assert "figures of the host, which keeps more than the device at 8,192 tokens" in said
    args = ("--engine-arg", "tensor_split=2,1", "--engine-arg", "n_gpu_layers=30")
    _, said = planned("-c", "8192", *args)
    assert "figures of GPU 0 of 2 devices, which keeps more than the host, at" in said


def test_a_budget_is_a_devices() -> None:
    """The host's cache is not held against it; the device's is, and it is named."""
    alone, _ = planned("-c", "8192", "--engine-arg", "n_gpu_layers=0", "--kv-memory", "100MiB")
    assert alone["start_up"]["fits"]
    assert any("104,857,600 B given are a device's" in note for note in alone["notes"])
    args = ("-c", "8192", "--engine-arg", "n_gpu_layers=20", "--kv-memory")
    layer = 8192 * CELL // 32
    enough, _ = planned(*args, str(19 * layer))
    assert enough["start_up"]["fits"]
    less, _ = planned(*args, str(19 * layer - 1))
    assert not less["start_up"]["fits"]
    assert f"come to {19 * layer:,} B on GPU 0, more than the" in less["notes"][0]


SLOTS = ("--engine", "llama.cpp", "-c", "32768", "--engine-arg", "parallel=4")


def test_requests_that_take_turns() -> None:
    """50 requests over four slots of 8,192 cells: 4 GiB are allocated, whoever runs."""
    outcome = call("compare", "llama-3.1-8b", *SLOTS, "--lengths", "50x2000", "--format", "json")
    (found,) = outcome.results

    assert found["at_once"] == {"requests": 4, "allocated_bytes": 4 * 8192 * CELL}
    assert found["paged_total"]["reserved_bytes"] == 50 * 8192 * CELL
    shown = call("compare", "llama-3.1-8b", *SLOTS, "--lengths", "50x2000").out
    assert "reserved in turn" in shown
    assert "4 of the 50 requests run at once, in the 4 GiB that llama.cpp allocates" in shown


def test_requests_that_all_run() -> None:
    outcome = call("compare", "llama-3.1-8b", *SLOTS, "--lengths", "4x2000", "--format", "json")
    assert outcome.results[0]["at_once"] is None
    # One pool of 8,192 cells has room for 2 of 3,000 tokens, though it has four places.
    shared = ("--engine", "llama.cpp", "-c", "8192", "--lengths", "9x3000", "--format", "json")
    (found,) = call("compare", "llama-3.1-8b", *shared).results
    assert found["at_once"] == {"requests": 2, "allocated_bytes": 8192 * CELL}


@pytest.mark.parametrize(("free", "told"), [("4GiB", False), ("50GiB", True)])
def test_free_memory_gives_no_more_places(free: str, told: bool) -> None:
    said = call("frag", "llama-3.1-8b", *SLOTS, "--free", free, "--largest", "3GiB").err
    assert ("llama.cpp has 4 places for sequences" in said) == told
