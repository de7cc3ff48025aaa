"""The goal: so many sequences at once, with room and run; its one meaning in every figure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.engines.changes import Change, changed
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.question import work
from kvcalc.sizing.solve import solve

_GIB = 2**30
_MODELS = ("llama-3.1-8b", "gemma-3-27b", "qwen3.5-27b", "gpt-oss-20b", "jamba-v0.1")
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "transformers", "none")


def _question(engine: str = "vllm", **more: Any) -> Question:
    model = load_model(more.pop("model", "llama-3.1-8b"))
    asked = {name: more.pop(name) for name in ("sequences", "free_bytes") if name in more}
    gpu = more.pop("gpu", None)
    more.setdefault("max_model_len", 8192)
    deployment = Deployment(engine=engine, gpu=None if gpu is None else load_gpu(gpu), **more)
    return Question(model, deployment, **asked)


questions = st.builds(
    _question,
    st.sampled_from(_ENGINES),
    model=st.sampled_from(_MODELS),
    kv_cache_memory_bytes=st.integers(2**22, 64 * _GIB),
    max_model_len=st.integers(1, 32768),
    sequences=st.integers(1, 300),
)


def _answered(question: Question) -> CapacityAnswer | None:
    try:
        return answer(question)
    except KvcalcError:
        return None


@settings(max_examples=80, deadline=None)
@given(questions)
def test_one_meaning(question: Question) -> None:
    """`fits` is the goal's at the top as below, more are never easier, and the longest fits."""
    found = _answered(question)
    if found is None:
        return
    assert (found.fits, found.may_fit) == (found.low.fits, found.high.fits)
    assert found.fits == found.verdict.startswith("Yes: ")
    assert found.may_fit == (not found.verdict.startswith("No: "))
    assert not found.fits or found.max_sequences >= question.sequences
    assert not found.fits or found.max_model_len_that_fits == found.max_model_len
    more = _answered(question._replace(sequences=question.sequences + 1))
    assert more is not None
    assert found.fits or not more.fits
    assert more.max_model_len_that_fits <= found.max_model_len_that_fits


@settings(max_examples=60, deadline=None)
@given(questions)
def test_what_is_missing_would_do(question: Question) -> None:
    """With the missing bytes the goal is met, and with one byte less it is not."""
    found = _answered(question)
    if found is None or found.fits or not found.missing_bytes:
        return
    deployment = question.deployment
    enough = (deployment.kv_cache_memory_bytes or 0) + found.missing_bytes
    for memory, fits in ((enough, True), (enough - 1, False)):
        asked = changed(deployment, {"kv_cache_memory_bytes": memory}, {})
        assert answer(question._replace(deployment=asked)).fits == fits


@settings(max_examples=40, deadline=None)
@given(questions, st.integers(2, 5))
def test_replicas_share_the_goal(question: Question, replicas: int) -> None:
    """The goal of all replicas is that of one, rounded up."""
    if question.deployment.engine in ("none", "transformers"):
        return
    both = Change("", {"data_parallel_size": replicas}).applied(question)
    found = _answered(both)
    if found is None:
        return
    each = answer(question._replace(sequences=-(-question.sequences // replicas)))
    assert found.low == each.low
    assert found.missing_bytes == each.missing_bytes


@pytest.mark.parametrize(
    ("engine", "settings", "args", "name"),
    [
        ("vllm", {"max_num_seqs": 4}, {}, "max_num_seqs"),
        ("sglang", {}, {"max_running_requests": 4}, "max_running_requests"),
        ("tensorrt-llm", {"max_num_seqs": 4}, {}, "max_batch_size"),
        ("lmdeploy", {"max_num_seqs": 4}, {}, "max_batch_size"),
        ("llama.cpp", {"max_model_len": None}, {"parallel": 4, "ctx_size": 32768}, "parallel"),
    ],
)
def test_places_bind(
    engine: str, settings: dict[str, Any], args: dict[str, Any], name: str
) -> None:
    """However much memory there is, no more run at once than the engine lets."""
    memory = {"kv_cache_memory_bytes": 64 * _GIB}
    four = _question(engine, sequences=4, engine_args=args, **{**memory, **settings})
    assert answer(four).fits
    found = answer(four._replace(sequences=5))
    assert not found.fits
    assert not found.may_fit
    assert found.missing_bytes == 0
    assert found.verdict.endswith(f"and no more than 4 run at once ({name}), whatever the memory.")
    assert solve(four._replace(sequences=5), "kv-memory").value is None


def test_what_runs_is_told_beside_the_room() -> None:
    found = answer(_question(kv_cache_memory_bytes=16 * _GIB, max_num_seqs=4))
    assert found.verdict == (
        "Yes: 4 sequences of 8,192 tokens run at once (max_num_seqs), and the cache has room for"
        " 15."
    )  # vLLM logs 16.00, its null block counted
    assert found.max_concurrency > 4  # as vLLM logs it, which counts the cache alone


@pytest.mark.parametrize(
    ("engine", "version", "longest"), [("vllm", "0.16.0", 8176), ("vllm-ascend", None, 8064)]
)
def test_a_check_that_passes_is_not_enough(engine: str, version: str | None, longest: int) -> None:
    """512 blocks of 16 tokens (64 of 128) pass for 8,192, and one of them is the null block."""
    found = answer(_question(engine, engine_version=version, kv_cache_memory_bytes=_GIB))
    assert found.low.starts
    assert not found.fits
    assert found.max_sequences == 0
    assert found.max_model_len_that_fits == longest
    assert found.verdict.startswith("No: it starts, for its check counts what no sequence can")
    solved = solve(
        _question(engine, engine_version=version, kv_cache_memory_bytes=_GIB), "max-model-len"
    )
    assert solved.value == longest


def test_what_the_settings_fix_is_not_missing_bytes() -> None:
    found = answer(_question(gpu="h100-80gb", num_gpu_blocks_override=100, model="llama-3.1-8b"))
    assert found.missing_bytes == 0
    assert found.verdict.startswith("No: what the settings fix has no room for 1 sequence of")


def test_the_longest_context_is_expected_between_its_bounds() -> None:
    """A cache that the settings size: each of the three ends is planned for itself.

    Where the layers are given, none of them makes room by moving to the host.
    """
    args: dict[str, Any] = {"ctx_size": 200_000, "n_gpu_layers": 99}
    found = answer(_question("llama.cpp", gpu="rtx-4090", max_model_len=None, engine_args=args))
    longest = [one.max_model_len_that_fits for one in (found.low, found.high)]
    assert longest[0] < found.max_model_len_that_fits < longest[1]


def test_a_server_s_groups_share_its_requests() -> None:
    """SGLang's max_running_requests is one for all groups: a solution is a whole number each."""
    question = _question(
        "sglang", gpu="h100-80gb", tensor_parallel_size=4,
        engine_args={"enable_dp_attention": True, "dp_size": 4},
    )  # fmt: skip
    found = solve(question, "max-num-seqs")
    assert isinstance(found.value, int)
    assert found.value % 4 == 0
    args = {"max_running_requests": found.value}
    asked = question._replace(
        deployment=changed(question.deployment, {}, args), sequences=found.value
    )
    assert answer(asked).fits


@pytest.mark.parametrize("gpu", ["mi300x", "m2-ultra-192gb"])
@pytest.mark.parametrize("engine", ["lmdeploy", "tensorrt-llm", "vllm", "sglang"])
def test_cards_without_cuda(engine: str, gpu: str) -> None:
    """No answer by rules that are those of CUDA cards."""
    with pytest.raises(UnsupportedError, match="no CUDA card"):
        answer(_question(engine, gpu=gpu))


def test_a_cache_that_never_fits_is_not_searched_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights beyond the card leave no length to look for, and halves are tried below the least."""
    from kvcalc.sizing.solve import searches

    tried: list[Question] = []

    def counted(question: Question) -> Any:
        tried.append(question)
        return work(question)

    monkeypatch.setattr(searches, "work", counted)
    args: dict[str, Any] = {"ctx_size": 8192, "n_gpu_layers": 99}
    question = _question("llama.cpp", model="gemma-3-27b", gpu="rtx-4090", max_model_len=None,
                         engine_args=args)  # fmt: skip
    assert answer(question).max_model_len_that_fits == 0
    assert not tried
    assert solve(question, "max-model-len").value is None
    assert len(tried) < 25
