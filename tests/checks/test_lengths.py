"""Lengths beyond the model's own, and caches in fp8, by what the engine and the card do of them."""

from __future__ import annotations

from typing import Any

import pytest

import kvcalc
from kvcalc.answers.check_report import CheckReport
from tests.checks.builders import by_code, codes, gpus, report_on, server

SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"
YARN = '{"rope_scaling":{"rope_type":"yarn","factor":4.0}}'


def check(command: str, gpu: str = "h200") -> CheckReport:
    return kvcalc.check(command=command, gpu=gpu)


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve Qwen/Qwen3-8B --max-model-len 131072 --hf-overrides '{YARN}'",
        f"{SGLANG} --context-length 131072 --json-model-override-args '{YARN}'",
        "llama-server -m qwen3-8b -c 131072 --rope-scaling yarn --rope-scale 4 -np 1 -ngl 99",
    ],
)
def test_stretched_positions(command: str) -> None:
    """Where positions are stretched the model's own length is no limit."""
    made = check(command)

    assert "length-over-model" not in codes(made)
    assert by_code(made, "fits").status == "pass"


def test_a_variable_lets_it_pass() -> None:
    """The engine's variable lets a longer maximum pass: it is a warning then."""
    long = "vllm serve Qwen/Qwen3-8B --max-model-len 50000"

    assert by_code(check(long), "length-over-model").status == "fail"
    found = by_code(check(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {long}"), "length-over-model")
    assert found.status == "warn"
    assert by_code(check(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {long}"), "fits").status == "pass"
    off = check(f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=0 {long}")
    assert by_code(off, "length-over-model").status == "fail"


FP8: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_model_len": 8192}


@pytest.mark.parametrize("card", ["a100-80gb", "rtx-3090"])
def test_fp8_that_is_stored_alone(card: str) -> None:
    """What the engine takes is no failure; with the cure there is no such finding."""
    found = by_code(report_on(server(gpu=gpus(1, card), **FP8)), "fp8-on-old-card")
    assert found.status == "warn"
    if "--kv-cache-dtype" in found.hint:
        cured = report_on(server(gpu=gpus(1, card), **{**FP8, "kv_cache_dtype": "auto"}))
        assert "fp8-on-old-card" not in codes(cured)


@pytest.mark.parametrize("card", ["l4", "l40s", "h100-80gb", "mi300x"])
def test_fp8_on_other_cards(card: str) -> None:
    """Cards that have it, and those of another maker, are not told."""
    assert "fp8-on-old-card" not in codes(report_on(server(gpu=gpus(1, card), **FP8)))
