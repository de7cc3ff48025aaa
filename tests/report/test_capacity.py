"""A capacity answer as people read it: no two rows alike, nothing that a figure denies."""

from __future__ import annotations

import re

import pytest

from tests.cli.harness import call

LLAMA = ("llama-3.1-8b", "--gpu", "h100-80gb", "--max", "8192")


def shown(*arguments: str) -> list[str]:
    outcome = call("capacity", *arguments)
    assert outcome.code == 0, outcome
    return outcome.out.splitlines()


def labels(lines: list[str]) -> list[str]:
    """Return the first cells of the budget's rows."""
    found = (re.match(r"([wagoc]  [\w',  -]+?)  +[\d,.-]", line) for line in lines)
    return [match[1].strip() for match in found if match]


@pytest.mark.parametrize(
    "arguments",
    [
        (*LLAMA, "--engine", "vllm"),
        ("qwen3.5-27b", "--gpu", "h100-80gb", "--max", "8192", "--engine", "vllm",
         "--engine-arg", "enable_lora=true"),
        ("llama-3.1-70b", "--gpu", "h100-80gb", "--tp", "4", "--engine", "vllm"),
        (*LLAMA, "--engine", "sglang"),
        ("qwen3.5-27b", "--gpu", "h100-80gb", "--max", "8192", "--engine", "sglang"),
        (*LLAMA, "--engine", "tensorrt-llm"),
        (*LLAMA, "--engine", "lmdeploy"),
        (*LLAMA, "--engine", "transformers"),
        (*LLAMA, "--engine", "llama.cpp"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_two_rows_of_a_budget_have_one_name(arguments: tuple[str, ...]) -> None:
    found = labels(shown(*arguments))
    assert "c  cache" in found
    assert len(found) == len(set(found)), found


def test_blocks_stand_side_by_side() -> None:
    lines = shown(*LLAMA, "--engine", "vllm", "--block", "16", "--block", "32")
    head = lines.index("side by side")
    columns = re.split(r"  +", lines[head + 2].strip())
    assert columns[1] == "block"
    rows = [re.split(r" {3,}", line.strip()) for line in lines[head + 4 : head + 6]]
    assert [row[2] for row in rows] == ["16", "32"]
    assert len({tuple(row) for row in rows}) == 2


def test_one_block_needs_no_column() -> None:
    lines = shown(*LLAMA, "--engine", "vllm", "--kv-cache-dtype", "auto", "--kv-cache-dtype", "fp8")
    assert "block" not in re.split(r"  +", lines[2].strip())


def test_a_stage_that_samples_nothing_says_nothing_of_it() -> None:
    text = "\n".join(shown(*LLAMA, "--engine", "vllm", "--pp", "2"))
    assert "0 rows" not in text
    assert "rows of logits" in text


def test_cards_that_are_no_slice_are_not_called_one() -> None:
    assert "MIG" not in "\n".join(shown("llama-3.1-8b", "--gpu", "b300", "--max", "8192"))


def test_one_token_is_one() -> None:
    lines = shown("llama-3.1-8b", "--gpu", "h100-80gb", "--max", "1", "--engine", "vllm")
    assert lines[0].endswith("maximum 1 token")
    own = [line for line in lines if not line.startswith("GPU KV cache size")]  # vLLM's words
    assert not [line for line in own if re.search(r"\b1 (tokens|rows|sequences|slots)\b", line)]


def test_many_at_once_have_no_decimals() -> None:
    lines = shown("llama-3.1-8b", "--gpu", "h100-80gb", "--max", "16", "--engine", "vllm")
    own = [line for line in lines if not line.startswith(("GPU KV cache", "Available KV"))]
    assert not [line for line in own if re.search(r"\d,\d{3}\.\d\d\b", line)]


def test_many_replicas_are_counted_in_thousands() -> None:
    text = "\n".join(shown(*LLAMA, "--engine", "vllm", "--dp", "2000000"))
    assert "2,000,000 replicas" in text


class TestLlamaCpp:
    PART = ("llama-3.1-8b", "--engine", "llama.cpp", "--gpu", "rtx-4090", "-c", "8192", "-ngl",
            "10", "--quantization", "q4_k_m")  # fmt: skip

    def test_what_has_a_row_is_not_called_unknown(self) -> None:
        text = "\n".join(shown(*self.PART))
        assert "not modelled: compute buffers: they" not in text
        assert "the weights are not known" not in text
        assert "not modelled: compute buffers to the byte" in text

    def test_a_gpu_is_named_once(self) -> None:
        lines = shown(*self.PART)
        assert "GPU 0" in lines
        assert not [line for line in lines if "1 GPU" in line]

    def test_the_host_is_no_gpu(self) -> None:
        outcome = call("capacity", *self.PART, "--format", "json")
        (found,) = outcome.results
        assert [budget["num_gpus"] for budget in found["budget"]] == [1, 0]
        assert sum(b["num_gpus"] for b in found["budget"]) == found["deployment"]["num_gpus"]


def test_what_may_not_be_served() -> None:
    """A Yes says at once what is in doubt of it."""
    asked = ("--engine", "tensorrt-llm", "--gpu", "h100-80gb", "--max", "2048")
    (verdict,) = [line for line in shown("mpt-7b", *asked) if line.startswith("Yes")]
    assert " But TensorRT-LLM's PyTorch backend has no MptForCausalLM of its own" in verdict
    assert " But " not in "\n".join(shown("llama-3.1-8b", *asked))
