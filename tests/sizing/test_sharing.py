"""A card that is not a server's alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from kvcalc.answers.capacity import Figures
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.figures import figures
from kvcalc.sizing.lever_changes import lever_changes
from kvcalc.sizing.question import work
from kvcalc.sizing.sharing import largest_share, one_of_several, refused
from kvcalc.sizing.solve import solved

_GIB = 2**30


def _question(engine: str = "vllm", share: float | None = None, count: int = 2) -> Question:
    deployment = Deployment(engine=engine, gpu_memory_utilization=share)
    return Question(load_model("llama-3.1-8b"), deployment, instances=count)


def _memory(total: int, share: int, **more: Any) -> MemoryBudget:
    return MemoryBudget(
        total_bytes=total,
        share_bytes=(share, share),
        share_source="a rule",
        terms=(),
        seen_bytes=(total, total),
        checks_share=True,
        **more,
    )


def test_servers_divide_the_share() -> None:
    question, notes = one_of_several(_question(count=3))
    assert question.deployment.gpu_memory_utilization == 0.306  # 0.92 / 3, in thousandths
    assert notes[0].startswith("each of 3 servers has gpu_memory_utilization 0.306:")


def test_one_server_is_asked_as_it_stands() -> None:
    question = _question(count=1)
    assert one_of_several(question) == (question, ())


def test_shares_of_more_than_the_card_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"2 servers .* 0\.6 each take 1\.2 of the card"):
        one_of_several(_question(share=0.6))
    question, _ = one_of_several(_question(share=0.5))
    assert question.deployment.gpu_memory_utilization == 0.5


def test_an_engine_whose_share_is_of_what_is_free() -> None:
    with pytest.raises(UnsupportedError, match="sglang"):
        one_of_several(_question("sglang"))


def test_the_release_says_what_its_share_is() -> None:
    """0.9 up to 0.19, 0.92 from 0.20 on."""
    question = _question(count=3)
    older = msgspec.structs.replace(question.deployment, engine_version="0.19.1")
    asked, _ = one_of_several(question._replace(deployment=older))
    assert asked.deployment.gpu_memory_utilization == 0.3
    found = answer(_on_card("vllm", instances=2))
    assert "what is left of 0.46 of the card" in found.convention[-1]


@pytest.mark.parametrize("free", [80 * _GIB, 72 * _GIB, 72 * _GIB - 1, 10 * _GIB, 1])
@pytest.mark.parametrize("servers", [1, 2, 7])
@pytest.mark.parametrize("before", [0, _GIB])
def test_the_largest_share_that_starts(free: int, servers: int, before: int) -> None:
    """The share that is told surely starts in what is free; a thousandth more does not."""
    context = (Term(name="context", low_bytes=0, high_bytes=before, source="a rule"),)
    asked = {"free_bytes": free, "servers": servers, "before": context}
    step = round(largest_share(_memory(80 * _GIB, 72 * _GIB, **asked)) * 1000)
    for each, fits in ((step, True), (step + 1, False)):
        share = -(-80 * _GIB * each // 1000)
        if each and share <= 80 * _GIB:
            assert (_memory(80 * _GIB, share, **asked).shortfall("low") <= 0) == fits


def test_what_others_hold() -> None:
    gpu = load_gpu("h100-80gb")
    memory = _memory(80 * _GIB, 72 * _GIB)
    assert refused(memory, gpu, "low") is None
    assert refused(msgspec.structs.replace(memory, free_bytes=72 * _GIB), gpu, "low") is None
    short = refused(msgspec.structs.replace(memory, free_bytes=72 * _GIB - 1), gpu, "high")
    assert short is not None
    assert short.missing_bytes == 1
    assert short.why.endswith("the largest share that surely does is 0.899")


def _on_card(engine: str, share: float | None = None, **more: Any) -> Question:
    gpu = load_gpu(more.pop("gpu", "h100-80gb"))
    args = more.pop("args", {})
    deployment = Deployment(
        engine=engine, gpu=gpu, max_model_len=8192, gpu_memory_utilization=share, engine_args=args
    )
    return Question(load_model("llama-3.1-8b"), deployment, **more)


_TAKES_OF_WHAT_IS_FREE: dict[str, dict[str, Any]] = {
    "sglang": {"mem_fraction_static": 0.8},
    "tensorrt-llm": {"free_gpu_memory_fraction": 0.8},
    "lmdeploy": {"cache_max_entry_count": 0.8},
    "transformers": {},
    "llama.cpp": {"fit": False},
    "exllamav3": {},
}


@pytest.mark.parametrize("engine", _TAKES_OF_WHAT_IS_FREE)
def test_a_part_of_what_is_free(engine: str) -> None:
    """Each GiB that others hold costs the cache the engine's own part of a GiB, and no start."""
    args = _TAKES_OF_WHAT_IS_FREE[engine]
    part = Fraction(str(next(iter(args.values()), 1))) if engine != "llama.cpp" else Fraction(1)
    caches = [work(_on_card(engine, args=args, free_bytes=free * _GIB)).low for free in (50, 51)]
    (less,), (more,) = caches  # type: ignore[misc]  # budgets of one rank each
    assert abs(more - less - part * _GIB) <= 1
    assert answer(_on_card(engine, args=args, free_bytes=50 * _GIB)).high.starts


def test_a_part_of_a_card_that_is_not_free() -> None:
    """Transformers' paged cache takes what others hold for free, and allocating it fails."""
    question = _on_card("transformers", args={"cache_implementation": "paged"}, gpu="l4")
    question = question._replace(model=load_model("qwen3-1.7b"))
    assert answer(question).low.starts
    found = answer(question._replace(free_bytes=10 * _GIB))
    assert not found.may_fit
    assert found.verdict.endswith("are free, and it runs out of memory as it starts.")


def test_a_share_of_the_card_must_be_free() -> None:
    """A vLLM takes all of its share or does not start: what is free beyond it changes nothing."""
    free, tight = (answer(_on_card("vllm", 0.5, free_bytes=n * _GIB)) for n in (60, 39))
    assert free.low == answer(_on_card("vllm", 0.5)).low
    assert not tight.fits
    assert not tight.may_fit
    assert tight.verdict.startswith("No: others hold 40.65 GiB of the card: ")
    assert tight.missing_bytes > 0
    assert "shares up to 0.478 surely start" in tight.notes[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp"])
def test_what_is_free_reaches_levers_and_solutions(engine: str) -> None:
    """A lever pulled, and a value put in, are plain runs on the same part of the card."""
    question = _on_card(engine, free_bytes=40 * _GIB, sequences=2)
    alone = answer(_on_card(engine, sequences=2))
    found = answer(question, with_levers=True, solve_for=("max-num-seqs", "max-model-len"))
    changes = {change.flags: change for change in lever_changes(question, work(question))}
    for lever in found.levers:
        assert lever.figures == _middle(changes[lever.flags].applied(question))
    assert alone.low.kv_cache_bytes is None or found.low != alone.low
    most, longest = (solved(question, one) for one in ("max-num-seqs", "max-model-len"))
    assert most.solution.value == found.solutions[0].value
    for one in (most, longest):
        if one.change is not None:
            goal = int(one.solution.value or 0) if one is most else 2
            asked = one.change.applied(question)._replace(sequences=goal)
            assert answer(asked).fits


def _middle(question: Question) -> Figures:
    done = work(question)
    return figures(done, "middle")


def test_llama_cpp_fits_into_what_is_free() -> None:
    """The fit goes by free memory: device_memory is what others leave of the card."""
    told = _on_card("llama.cpp", args={"device_memory": f"{12 * _GIB} B"}, gpu="rtx-4090")
    free = _on_card("llama.cpp", gpu="rtx-4090", free_bytes=12 * _GIB)
    assert work(free) == work(told)


def test_more_free_than_there_is() -> None:
    with pytest.raises(InvalidValueError, match="free of"):
        answer(_on_card("vllm", free_bytes=81 * _GIB))


def test_several_servers_divide_what_is_free() -> None:
    """Two shares of 36.46 GiB and the contexts of both, of 0.25 to 1.05 GiB each."""
    for free, surely, perhaps in ((73, False, False), (74, False, True), (76, True, True)):
        found = answer(_on_card("vllm", 0.46, instances=2, free_bytes=free * _GIB))
        assert (found.low.starts, found.high.starts) == (surely, perhaps)


def test_a_cache_beyond_the_card() -> None:
    """A cache that is given is questioned: alone, and with the weights beside it."""
    question = _on_card("vllm")
    for size, why in (
        (200, "No: a cache of 200 GiB is more than the 79.26 GiB of h100-80gb."),
        (70, "No: a cache of 70 GiB and at least 15.8"),
    ):
        deployment = msgspec.structs.replace(question.deployment, kv_cache_memory_bytes=size * _GIB)
        found = answer(question._replace(deployment=deployment))
        assert not found.fits
        assert not found.may_fit
        assert found.missing_bytes > 0
        assert found.verdict.startswith(why)
    deployment = msgspec.structs.replace(question.deployment, kv_cache_memory_bytes=50 * _GIB)
    assert answer(question._replace(deployment=deployment)).fits
    assert not answer(
        question._replace(deployment=deployment, free_bytes=64 * _GIB)
    ).fits  # 0.92 of the card is asked for all the same


@pytest.mark.parametrize(
    ("more", "settings", "said"),
    [
        ({"weights_bytes": 10**9, "quantization": "fp8"}, {}, "quantization fp8 plays no part"),
        ({}, {"kv_cache_memory_bytes": _GIB, "gpu_memory_utilization": 0.5}, "0.5 plays no part"),
        ({"free_bytes": _GIB}, {"kv_cache_memory_bytes": _GIB, "gpu": None}, "none is named"),
        ({"quantization": "fp8"}, {"kv_cache_memory_bytes": _GIB, "gpu": None}, "the weights play"),
    ],
)
def test_what_plays_no_part_is_said(
    more: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    question = _on_card("vllm", **more)
    plain = answer(_on_card("vllm"))
    deployment = msgspec.structs.replace(question.deployment, **settings)
    found = answer(question._replace(deployment=deployment))
    assert any(said in line for line in found.notes)
    assert not any("plays no part" in line for line in plain.notes)


def _on(gpu: str, share: float, length: int) -> Question:
    deployment = Deployment(
        engine="vllm", gpu=load_gpu(gpu), gpu_memory_utilization=share, max_model_len=length
    )
    return Question(load_model("llama-3.1-8b"), deployment)


def test_a_perhaps_gets_the_share_that_makes_it_a_yes() -> None:
    """A lower share gains no token, and takes the doubt away."""
    found = answer(_on("l40s", 0.99, 8192), with_levers=True)
    assert found.verdict.startswith("Perhaps")
    lever = next(each for each in found.levers if "--gpu-memory-utilization" in each.flags)
    share = float(lever.flags[1])
    assert share < 0.99
    assert lever.tokens_gained < 0
    assert lever.caution == "the largest share that surely starts"
    assert answer(_on("l40s", share, 8192)).fits
    assert not answer(_on("l40s", round(share + 0.001, 3), 8192)).fits


def test_a_share_that_starts_and_holds_too_little_is_told_so() -> None:
    found = answer(_on("rtx-4090", 1.0, 131072), with_levers=True)
    (lever,) = (each for each in found.levers if "--gpu-memory-utilization" in each.flags)
    longest = lever.figures.max_model_len_that_fits
    assert not lever.figures.fits
    assert lever.caution == f"passes the share check; holds {longest:,} tokens"
    assert "no single setting that was tried is enough" in found.notes
    enough = answer(_on("rtx-4090", 1.0, 8192), with_levers=True)
    assert any(each.figures.fits for each in enough.levers)
    assert "no single setting that was tried is enough" not in enough.notes


def test_a_command_under_perhaps_says_so() -> None:
    """Of what was asked for and of what was solved for, a doubt is a comment."""
    for solve_for in ((), ("gpu-memory-utilization",), ("max-model-len",)):
        found = answer(_on("l40s", 0.99, 8192), suggest=True, solve_for=solve_for)
        assert found.suggested is not None
        assert any(
            "if everything beside the cache takes its least" in each
            for each in found.suggested_notes
        )
    sure = answer(_on("l40s", 0.9, 8192), suggest=True, solve_for=("gpu-memory-utilization",))
    assert not any("takes its least" in each for each in sure.suggested_notes)
