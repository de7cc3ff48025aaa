"""Solved layouts are those that engines' documents name; every other is there for who asks."""

from __future__ import annotations

import re

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.solve import solve

_USUAL = {(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (1, 8), (16, 1)}
_USUAL |= {(8, nodes) for nodes in range(2, 9)}
_MODELS = (
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "deepseek-v3", "gemma-3-27b"),
    *("gpt-oss-20b", "qwen2.5-7b"),
)


def _question(model: str, gpu: str, engine: str = "vllm", *, all_layouts: bool = False) -> Question:
    deployment = Deployment(engine=engine, gpu=load_gpu(gpu), max_model_len=8192)
    return Question(load_model(model), deployment, all_layouts=all_layouts)


def _layout(flags: tuple[str, ...]) -> tuple[int, int]:
    sizes = dict(zip(flags[::2], flags[1::2], strict=True))
    return int(sizes.get("--tp", 1)), int(sizes.get("--pp", 1))


@pytest.mark.parametrize("gpu", ["t4", "l40s"])
@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "lmdeploy"])
def test_only_usual_layouts(engine: str, model: str, gpu: str) -> None:
    found = solve(_question(model, gpu, engine), "gpus")
    if found.value is None:
        return
    tp, pp = _layout(found.flags)
    assert (tp, pp) in _USUAL
    assert found.value == tp * pp
    alone = solve(_question(model, gpu, engine), "tp")
    assert alone.value in (None, 1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("model", "gpu"), [("llama-3.1-405b", "l40s"), ("llama-3.1-70b", "t4"), ("deepseek-v3", "l40s")]
)
def test_others_are_there_for_who_asks(model: str, gpu: str) -> None:
    """Of all splits none takes more GPUs, and none over fewer GPUs holds it."""
    usual = solve(_question(model, gpu), "gpus").value
    every = solve(_question(model, gpu, all_layouts=True), "gpus")
    assert isinstance(every.value, int)
    assert isinstance(usual, int)
    assert every.value <= usual
    question = _question(model, gpu)
    for count in range(1, every.value):
        for tp in range(1, count + 1):
            if count % tp == 0:
                deployment = Deployment(
                    engine="vllm",
                    gpu=load_gpu(gpu),
                    max_model_len=8192,
                    tensor_parallel_size=tp,
                    pipeline_parallel_size=count // tp,
                )
                try:
                    held = answer(question._replace(deployment=deployment)).fits
                except KvcalcError:
                    continue  # which the engine refuses
                assert not held


def test_llama_cpp_takes_as_many_devices_as_there_are() -> None:
    deployment = Deployment(
        engine="llama.cpp", gpu=load_gpu("rtx-4090"), engine_args={"ctx_size": 32768}
    )
    question = Question(load_model("llama-3.1-70b"), deployment, quantization="q4_k_m")
    found = solve(question, "gpus")
    assert (found.value, _layout(found.flags)) == (3, (1, 3))


def test_heads_that_do_not_divide_by_a_node() -> None:
    """28 heads: four tensor ranks, and two stages of them in each node."""
    found = solve(_question("qwen2.5-7b", "t4")._replace(sequences=160), "gpus")
    assert found.value is None or _layout(found.flags)[0] <= 4


def test_the_solution_is_said_first() -> None:
    for setting, said in (
        ("gpus", "Needs 4 x l40s (--tp 4): 1 sequence of 8,192 tokens fits. As asked: No:"),
        ("tp", "Needs tensor parallel 4 (--tp 4): 1 sequence of 8,192 tokens fits. As asked"),
        ("max-model-len", "No length fits: "),
        ("gpu-memory-utilization", "No share of the GPU is right: "),
    ):
        verdict = answer(_question("llama-3.1-70b", "l40s"), solve_for=(setting,)).verdict
        assert verdict.startswith(said), verdict
    small = _question("llama-3.1-8b", "l4")
    for setting, said in (
        ("max-model-len", r"Up to ([\d,]+) tokens \(--max \d+\): 1 sequence of that length fits\."),
        ("max-num-seqs", r"Up to 3 sequences of 8,192 tokens at once \(--max-num-seqs 3\)\."),
        (
            "gpu-memory-utilization",
            r"gpu_memory_utilization 0\.8\d* to 0\.9\d*: 1 sequence of 8,192",
        ),
        ("kv-memory", r"Needs 1,026 MiB of KV cache on each GPU \(--kv-memory 1075838976\): 1 seq"),
    ):
        verdict = answer(small, solve_for=(setting,)).verdict
        assert re.match(said, verdict), verdict
        assert " As asked: Yes: " in verdict
