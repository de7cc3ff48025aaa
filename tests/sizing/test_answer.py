"""Capacity answers with a given cache: the engine's figures, each lever a plain run of its own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.engines.changes import Change
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.lever_changes import lever_changes
from kvcalc.sizing.question import work

_GIB = 2**30


def _question(
    model: str,
    gpu: str | None = "h100-80gb",
    memory: int = 15 * _GIB,
    seqs: int | None = None,
    **more: object,
) -> Question:
    deployment = Deployment(
        engine=str(more.pop("engine", "vllm")),
        gpu=None if gpu is None else load_gpu(gpu),
        kv_cache_memory_bytes=memory,
        max_model_len=8192,
        max_num_seqs=seqs,
    )
    return Question(load_model(model), deployment, **more)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("gpu", "block", "blocks", "tokens", "concurrency"),
    [("h100-80gb", 832, 295, 127_191, 15.53), ("a100-80gb", 784, 313, 150_829, 18.41)],
)
def test_the_figures_of_the_engine(
    gpu: str, block: int, blocks: int, tokens: int, concurrency: float
) -> None:
    """Qwen3.5-27B in 15 GiB at 8,192 tokens, as the real planner of vLLM 0.33 answers."""
    found = answer(_question("qwen3.5-27b", gpu, seqs=256))
    assert (found.block_size, found.num_blocks, found.kv_cache_tokens) == (block, blocks, tokens)
    assert round(found.max_concurrency, 2) == concurrency
    assert found.low == found.high
    assert found.fits
    assert found.verdict == f"Yes: {concurrency:.2f} sequences of 8,192 tokens at once."
    assert f"raised from 16 to {block} tokens" in found.notes[0]


def test_what_is_missing_and_what_would_fit() -> None:
    """As vLLM says it: 16 GiB needed of 10, and 81,904 tokens would fit."""
    deployment = Deployment(
        engine="vllm", gpu=load_gpu("l40s"), kv_cache_memory_bytes=10 * _GIB, max_model_len=131072
    )
    found = answer(Question(load_model("llama-3.1-8b"), deployment))
    assert not found.fits
    assert not found.may_fit
    assert found.max_model_len_that_fits == 81_904
    assert found.missing_bytes == 6 * _GIB + 2 * 2**20  # 16 GiB and the null block
    assert found.verdict.startswith("No: for 1 sequence of 131,072 tokens 6 GiB are missing;")


def test_so_many_sequences_at_once() -> None:
    """15.53 x is 15 whole ones: the goal of 15 is met, of 16 it is not."""
    assert answer(_question("qwen3.5-27b", seqs=256, sequences=15)).fits
    found = answer(_question("qwen3.5-27b", seqs=256, sequences=16))
    assert not found.fits
    enough = 15 * _GIB + found.missing_bytes
    assert answer(_question("qwen3.5-27b", memory=enough, seqs=256, sequences=16)).fits
    short = enough - 1
    assert not answer(_question("qwen3.5-27b", memory=short, seqs=256, sequences=16)).fits


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "lmdeploy"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"])
def test_a_lever_is_a_plain_run_with_its_setting(engine: str, model: str) -> None:
    question = _question(model, gpu=None, engine=engine)  # on no card that is too small for it
    found = answer(question, with_levers=True)
    assert found.levers
    changes = {change.flags: change for change in lever_changes(question, work(question))}
    for refused in found.refused_levers:
        with pytest.raises(KvcalcError, match=re.escape(refused.reason)):
            answer(changes[refused.flags].applied(question))
    for lever in found.levers:
        plain = answer(changes[lever.flags].applied(question))
        assert plain.kv_cache_tokens == lever.figures.kv_cache_tokens
        assert plain.max_concurrency == lever.figures.max_concurrency
        assert plain.max_model_len_that_fits == lever.figures.max_model_len_that_fits
        assert plain.fits == lever.figures.fits  # no bounds: the cache is given
        assert lever.concurrency_gain is None or lever.concurrency_gain > 1


def test_levers_come_in_the_order_of_what_they_gain() -> None:
    levers = answer(_question("qwen3.5-27b", seqs=256), with_levers=True).levers
    gains = [lever.concurrency_gain for lever in levers if lever.concurrency_gain is not None]
    assert gains == sorted(gains, reverse=True)
    (caching,) = (lever for lever in levers if lever.name == "no prefix caching")
    assert caching.flags == ("--no-enable-prefix-caching",)
    assert caching.figures.kv_cache_tokens == 183_149  # as vLLM logs it


def test_a_change_that_is_already_there_is_no_lever() -> None:
    question = Change("cache in fp8", {"kv_cache_dtype": "fp8"}).applied(_question("llama-3.1-8b"))
    assert "cache in fp8" not in [v.name for v in answer(question, with_levers=True).levers]


def test_layouts_of_the_same_gpus() -> None:
    """MLA's latent is kept by every tensor rank: replicas of fewer ranks keep more."""
    question = _question("deepseek-v3", gpu=None)
    deployment = Change("", {"tensor_parallel_size": 8}).applied(question).deployment
    ways = answer(question._replace(deployment=deployment), with_layouts=True).layouts
    found = {way.name: way for way in ways}
    assert found["1 x TP8"].duplication_factor == 8
    assert found["8 x 1 GPU"].duplication_factor == 1
    assert found["8 x 1 GPU"].kv_cache_tokens == 8 * found["1 x TP8"].kv_cache_tokens
    assert found["1 x TP8, DCP8"].kv_cache_tokens > 7 * found["1 x TP8"].kv_cache_tokens
    assert all(way.figures is not None or way.why_not for way in ways)


def test_all_replicas_together() -> None:
    question = _question("llama-3.1-8b")
    deployment = Change("", {"data_parallel_size": 4}).applied(question).deployment
    found = answer(question._replace(deployment=deployment))
    assert found.deployment.replicas == 4
    assert found.deployment.kv_cache_tokens == 4 * found.kv_cache_tokens
    assert found.verdict.endswith("at once on each of 4 replicas.")


def test_groups_of_attention_add_up_however_they_are_said() -> None:
    """SGLang's DP attention: groups of the same GPUs hold requests of their own."""
    ways: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"tensor_parallel_size": 8, "data_parallel_size": 4}, {"enable_dp_attention": True}),
        ({"tensor_parallel_size": 8}, {"enable_dp_attention": True, "dp_size": 4}),
        ({}, {"tp_size": 8, "attn_dp_size": 4}),
    )
    question = _question("llama-3.1-8b")
    asked = []
    for settings, args in ways:
        change = Change("", {"engine": "sglang", **settings}, args)
        asked.append(answer(change.applied(question), with_layouts=True))

    first = asked[0]
    assert (first.deployment.num_gpus, first.deployment.replicas) == (8, 4)
    assert first.deployment.kv_cache_tokens == 4 * first.kv_cache_tokens
    for found in asked[1:]:
        assert found.deployment == first.deployment
        assert [way.name for way in found.layouts] == [way.name for way in first.layouts]


def test_other_lengths_and_requests() -> None:
    from kvcalc.core.lengths import Lengths

    load = ("a trace", Lengths.of([200, 1200]))
    found = answer(_question("llama-3.1-8b", lengths=(4096,), workload=load))
    at, requests = found.at
    assert at.max_concurrency == at.low == at.high == 30.0
    assert requests.workload == "a trace"
    assert requests.max_concurrency == pytest.approx(7679 * 2 / 88)  # blocks of 16: 13 + 75


def test_no_memory_is_refused() -> None:
    question = Question(load_model("llama-3.1-8b"), Deployment(engine="vllm"))
    with pytest.raises(UsageError, match="needs memory"):
        answer(question)


def test_the_command_of_the_engine() -> None:
    question = _question("llama-3.1-8b")
    told = answer(question, suggest=True).suggested
    assert told == (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
        " --kv-cache-memory-bytes 16106127360"
    )


def test_what_is_taken_of_the_host() -> None:
    """llama.cpp: 4 B for each of 128,256 words and each sequence; 32 checkpoints; 8,192 MiB."""
    deployment = Deployment(
        engine="llama.cpp", gpu=load_gpu("h100-80gb"), engine_args={"ctx_size": 8192, "parallel": 2}
    )
    found = answer(Question(load_model("gemma-3-27b"), deployment))
    host = {part.name: part for part in found.host}
    assert host["prompt cache"].high_bytes == 8192 * 2**20
    assert host["context checkpoints"].high_bytes == 2 * 32 * 436_221_184
    swapping = Deployment(
        engine="vllm", engine_version="0.6.4", gpu=load_gpu("h100-80gb"), tensor_parallel_size=2,
        kv_cache_memory_bytes=_GIB, max_model_len=4096,
    )  # fmt: skip
    parts = {p.name: p for p in answer(Question(load_model("llama-3.1-8b"), swapping)).host}
    assert parts["swap space"].low_bytes == 8 * _GIB
