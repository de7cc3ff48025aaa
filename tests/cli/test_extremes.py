"""No value is too large: it is answered in no time, or refused in a line."""

from __future__ import annotations

import sys

import pytest

from tests.cli.harness import ROOT, call, is_fault, python


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the processor and the memory")
@pytest.mark.parametrize("seed", [1, 2])
def test_random_extremes(seed: int) -> None:
    outcome = python("-m", "tests.cli.extremes", str(seed), "120", cwd=ROOT)
    assert (outcome.code, outcome.out) == (0, ""), outcome


@pytest.mark.parametrize(
    "more",
    [
        ("--levers",),
        ("--layouts",),
        ("--suggest",),
        ("--solve", "gpu-memory-utilization"),
        ("--gpu-free", "100MiB", "--levers"),
        ("--engine", "sglang", "--levers"),
        ("--engine", "lmdeploy", "--levers"),
    ],
)
@pytest.mark.parametrize("memory", ["1B", "250MiB", "1GiB"])
def test_a_gpu_that_the_driver_fills(memory: str, more: tuple[str, ...]) -> None:
    """Nothing is left of so small a GPU, and no share of it starts."""
    asked = ("capacity", "llama-3.1-8b", "--gpu", "l4", "--gpu-memory", memory, "--max", "1024")
    outcome = call(*asked, *more, "-f", "json")
    if outcome.code == 2:
        assert "100 MiB" in is_fault(outcome) or "1 B" in is_fault(outcome)
        return
    assert outcome.code == 0, outcome.err
    assert outcome.results[0]["fits"] is False


@pytest.mark.parametrize("engine", ["none", "vllm", "sglang", "llama.cpp", "tensorrt-llm"])
@pytest.mark.parametrize(
    ("flag", "value", "most"),
    [
        ("--pp", "2147483647", 256),
        ("--pp", "10000000", 256),
        ("--pp", "257", 256),
        ("--tp", "10000000", 1024),
        ("--dcp", "1025", 1024),
    ],
)
def test_more_ranks_than_there_are(engine: str, flag: str, value: str, most: int) -> None:
    words = ("plan", "gpt-oss-20b", "--engine", engine, "--gpu", "l4", flag, value)
    assert f"not a whole number from 1 to {most}" in is_fault(call(*words))


@pytest.mark.parametrize("name", ["tp_size", "pp_size"])
def test_so_in_an_engines_own_words(name: str) -> None:
    words = ("plan", "gpt-oss-20b", "--engine", "sglang", "--gpu", "l4")
    assert name in is_fault(call(*words, "--engine-arg", f"{name}=10000000"))


def test_more_layers_than_there_are() -> None:
    words = ("plan", "--kv-heads", "8", "--head-dim", "128", "--engine", "vllm", "--gpu", "l4")
    assert "from 1 to 10000" in is_fault(call(*words, "--layers", "100000000"))
    assert call(*words, "--layers", "10000").code == 0


def test_layouts_of_too_many() -> None:
    words = ("capacity", "llama-3.1-8b", "--gpu", "l4", "--dp", "2147483647", "--layouts")
    assert "too many to try" in is_fault(call(*words))
