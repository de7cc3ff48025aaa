"""The share of a card, from the least that holds the goal to the most that leaves room."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.engines import engine_of
from kvcalc.engines.changes import share_change
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.question import work
from kvcalc.sizing.solve import solve

_GIB = 2**30
_MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen2.5-32b", "gpt-oss-20b", "qwen3-1.7b")
_CARDS = ("h100-80gb", "l40s", "rtx-4090", "b200")
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy")

questions = st.builds(
    lambda model, gpu, engine, version, sequences, longest, free: Question(
        load_model(model),
        Deployment(
            engine=engine,
            engine_version=version if engine == "vllm" else None,
            gpu=load_gpu(gpu),
            max_model_len=longest,
        ),
        sequences=sequences,
        free_bytes=None if free is None else load_gpu(gpu).memory_bytes * free // 100,
    ),
    st.sampled_from(_MODELS),
    st.sampled_from(_CARDS),
    st.sampled_from(_ENGINES),
    st.sampled_from((None, "0.16.0")),
    st.integers(1, 64),
    st.integers(64, 32768),
    st.sampled_from((None, 20, 50, 90)),
)


def _with(question: Question, share: float) -> Question:
    return share_change(str(engine_of(question.deployment.engine).share), share).applied(question)


def _surely(question: Question, share: float) -> bool:
    """Whether a plain run with a share surely meets the goal."""
    try:
        return 0 < share <= 1 and bool(answer(_with(question, share)).fits)
    except KvcalcError:
        return False


def _perhaps(question: Question, share: float) -> bool:
    try:
        return 0 < share <= 1 and bool(answer(_with(question, share)).may_fit)
    except KvcalcError:
        return False


@settings(max_examples=60, deadline=None)
@given(questions)
def test_both_ends_are_exact(question: Question) -> None:
    """From the least to the most each share holds; a thousandth below or above does not."""
    try:
        found = solve(question, "gpu-memory-utilization")
    except KvcalcError:
        return
    for low, high, holds in (
        (found.value, found.up_to, _surely),
        (found.possible, found.possible_up_to, _perhaps),
    ):
        if low is None:
            assert high is None
            assert not any(holds(question, step / 50) for step in range(1, 51))
            continue
        assert high is not None
        assert low <= high
        for share in (low, (round((low + high) * 500)) / 1000, high):
            assert holds(question, share)
        assert not holds(question, round(low - 0.001, 3))
        assert not holds(question, round(high + 0.001, 3))


@pytest.mark.parametrize("engine", _ENGINES)
def test_each_engine_has_an_interval(engine: str) -> None:
    """On an H100 one sequence of 8,192 tokens of Llama-3.1-8B has room, and its default share."""
    deployment = Deployment(engine=engine, gpu=load_gpu("h100-80gb"), max_model_len=8192)
    found = solve(Question(load_model("llama-3.1-8b"), deployment), "gpu-memory-utilization")
    default = {"vllm": 0.92, "sglang": 0.83, "tensorrt-llm": 0.9, "lmdeploy": 0.8}[engine]
    assert found.value is not None
    assert found.up_to is not None
    assert found.value < default <= found.up_to
    assert found.up_to < 1  # something always lies beside it


def test_sglang_s_own_reckoning_does_not_bound_its_share() -> None:
    """What it reckons with for steps and graphs is generous: what a start takes bounds the share.

    512 MiB, 1.5 MiB for each of 8,192 tokens, 128 MiB for a rank, 512 MiB for graphs of decoding
    and 8 MiB for each of 58 of prefill: 13,904 MiB, of which a start of 8B takes some.
    """
    deployment = Deployment(engine="sglang", gpu=load_gpu("h100-80gb"), max_model_len=8192)
    question = Question(load_model("llama-3.1-8b"), deployment)
    for share in (0.3, 0.5, 0.9):
        outside = work(_with(question, share)).memory[0].outside
        taken = sum(term.high_bytes for term in outside)
        assert 2 * _GIB < taken < 13_904 * 2**20 / 2
    assert _surely(question, 0.93)
    assert not _surely(question, 0.99)
    assert not _surely(question, 1.0)


def test_a_goal_that_is_never_run_has_no_share() -> None:
    deployment = Deployment(
        engine="vllm", gpu=load_gpu("h100-80gb"), max_model_len=1024, max_num_seqs=4
    )
    question = Question(load_model("llama-3.1-8b"), deployment, sequences=5)
    found = solve(question, "gpu-memory-utilization")
    assert (found.value, found.up_to) == (None, None)
    assert found.reason.startswith("no more than 4 run at once (max_num_seqs)")


@pytest.mark.parametrize(
    ("engine", "more"), [("llama.cpp", {}), ("transformers", {}), ("vllm", {"gpu": None})]
)
def test_where_there_is_no_share(engine: str, more: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"gpu": load_gpu("h100-80gb"), "kv_cache_memory_bytes": _GIB, **more}
    question = Question(load_model("llama-3.1-8b"), Deployment(engine=engine, **settings))
    with pytest.raises(UnsupportedError):
        solve(question, "gpu-memory-utilization")
