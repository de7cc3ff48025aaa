"""Each solution is the exact inverse: it holds, and one more (or one less) does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.engines.changes import changed
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.solve import solve

_GIB = 2**30
_MODELS = ("llama-3.1-8b", "gemma-3-27b", "deepseek-v3", "qwen3.5-27b", "gpt-oss-20b", "jamba-v0.1")
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "none")


def _question(model: str, engine: str, memory: int, longest: int, sequences: int) -> Question:
    deployment = Deployment(
        engine=engine,
        gpu=None,  # the cache is given, and no card is too small for the weights beside it
        kv_cache_memory_bytes=memory,
        max_model_len=longest,
    )
    return Question(load_model(model), deployment, sequences=sequences)


def _fits(question: Question, settings: dict[str, Any], **more: Any) -> bool:
    asked = question._replace(deployment=changed(question.deployment, settings, {}), **more)
    try:
        return bool(answer(asked).fits)
    except KvcalcError:
        return False


questions = st.builds(
    _question,
    st.sampled_from(_MODELS),
    st.sampled_from(_ENGINES),
    st.integers(2**24, 64 * _GIB),
    st.integers(1, 32768),
    st.integers(1, 40),
)


@settings(max_examples=60, deadline=None)
@given(questions)
def test_the_longest_length(question: Question) -> None:
    found = _solved(question, "max-model-len")
    if found is None:
        assert not _fits(question, {"max_model_len": 1})
        return
    assert _fits(question, {"max_model_len": found})
    if found != question.model.max_position_embeddings:
        assert not _fits(question, {"max_model_len": found + 1})


@settings(max_examples=60, deadline=None)
@given(questions)
def test_the_memory(question: Question) -> None:
    found = _solved(question, "kv-memory")
    if found is None:
        return
    assert _fits(question, {"kv_cache_memory_bytes": found})
    assert found == 1 or not _fits(question, {"kv_cache_memory_bytes": found - 1})


@settings(max_examples=30, deadline=None)
@given(questions)
def test_the_sequences(question: Question) -> None:
    found = _solved(question, "max-num-seqs")
    if found is None:
        return
    for count, expected in ((found, True), (found + 1, False)):
        args = {"max_running_requests": count} if question.deployment.engine == "sglang" else {}
        own = {} if args or question.deployment.engine == "none" else {"max_num_seqs": count}
        deployment = changed(question.deployment, own, args)
        asked = question._replace(deployment=deployment, sequences=count)
        assert _holds(asked) == expected


@settings(max_examples=15, deadline=None)
@given(questions)
def test_the_ranks(question: Question) -> None:
    found = _solved(question, "tp")
    for size in range(1, (found or 64) + 1):
        assert _fits(question, {"tensor_parallel_size": size}) == (size == found)


def _holds(question: Question) -> bool:
    try:
        return bool(answer(question).fits)
    except KvcalcError:
        return False


def _solved(question: Question, setting: str) -> Any:
    try:
        return solve(question, setting).value
    except KvcalcError:
        return None


def test_a_solution_says_why_it_goes_no_further() -> None:
    question = _question("llama-3.1-8b", "vllm", 10 * _GIB, 8192, 1)
    found = solve(question, "max-model-len")
    assert (found.value, found.possible) == (81_904, 81_904)
    assert found.flags == ("--max", "81904")
    assert found.reason == "one token more does not fit"
    roomy = _question("llama-3.1-8b", "vllm", 60 * _GIB, 8192, 1)
    assert solve(roomy, "max-model-len").reason == "the model was made for no more"


def test_layers_on_the_card_are_llama_cpps() -> None:
    with pytest.raises(UnsupportedError, match=r"llama\.cpp's"):
        solve(_question("llama-3.1-8b", "vllm", _GIB, 8192, 1), "ngl")


contexts = st.builds(
    lambda model, memory, slots, unified: Question(
        load_model(model),
        Deployment(
            engine="llama.cpp",
            gpu=load_gpu("rtx-4090").with_memory(memory),
            engine_args={
                "ctx_size": 4096 * slots,
                "parallel": slots,
                "kv_unified": unified,
                "fit": False,
            },
        ),
    ),
    st.sampled_from(("llama-3.1-8b", "qwen2.5-14b", "gemma-3-27b")),
    st.integers(8 * _GIB, 64 * _GIB),
    st.integers(1, 4),
    st.booleans(),
)


def _on_card(question: Question, args: dict[str, Any]) -> bool:
    return _holds(question._replace(deployment=changed(question.deployment, {}, args)))


@settings(max_examples=15, deadline=None)
@given(contexts)
def test_layers_on_the_card(question: Question) -> None:
    found = _solved(question, "ngl")
    if found is None:
        assert not _on_card(question, {"n_gpu_layers": 0})
        return
    assert _on_card(question, {"n_gpu_layers": found})
    if found <= question.model.num_hidden_layers:
        assert not _on_card(question, {"n_gpu_layers": found + 1})


@settings(max_examples=10, deadline=None)
@given(contexts)
def test_the_longest_context(question: Question) -> None:
    from kvcalc.sizing.solve.lengths import of_length

    found = _solved(question, "max-model-len")
    if found is None:
        return
    assert _on_card(question, of_length(question, found).args)
    if found != question.model.max_position_embeddings:
        assert not _on_card(question, of_length(question, found + 1).args)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(("llama-3.1-8b", "gemma-3-27b", "qwen2.5-32b", "gpt-oss-20b")),
    st.sampled_from(("h100-80gb", "l40s", "rtx-4090", "b200")),
    st.integers(1, 8),
    st.integers(1, 32768),
)
def test_the_share_of_the_card(model: str, gpu: str, sequences: int, longest: int) -> None:
    deployment = Deployment(engine="vllm", gpu=load_gpu(gpu), max_model_len=longest)
    question = Question(load_model(model), deployment, sequences=sequences)
    found = _solved(question, "gpu-memory-utilization")
    if found is None:
        assert not _fits(question, {"gpu_memory_utilization": 1.0})
        return
    assert _fits(question, {"gpu_memory_utilization": found})
    less = round(found - 0.001, 3)
    assert less <= 0 or not _fits(question, {"gpu_memory_utilization": less})
