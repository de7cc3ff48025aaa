"""One meaning of surely: it holds with everything at its most, within the share and beside it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import MemoryBudget, Term
from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change, changed
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.question import work
from kvcalc.sizing.sharing import one_of_several
from kvcalc.sizing.solve import solved

_GIB = 2**30
_MODELS = ("llama-3.1-8b", "gemma-3-27b", "gpt-oss-20b", "qwen3-1.7b")
_CARDS = ("h100-80gb", "l40s", "rtx-4090", "t4")
_ENGINES = ("vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp")


def _question(engine: str = "vllm", gpu: str = "h100-80gb", **more: Any) -> Question:
    model = load_model(more.pop("model", "llama-3.1-8b"))
    names = ("sequences", "free_bytes", "instances", "weights_bytes", "lengths")
    asked = {name: more.pop(name) for name in names if name in more}
    more.setdefault("max_model_len", 8192)
    return Question(model, Deployment(engine=engine, gpu=load_gpu(gpu), **more), **asked)


def _any(
    engine: str, share: float | None, given: int | None, free: int | None, **more: Any
) -> Question:
    gpu = load_gpu(more["gpu"])
    name = engine_of(engine).share
    if share is not None and name == "gpu_memory_utilization":
        more[name] = share
    elif share is not None and name is not None:
        more["engine_args"] = {name: share}
    if given is not None:
        more["kv_cache_memory_bytes"] = gpu.memory_bytes * given // 100
    if free is not None:
        more["free_bytes"] = gpu.memory_bytes * free // 100
    if engine != "vllm":
        more["instances"] = 1
    return _question(engine, **more)


questions = st.builds(
    _any,
    st.sampled_from(_ENGINES),
    st.sampled_from((None, 0.3, 0.6, 0.9, 0.96, 0.99, 1.0)),
    st.sampled_from((None, None, 10, 40, 70, 95)),
    st.sampled_from((None, None, 30, 60, 90, 100)),
    gpu=st.sampled_from(_CARDS),
    model=st.sampled_from(_MODELS),
    max_model_len=st.integers(256, 32768),
    sequences=st.sampled_from((1, 1, 2, 7)),
    instances=st.sampled_from((1, 1, 2)),
)


def _answered(question: Question) -> CapacityAnswer | None:
    try:
        return answer(question)
    except KvcalcError:
        return None


def _parts(memory: MemoryBudget) -> tuple[Term, ...]:
    return (*memory.terms, *memory.before, *memory.outside)


@settings(max_examples=150, deadline=None)
@given(questions)
def test_surely_is_with_everything_at_its_most(question: Question) -> None:
    """Yes: whatever each term takes of its span, the servers' parts are no more than the card."""
    found = _answered(question)
    if found is None or not found.may_fit:
        return
    question, _ = one_of_several(question)
    done = work(question)
    assert found.fits == done.meets("low")
    for one in done.cards:
        if one.seen_bytes is None:
            continue
        for seen, share in zip(one.seen_bytes, one.share_bytes, strict=True):
            there = seen if question.free_bytes is None else min(seen, question.free_bytes)
            most = sum(term.high_bytes for term in _parts(one))
            inside = sum(term.high_bytes for term in one.terms)
            part, whole = one.cache_part
            cache = one.given_bytes
            if cache is None:
                cache = max(0, share - inside) * part // whole
            if found.fits:
                assert (cache + most) * question.instances <= there


@settings(max_examples=100, deadline=None)
@given(questions)
def test_the_verdict_says_what_the_figures_say(question: Question) -> None:
    found = _answered(question)
    if found is None:
        return
    assert (found.fits, found.may_fit) == (found.low.fits, found.high.fits)
    assert found.fits == found.verdict.startswith("Yes: ")
    assert found.may_fit == (not found.verdict.startswith("No: "))
    assert not found.fits or found.may_fit
    assert not found.fits or found.missing_bytes == 0
    assert bool(found.missing_bytes) >= (found.may_fit and not found.fits)
    assert not found.fits or found.low.max_model_len_that_fits == found.max_model_len
    if not found.high.starts and not found.high.max_model_len_that_fits:
        assert not any("KV cache size" in line for line in found.log)


@settings(max_examples=80, deadline=None)
@given(questions)
def test_the_headline_promises_what_sequences_grants(question: Question) -> None:
    """The whole number in a Yes is answered Yes, however the engine's log counts."""
    found = _answered(question)
    if found is None or not found.fits:
        return
    words = found.verdict.removeprefix("Yes: ").split()
    promised = int(words[0].partition(".")[0].replace(",", "")) * question.holders
    if promised >= 1:
        assert answer(question._replace(sequences=promised)).fits


@settings(max_examples=120, deadline=None)
@given(questions)
def test_what_is_missing_makes_it_fit(question: Question) -> None:
    """As much more in the cache and on the card: enough, and a byte less is not."""
    found = _answered(question)
    if found is None or found.fits or not found.missing_bytes:
        return
    done = work(question)
    if not done.memory or not done.cards or done.barred is not None:
        return
    if any(one.given_bytes is not None for one in done.cards) or question.instances > 1:
        return

    def grown(budget: MemoryBudget, more: int) -> tuple[MemoryBudget, int]:
        """A card with so much more, first for the cache and then for what lies beside it."""
        wanted = found.missing_bytes - max(0, budget.shortfall("low"))
        cache = min(more, wanted)
        room = more - cache
        return msgspec.structs.replace(
            budget,
            seen_bytes=tuple(n + room for n in budget.seen_bytes or (0, 0)),
            free_bytes=None if budget.free_bytes is None else budget.free_bytes + room,
        ), cache

    for more, fits in ((found.missing_bytes, True), (found.missing_bytes - 1, False)):
        if len(done.cards) != 1:
            return
        card, cache = grown(done.cards[0], more)
        (low,) = done.low if isinstance(done.low, tuple) else (done.low or 0,)
        asked = done._replace(cards=(card,), low=(low + cache,))
        assert asked.meets("low") == fits


def _plainly(question: Question, change: Change) -> str:
    try:
        found = answer(change.applied(question))
    except KvcalcError:
        return "refused"
    return "yes" if found.fits else "perhaps" if found.may_fit else "no"


@settings(max_examples=60, deadline=None)
@given(questions, st.sampled_from(("max-model-len", "gpu-memory-utilization", "kv-memory")))
def test_a_plain_run_at_a_solution_is_yes(question: Question, setting: str) -> None:
    """And at its neighbour it is not; where nothing is sure, what is possible is Perhaps."""
    try:
        question, _ = one_of_several(question)
        one = solved(question, setting)
    except KvcalcError:
        return
    if one.solution.value is not None:
        assert one.change is not None
        assert _plainly(question, one.change) == "yes"
    steps = {"max-model-len": 1, "gpu-memory-utilization": -0.001, "kv-memory": -1}
    value = one.solution.value
    if one.change is None or value is None:
        return
    if value == question.model.max_position_embeddings and setting == "max-model-len":
        return
    near = round(value + steps[setting], 3) if setting.startswith("gpu") else value + steps[setting]
    field = {"max-model-len": "max_model_len", "kv-memory": "kv_cache_memory_bytes"}.get(setting)
    if field is None:
        name = str(engine_of(question.deployment.engine).share)
        own = name == "gpu_memory_utilization"
        beside = Change("", {name: near} if own else {}, {} if own else {name: near})
        beside = beside._replace(settings={"kv_cache_memory_bytes": None, **beside.settings})
    elif question.deployment.engine == "llama.cpp" and setting == "max-model-len":
        return  # tests/sizing/test_solve.py: by its own settings
    else:
        beside = Change("", {field: near})
    if near > 0:
        assert _plainly(question, beside) != "yes"


@settings(max_examples=40, deadline=None)
@given(questions)
def test_a_budget_adds_up_to_the_card(question: Question) -> None:
    """With its terms at their most as with their least: nothing of a card is nowhere."""
    found = _answered(question)
    if found is None:
        return
    for one in found.budget:
        inside = [term for term in one.terms if not term.outside]
        most, least = sum(t.high_bytes for t in inside), sum(t.low_bytes for t in inside)
        ends = zip(
            (most, least),
            one.cache_bytes,
            one.left_bytes,
            one.share_bytes,
            one.beside_bytes,
            strict=True,
        )
        for terms, cache, left, share, beside in ends:
            assert terms + cache + left == share
            assert share + beside == one.total_bytes


@settings(max_examples=25, deadline=None)
@given(questions, st.integers(1, 2))
def test_the_columns_of_levers_subtract(question: Question, replicas: int) -> None:
    if question.deployment.engine != "llama.cpp":
        question = Change("", {"data_parallel_size": replicas}).applied(question)
    try:
        found = answer(question, with_levers=True)
    except KvcalcError:
        return
    before = found.deployment
    assert found.levers or found.refused_levers or any("buys any" in line for line in found.notes)
    for lever in found.levers:
        assert lever.kv_cache_tokens - lever.tokens_gained == before.kv_cache_tokens
        if lever.concurrency_gain is not None:
            gained = lever.max_concurrency / before.max_concurrency
            assert lever.concurrency_gain == pytest.approx(gained)
        assert lever.figures.starts or lever.figures.kv_cache_tokens
        assert lever.figures.fits or lever.max_concurrency > before.max_concurrency


def test_counted_blocks_must_be_on_the_card() -> None:
    """As many are made as num_gpu_blocks_override says, and no check compares them with a card."""
    for size in (None, 4 * _GIB):
        asked = _question("vllm", "l40s", num_gpu_blocks_override=100_000,
                          kv_cache_memory_bytes=size)  # fmt: skip
        found = answer(asked)
        assert found.verdict == "No: a cache of 195.3 GiB is more than the 44.53 GiB of l40s."
        assert found.missing_bytes > 150 * _GIB
    few = answer(_question("vllm", "l40s", num_gpu_blocks_override=8192))
    assert few.fits
    assert few.kv_cache_tokens == 8192 * 16


def test_a_given_cache_beside_the_most_of_the_rest() -> None:
    """29 GiB and 15.3 to 18 GiB of the rest on 44.5 GiB: perhaps, as it is with a share of 0.99."""
    for settings_ in ({"kv_cache_memory_bytes": 29 * _GIB}, {"gpu_memory_utilization": 0.99}):
        found = answer(_question("vllm", "l40s", **settings_), solve_for=("kv-memory",))
        assert (found.fits, found.may_fit) == (False, True)
        assert "1,026 MiB of KV cache on each GPU" in found.verdict
        assert " As asked: Perhaps: " in found.verdict
        assert any(line.endswith("a start may run out of memory") for line in found.notes)
    (solution,) = answer(
        _question("vllm", "l40s", sequences=28), solve_for=("kv-memory",)
    ).solutions
    assert (solution.value, solution.possible) == (None, 28 * _GIB + 2 * 2**20)
    assert "up to" in solution.reason


def test_the_share_is_checked_where_bytes_are_given_too() -> None:
    """request_memory asks for the share before anything is loaded, whatever the cache gets."""
    for more in ({"gpu_memory_utilization": 1.0}, {"free_bytes": 66 * _GIB}):
        for size in (None, _GIB + 2**21):
            found = answer(_question("vllm", kv_cache_memory_bytes=size, **more))
            assert found.verdict.startswith("No: ")
            assert found.log == ()


def test_shares_that_fill_the_card_leave_no_room() -> None:
    """Two of 0.5 are one of 1.0: the contexts of both have to be somewhere."""
    assert answer(_question("vllm", gpu_memory_utilization=0.5, instances=2)).high.starts is False
    assert answer(_question("vllm", gpu_memory_utilization=0.48, instances=2)).fits


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_share_that_is_named_starts(count: int) -> None:
    """Of what others leave, each of several servers has the share that is told, and no larger."""
    free = 66 * _GIB
    tight = answer(_question("vllm", gpu_memory_utilization=1 / count, instances=count,
                             free_bytes=free, max_model_len=256))  # fmt: skip
    share = float(tight.notes[2 if count > 1 else 0].split("up to ")[1].split()[0])
    for each, starts in ((share, True), (round(share + 0.001, 3), False)):
        asked = _question("vllm", gpu_memory_utilization=each, instances=count, free_bytes=free,
                          max_model_len=256)  # fmt: skip
        assert answer(asked).low.starts == starts
    if count == 1:
        assert share == 0.819  # (66 - 1.05) of 79.26 GiB


def test_servers_on_a_card_share_the_goal() -> None:
    """--sequences counts those of all servers, as it does those of all replicas."""
    one = answer(_question("vllm", gpu_memory_utilization=0.46))
    both = answer(_question("vllm", instances=2, sequences=2 * one.low.max_sequences))
    assert both.fits
    assert both.deployment.max_concurrency == pytest.approx(2 * both.max_concurrency)
    assert both.deployment.num_gpus == 1
    more = answer(_question("vllm", instances=2, sequences=2 * one.low.max_sequences + 1))
    assert not more.fits


def test_a_maximum_beyond_the_model() -> None:
    """Two engines refuse it unless a variable lets it pass; the longest is the model's own."""
    for engine, switch in (
        ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
    ):
        found = answer(_question(engine, max_model_len=131_073))
        assert found.verdict.startswith("No: 131,073 tokens are more than the 131,072 that")
        assert switch in found.verdict
        assert found.max_model_len_that_fits == 131_072
        assert (found.missing_bytes, found.log) == (0, ())
        allowed = _question(engine, max_model_len=131_073, engine_args={switch: 1})
        assert answer(allowed).fits
        assert switch in (answer(allowed, suggest=True).suggested or "")
    assert answer(_question("llama.cpp", max_model_len=131_073)).fits  # which warns of it


def test_a_length_beyond_the_maximum_is_told() -> None:
    found = answer(_question(lengths=(8192, 100_000)))
    (line,) = [line for line in found.notes if "no request of" in line]
    assert "100,000" in line


@pytest.mark.parametrize(
    ("settings", "sequences", "setting", "said"),
    [
        ({"free_bytes": 66 * _GIB}, 1, "gpus", "others hold"),
        ({"free_bytes": 66 * _GIB}, 1, "tp", "others hold"),
        ({"free_bytes": 66 * _GIB}, 1, "max-model-len", "others hold"),
        ({}, 2000, "max-model-len", "no more than 1,024 run at once"),
        ({}, 2000, "gpus", "no more than 1,024 run at once"),
        ({}, 2000, "tp", "no more than 1,024 run at once"),
        ({"num_gpu_blocks_override": 100}, 1, "gpu-memory-utilization", "the settings fix"),
        ({"gpu_memory_utilization": 1.0}, 1, "max-num-seqs", "the share leaves 0 B"),
    ],
)
def test_the_reason_is_what_stands_in_the_way(
    settings: dict[str, Any], sequences: int, setting: str, said: str
) -> None:
    one = solved(_question("vllm", sequences=sequences, **settings), setting).solution
    assert one.value is None
    assert said in one.reason


def test_slots_that_are_too_few_are_no_lack_of_memory() -> None:
    args = {"parallel": 4, "ctx_size": 32768}
    asked = _question("llama.cpp", max_model_len=None, engine_args=args, sequences=8)
    one = solved(asked, "ngl").solution
    assert one.value is None
    assert "no more than 4 run at once (parallel)" in one.reason


@pytest.mark.parametrize(
    "args",
    [
        {"ctx_size": 65536, "parallel": 2},
        {"parallel": 2},
        {"ctx_size": 16384, "parallel": 2, "kv_unified": True},
        {"ctx_size": 8192, "parallel": 1},
    ],
)
def test_llama_cpps_slots_keep_their_length(args: dict[str, Any]) -> None:
    """-c is the context of all slots: more of them need more of it, or each is shorter."""
    length = None if "ctx_size" in args else 32768
    asked = _question("llama.cpp", "rtx-4090", max_model_len=length, engine_args=args)
    before = work(asked).plan.max_model_len
    one = solved(asked, "max-num-seqs")
    assert isinstance(one.solution.value, int)
    assert one.change is not None
    then = one.change.applied(asked)._replace(sequences=one.solution.value)
    assert work(then).plan.max_model_len == before
    assert answer(then).fits
    more = changed(
        then.deployment, {},
        {"parallel": one.solution.value + 1, "ctx_size": before * (one.solution.value + 1)},
    )  # fmt: skip
    asked = then._replace(deployment=more, sequences=one.solution.value + 1)
    assert not answer(asked._replace(may_move=work(then).plan.moved_bytes)).fits


def test_levers_help_where_nothing_starts() -> None:
    """The cure of a setting that is the trouble comes first; of none, more GPUs do."""
    found = answer(_question("vllm", gpu_memory_utilization=1.0), with_levers=True)
    assert found.levers[0].figures.fits
    assert any("0.98" in " ".join(lever.flags) for lever in found.levers)
    assert not found.refused_levers  # what does not change the share cannot help
    given_too = _question("vllm", gpu_memory_utilization=1.0, kv_cache_memory_bytes=2 * _GIB)
    (first, *_) = answer(given_too, with_levers=True).levers
    assert first.flags == ("--gpu-memory-utilization", "0.986")
    few = answer(_question("vllm", num_gpu_blocks_override=100), with_levers=True)
    names = {lever.name: lever for lever in few.levers}
    assert names["without num_gpu_blocks_override"].figures.fits
    assert names["without num_gpu_blocks_override"].flags == ()
    crowded = answer(_question("vllm", max_num_seqs=4, sequences=8), with_levers=True)
    assert any(lever.flags == ("--max-num-seqs", "8") for lever in crowded.levers)
    huge = answer(_question("vllm", model="llama-3.1-405b"), with_levers=True)
    (lever,) = [lever for lever in huge.levers if lever.figures.fits]
    assert lever.name.endswith("GPUs of a replica")
    (gpus,) = answer(_question("vllm", model="llama-3.1-405b"), solve_for=("gpus",)).solutions
    assert lever.name.startswith(f"{gpus.value} ")


@pytest.mark.parametrize("engine", _ENGINES)
@pytest.mark.parametrize("gpu", ["t4", "l4", "rtx-4090", "l40s", "a100-40gb", "h100-80gb", "b200"])
def test_no_default_is_perhaps_for_what_lies_beside(engine: str, gpu: str) -> None:
    """A tool that doubts every plain start would be of no use: the engines' defaults leave room."""
    done = work(_question(engine, gpu, model="qwen3-1.7b", max_model_len=4096))
    assert done.runs("low")
    assert done.meets("low")
