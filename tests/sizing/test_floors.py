"""Blocks that are too few to start with: every answer follows them, and says what lifts them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvcalc import Deployment, load_model
from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.capacity import capacity
from kvcalc.engines import plan, start_up_log
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from tests.docs.refusals import FOLDER

_GIB = 2**30
_MODEL = load_model(str(FOLDER / "inputs" / "hyb.json"))
_BLOCK = 6 * 1_114_112  # six layers' page of 544 tokens: 4 groups of 6 layers share block ids


def _question(version: str = "0.25.1", **settings: Any) -> Question:
    given = {"engine_version": version, "gpu": load_gpu("h100-80gb"), "max_model_len": 8192}
    return Question(_MODEL, Deployment(engine="vllm", **{**given, **settings}))


def _answer(version: str = "0.25.1", **settings: Any) -> CapacityAnswer:
    return answer(_question(version, **settings))


def _sure(found: CapacityAnswer) -> list[tuple[str, bool]]:
    return [(refusal.code, refusal.sure) for refusal in found.refusals]


@pytest.mark.parametrize(
    ("seqs", "starts"), [(321, True), (322, False), (None, False), (1, True)]
)  # fmt: skip
def test_a_block_for_every_sequence(seqs: int | None, starts: bool) -> None:
    """2 GiB are 321 blocks, the null block counted: as many sequences start, and not one more."""
    found = _answer(kv_cache_memory_bytes=2 * _GIB, max_num_seqs=seqs)

    assert found.num_blocks == 321
    assert (found.fits, found.may_fit) == (starts, starts)
    assert _sure(found) == ([] if starts else [("sequences-over-state-blocks", True)])
    asked = 1024 if seqs is None else seqs
    assert found.verdict.startswith(
        "Yes: "
        if starts
        else f"No: vllm does not start: max_num_seqs {asked:,} is more than the 321"
    )
    assert ("with --max-num-seqs 321 it does" in found.verdict) is not starts


@pytest.mark.parametrize(("memory", "starts"), [(1024 * _BLOCK, True), (1024 * _BLOCK - 1, False)])
def test_to_the_byte(memory: int, starts: bool) -> None:
    """1,024 blocks start with 1,024 sequences, and a byte less does not."""
    assert _answer(kv_cache_memory_bytes=memory).fits is starts
    made = plan(_MODEL, _question().deployment)
    (floor,) = made.floors
    assert (floor.units, floor.pool, floor.setting) == (1024, "blocks", "max_num_seqs")
    assert capacity(made, memory).starts is starts
    assert capacity(made, memory).fits  # one sequence does: vLLM's own check lets it pass


def test_the_log_ends_with_the_engines_words() -> None:
    lines = start_up_log(plan(_MODEL, _question().deployment), 2 * _GIB)
    assert lines[-1].endswith(
        "max_num_seqs (1024) exceeds available Mamba cache blocks (321). Each decode sequence"
        " requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower"
        " max_num_seqs to at most 321 or increase gpu_memory_utilization."
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"enforce_eager": True},
        {"engine_args": {"cudagraph_mode": "none"}},
        {"engine_args": {"cudagraph_mode": "piecewise"}},
        {"version": "0.18.0"},  # graphs are made smaller
        {"version": "0.19.1"},
    ],
)
def test_without_whole_decodes_in_graphs_it_starts(settings: dict[str, Any]) -> None:
    found = _answer(kv_cache_memory_bytes=2 * _GIB, **settings)
    assert found.fits
    assert found.refusals == ()


@pytest.mark.parametrize("mode", ["full", "full_decode_only", "full_and_piecewise"])
def test_modes_with_whole_decodes_are_refused(mode: str) -> None:
    found = _answer(kv_cache_memory_bytes=2 * _GIB, engine_args={"cudagraph_mode": mode})
    assert _sure(found) == [("sequences-over-state-blocks", True)]


_NARROW: dict[str, Any] = {"engine_args": {"limit_mm_per_prompt": '{"image": 0, "video": 0}'}}


def _shared(share: float, **settings: Any) -> CapacityAnswer:
    question = _question(gpu_memory_utilization=share, **_NARROW, **settings)
    return answer(question._replace(weights_bytes=4 * _GIB), with_levers=True)


def test_an_interval_across_the_bound_is_perhaps() -> None:
    """306 to 1,391 blocks for 1,024 sequences: neither a yes nor a no."""
    found = _shared(0.2)
    low, high = found.low.num_blocks, found.high.num_blocks
    assert low is not None
    assert high is not None
    assert low < 1024 <= high
    assert (found.fits, found.may_fit) == (False, True)
    assert _sure(found) == [("sequences-over-state-blocks", False)]
    assert found.verdict.startswith("Perhaps: ")
    cure = f"--max-num-seqs {low}"
    assert cure in found.verdict
    assert _shared(0.2, max_num_seqs=low).fits


def test_an_interval_on_one_side_is_sure() -> None:
    assert _shared(0.3).fits
    assert _sure(_shared(0.16))[0] == ("sequences-over-state-blocks", True)
    assert not _shared(0.16).may_fit


def test_a_maximum_that_is_too_long_as_well_is_lowered_with_it() -> None:
    """All as published on 80 GB: neither 1,024 sequences nor, surely, one of 262,144 tokens."""

    def asked(**settings: Any) -> CapacityAnswer:
        deployment = Deployment(engine="vllm", gpu=load_gpu("h100-80gb"), **settings)
        return answer(Question(load_model("qwen3.5-27b"), deployment))

    found = asked()
    assert _sure(found)[0] == ("sequences-over-state-blocks", True)
    cure = re.search(r"with --max-num-seqs (\d+) --max (\d+) it does", found.verdict)
    assert cure is not None
    seqs, longest = map(int, cure.groups())
    assert asked(max_num_seqs=seqs, max_model_len=longest).fits
    assert not asked(max_num_seqs=seqs).fits
    assert not asked(max_model_len=longest).may_fit


def test_where_nothing_may_be_left_no_cure_is_said() -> None:
    found = _shared(0.15)
    assert found.low.kv_cache_bytes in (None, 0)
    assert found.verdict.endswith("a block for its state.")


def test_what_is_in_the_way_is_said_once() -> None:
    """The verdict says which floor is in the way: no note repeats its condition."""
    condition = "it does not start with fewer than 1,024 blocks (max_num_seqs)"
    assert condition in _shared(0.3).notes
    assert condition not in _shared(0.16).notes
    assert condition not in _shared(0.2).notes


def test_levers_that_lift_it_are_those_that_do() -> None:
    """A lever whose cache still has too few blocks does not fit."""
    levers = answer(_question(kv_cache_memory_bytes=2 * _GIB), with_levers=True).levers
    found = {lever.name: lever for lever in levers}
    assert found["max_num_seqs 321"].figures.fits
    for lever in levers:
        blocks = lever.figures.num_blocks
        eager = lever.name in ("no CUDA graphs", "max_num_seqs 321")
        assert lever.figures.fits is (eager or (blocks is not None and blocks >= 1024)), lever.name


@pytest.mark.parametrize("goal", ["kv-memory", "max-model-len", "max-num-seqs"])
def test_solutions_follow_it(goal: str) -> None:
    """Memory is that of 1,024 blocks; no length helps; so many sequences of the maximum do."""
    found = answer(_question(kv_cache_memory_bytes=2 * _GIB), solve_for=(goal,))
    (solution,) = found.solutions
    if goal == "kv-memory":
        assert solution.value == 1024 * _BLOCK
    elif goal == "max-model-len":
        assert solution.value is None
        assert "max_num_seqs 1,024" in solution.reason
    else:
        assert solution.value == 16
        with_it = _answer(kv_cache_memory_bytes=2 * _GIB, max_num_seqs=16)
        assert with_it.fits
