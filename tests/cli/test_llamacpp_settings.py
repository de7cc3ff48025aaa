"""llama.cpp's and ollama's own settings from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.harness import call, is_fault

LLAMA = ("plan", "llama-3.1-8b", "--engine", "llama.cpp")
CELL = 32 * 2 * 8 * 128 * 2


def arguments(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--engine-arg", setting)]


def one(*words: str) -> Any:
    outcome = call(*LLAMA, *words, "--format", "json")
    assert outcome.code == 0, outcome
    return outcome.results[0]


def pool(found: Any) -> tuple[int, int]:
    """Return the cells and bytes of the one cache."""
    (rank,) = found["ranks"]
    (cache,) = rank["pools"]
    return cache["units"], cache["total_bytes"]


class TestOllama:
    """ollama starts `llama-server -c num_ctx x parallel -np parallel` (llm/llama_server.go)."""

    def test_as_its_server_is_started(self) -> None:
        """OLLAMA_NUM_PARALLEL=2 OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0, flash on."""
        found = one(
            *arguments(
                "OLLAMA_NUM_PARALLEL=2",
                "OLLAMA_CONTEXT_LENGTH=8192",
                "OLLAMA_KV_CACHE_TYPE=q8_0",
                "OLLAMA_FLASH_ATTENTION=1",
            )
        )
        assert (found["kv_cache_dtype"], found["max_model_len"]) == ("q8_0", 8192)
        # q8_0 packs 32 elements of 2 B into 34.
        assert pool(found) == (2 * 8192, 2 * 8192 * CELL // 64 * 34)
        note = "ollama starts llama-server with -c 16384 -np 2: a cache of 8,192 tokens each"
        assert note in found["notes"]

    def test_the_model_files_num_ctx_comes_before_the_servers(self) -> None:
        found = one(
            *arguments("num_ctx=5000", "OLLAMA_CONTEXT_LENGTH=8192", "OLLAMA_NUM_PARALLEL=3")
        )
        assert pool(found) == (3 * 5120, 3 * 5120 * CELL)

    def test_defaults(self) -> None:
        """One sequence; 4,096 tokens on a card below 23 GiB, 32,768 below 47, else 262,144."""
        for card, length in (("l4", 4096), ("l40s", 32768), ("h100-80gb", 131072)):
            found = one("--gpu", card, *arguments("OLLAMA_NUM_PARALLEL=1"))
            assert pool(found)[0] == length

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (arguments("OLLAMA_FLASH_ATTENTION=0", "OLLAMA_KV_CACHE_TYPE=q8_0"), "needs flash"),
            (["-c", "8192", *arguments("OLLAMA_NUM_PARALLEL=2")], "beside ollama's settings"),
            (arguments("num_ctx=0"), "num_ctx is 0"),
            (["--max", "8192", *arguments("num_ctx=4096")], "do not agree"),
        ],
    )
    def test_refusals(self, words: list[str], said: str) -> None:
        assert said in is_fault(call(*LLAMA, *words))


class TestTotalAndSequence:
    """`--max` is one sequence, `-c` all of them together."""

    def test_they_agree(self) -> None:
        found = one("--max", "4096", "-c", "8192", "-np", "2")
        assert found == one("-c", "8192", "-np", "2")
        assert pool(found)[0] == 8192
        # What is rounded up is still what was asked for.
        assert pool(one("--max", "2500", "-c", "5000", "-np", "2"))[0] == 2 * 2560
        # In one pool a sequence may have all of it.
        shared = one("--max", "8192", "-c", "8192", "-np", "2", *arguments("kv_unified=true"))
        assert pool(shared)[0] == 8192

    @pytest.mark.parametrize(
        ("words", "total", "sequence"),
        [
            (["--max", "8192", "-c", "8192", "-np", "2"], "16,384", "4,096"),
            (["--max", "4096", "-c", "32768", "-np", "2"], "8,192", "16,384"),
            (["--max", "4096", "-c", "8192"], "4,096", "8,192"),
        ],
    )
    def test_they_do_not(self, words: list[str], total: str, sequence: str) -> None:
        """The hint tells what each of them would mean for the other."""
        outcome = call(*LLAMA, *words)
        assert "do not agree" in is_fault(outcome)
        (hint,) = outcome.hints
        assert f"one sequence (ctx_size {total})" in hint
        assert f"the total (max_model_len {sequence})" in hint


class TestDevices:
    def test_which_layer_lies_where(self) -> None:
        """Two cards of a list: layers go by the memory told, each of 436,224,000 B."""
        found = one("-c", "8192", "-np", "1", *arguments("device_memory=30GiB,10GiB"))
        assert [rank["name"] for rank in found["ranks"]] == ["GPU 0", "GPU 1"]
        assert [rank["pools"][0]["layers"] for rank in found["ranks"]] == [25, 7]
        assert [rank["weights_bytes"] for rank in found["ranks"]] == [
            25 * 436_224_000,
            7 * 436_224_000 + 1_050_681_344,
        ]
        assert (
            "layers and weights by device: GPU 0 layers 0 to 24, 10,905,600,000 B of weights; GPU 1"
            " layers 25 to 31, the output, 4,104,249,344 B of weights; host 1,050,673,152 B of"
            " weights"
        ) in found["notes"]
