"""A question turned round: the value of one setting with which the goal is met, and no further.

Each search ends between a value that was tried and holds and its neighbour that was tried and does
not, so that the answer is exact whatever lies in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvcalc.core.answers import Solution
from kvcalc.core.capacity import holds, smallest_budget
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.core.search import first_that, last_that
from kvcalc.core.units import format_bytes, format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.engines import plan
from kvcalc.sizing.changes import SHARES, Change, changed, share_change
from kvcalc.sizing.question import Question, Worked, work

__all__ = ["SETTINGS", "longest_planned", "of_length", "solve"]

_MOST_GPUS = 64
_MOST_SEQUENCES = 1 << 20
_STEPS = 1000
"""Shares of a card are tried in thousandths."""

_SURE_CONTEXT = 256  # as many cells as llama.cpp has sequences at most

_Fits = Callable[[Any], bool]


def solve(question: Question, setting: str) -> Solution:
    """Return the value of a setting with which the goal is met.

    The goal is `question.sequences` sequences of the maximum at once. A value is sure where it
    holds with the least that may be left for the cache, possible with the most.

    Raises:
        UnsupportedError: the engine has no such setting.
    """
    return SETTINGS[setting](question)


def _goal(worked: Worked, question: Question, *, sure: bool) -> bool:
    return holds(worked.plan, worked.low if sure else worked.high, question.sequences)


def _tried(question: Question, change: Change, *, sure: bool) -> bool:
    """Whether the goal is met with a change; False where the engine refuses it."""
    asked = change.applied(question)
    try:
        return _goal(work(asked), asked, sure=sure)
    except KvcalcError:
        return False


def _largest(fits: _Fits, high: int, low: int = 1) -> int | None:
    """Return an n up to `high` that fits while n + 1 does not; None where none is found.

    Args:
        fits: what is asked of n.
        high: the most that is tried.
        low: where the search begins; each n below it is tried where it does not fit.
    """
    low = min(low, high)
    if not fits(low):
        return next((n for n in range(low - 1, 0, -1) if fits(n)), None)
    above = low + 1
    while above <= high and fits(above):
        low, above = above, above * 2
    return last_that(fits, low, min(above, high + 1))


def _smallest(fits: _Fits, low: int, high: int) -> int | None:
    """Return an n of low..high that fits while n - 1 does not; None where `high` does not fit."""
    if fits(low):
        return low
    return first_that(fits, low, high) if fits(high) else None


def _both(search: Callable[[bool], Any]) -> tuple[Any, Any]:
    return search(True), search(False)


def _max_model_len(question: Question) -> Solution:
    own = question.model.max_position_embeddings
    most = own or MAX_DIMENSION
    low = _fewest(question)

    def search(sure: bool) -> int | None:
        return _largest(lambda n: _tried(question, of_length(question, n), sure=sure), most, low)

    value, possible = _both(search)
    reason = "one token more does not fit"
    if value is None:
        reason = "not even one token fits"
    elif value == own:
        reason = "the model was made for no more"
    return _solution(
        question, "max-model-len", value, possible, reason, lambda n: of_length(question, n)
    )


def of_length(question: Question, n: int) -> Change:
    """Return the engine's setting for sequences of n tokens."""
    name, deployment = f"maximum of {format_count(n)} tokens", question.deployment
    if deployment.engine != "llama.cpp":
        return Change(name, {"max_model_len": n})
    from kvcalc.engines.llamacpp.args import OLLAMA, full_name  # only its questions need it

    given = {full_name(key): key for key in deployment.engine_args}
    others: dict[str, Any] = {given[name]: None for name in _CONTEXTS if name in given}
    if any(name in given for name in OLLAMA):
        return Change(name, {"max_model_len": None}, {**others, "num_ctx": n})
    args = deployment.engine_args
    slots = args.get(given.get("parallel", ""), deployment.max_num_seqs)
    alone = isinstance(slots, int) and slots > 0 and not args.get(given.get("kv_unified", ""))
    size = n * slots if alone and isinstance(slots, int) else n
    return Change(name, {"max_model_len": None}, {**others, "ctx_size": size})


_CONTEXTS = ("ctx_size", "kv_unified_per_slot", "num_ctx", "ollama_context_length")
"""llama.cpp's and ollama's settings that say how long a context is."""


def longest_planned(question: Question, high: int, fits: Callable[[CachePlan], bool]) -> int:
    """Return the longest sequence below `high` whose own plan fits; 0 where none does.

    Args:
        question: whose deployment is planned with shorter lengths.
        high: a length that does not fit.
        fits: of a plan.
    """

    def planned(n: int) -> bool:
        try:
            return fits(plan(question.model, of_length(question, n).applied(question).deployment))
        except KvcalcError:
            return False

    return _largest(planned, high - 1, _fewest(question)) or 0


def _fewest(question: Question) -> int:
    """Return the length to begin with: llama.cpp has no context of fewer cells than sequences."""
    return _SURE_CONTEXT if question.deployment.engine == "llama.cpp" else 1


def _max_num_seqs(question: Question) -> Solution:
    def search(sure: bool) -> int | None:
        def fits(n: int) -> bool:
            goal = question._replace(sequences=n)
            return _tried(goal, _of_sequences(question, n), sure=sure)

        return _largest(fits, _MOST_SEQUENCES)

    value, possible = _both(search)
    reason = "one more would have to wait for cache" if value else "not even one fits"
    return _solution(
        question, "max-num-seqs", value, possible, reason, lambda n: _of_sequences(question, n)
    )


def _of_sequences(question: Question, n: int) -> Change:
    """Return the engine's setting for so many sequences of one step."""
    engine, name = question.deployment.engine, f"{format_count(n)} sequences"
    if engine == "llama.cpp":
        return Change(name, {}, {"parallel": n})
    if engine == "sglang":
        return Change(name, {}, {"max_running_requests": n})
    if engine in ("none", "transformers"):
        return Change(name)
    return Change(name, {"max_num_seqs": n})


def _gpus(question: Question) -> Solution:
    """The fewest GPUs, in whatever split over tensor and pipeline ranks holds the goal."""

    def splits(count: int) -> Iterator[Change]:
        for tp in range(count, 0, -1):
            if count % tp == 0:
                pp = count // tp
                settings = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
                yield Change(f"{count} GPUs", settings)

    def search(sure: bool) -> tuple[int, Change] | None:
        fits = (
            (count, split)
            for count in range(1, _MOST_GPUS + 1)
            for split in splits(count)
            if _tried(question, split, sure=sure)
        )
        return next(fits, None)

    value, possible = _both(search)
    reason = "no split over fewer GPUs holds it" if value else f"no {_MOST_GPUS} GPUs hold it"
    return _solution(
        question,
        "gpus",
        value and value[0],
        possible and possible[0],
        reason,
        lambda _: value[1],
    )


def _tp(question: Question) -> Solution:
    def of(tp: int) -> Change:
        return Change(f"tensor parallel {tp}", {"tensor_parallel_size": tp})

    def search(sure: bool) -> int | None:
        sizes = range(1, _MOST_GPUS + 1)
        return next((tp for tp in sizes if _tried(question, of(tp), sure=sure)), None)

    value, possible = _both(search)
    reason = "no smaller size holds it" if value else f"no size up to {_MOST_GPUS} holds it"
    return _solution(question, "tp", value, possible, reason, of)


def _share(question: Question) -> Solution:
    engine = question.deployment.engine
    setting = SHARES.get(engine)
    if setting is None:
        raise UnsupportedError(
            f"{engine} has no share of the card's memory", hint="solve for another setting"
        )

    def of(share: float) -> Change:
        return share_change(setting, share)

    def search(sure: bool) -> float | None:
        def fits(step: int) -> bool:
            return _tried(question, of(step / _STEPS), sure=sure)

        step = _smallest(fits, 1, _STEPS)
        return None if step is None else step / _STEPS

    value, possible = _both(search)
    reason = "with a thousandth less it does not fit"
    if value is None:
        reason = "it does not fit in the whole card"
    elif (most := _most_share(of(value).applied(question))) is not None:
        reason += f"; at most {most} leaves room for what lies outside of it"
    return _solution(question, "gpu-memory-utilization", value, possible, reason, of)


def _most_share(question: Question) -> float | None:
    """Return the largest share that leaves room for the terms beside it; None: there are none."""
    memory = work(question).memory
    if not any(one.outside for one in memory):
        return None
    shares = []
    for one in memory:
        beside = sum(term.high_bytes for term in one.outside)
        shares.append((one.total_bytes - beside) * _STEPS // one.total_bytes / _STEPS)
    return min(shares)


def _kv_memory(question: Question) -> Solution:
    deployment = changed(question.deployment, {"kv_cache_memory_bytes": None}, {})
    try:
        found = work(question._replace(deployment=deployment)).plan
    except KvcalcError:
        found = plan(question.model, deployment)
    value = smallest_budget(found, question.sequences) if found.num_gpus else None
    reason = "a byte less does not hold it" if value else "no memory holds it"
    if not found.num_gpus:
        reason = "the whole cache lies on the host"
    if value is not None:
        reason += f" ({format_bytes(value)})"
    return _solution(
        question,
        "kv-memory",
        value,
        value,
        reason,
        lambda size: Change(f"a cache of {size} B", {"kv_cache_memory_bytes": size}),
    )


def _ngl(question: Question) -> Solution:
    if question.deployment.engine != "llama.cpp":
        raise UnsupportedError(
            "layers on the card (ngl) are llama.cpp's", hint="name --engine llama.cpp"
        )
    most = question.model.num_hidden_layers + len(question.model.draft_layers) + 1

    def of(n: int) -> Change:
        return Change(f"{n} layers on the card", {}, {"n_gpu_layers": n})

    def search(sure: bool) -> int | None:
        counts = range(most, -1, -1)
        return next((n for n in counts if _tried(question, of(n), sure=sure)), None)

    value, possible = _both(search)
    reason = "one layer more does not fit"
    if value is None:
        reason = "not even with every layer on the host"
    elif value == most:
        reason = "the whole model fits"
    return _solution(question, "ngl", value, possible, reason, of)


def _solution(
    question: Question,
    setting: str,
    value: Any,
    possible: Any,
    reason: str,
    change: Callable[[Any], Change],
) -> Solution:
    """Return what a search came to; `change` makes its value a setting."""
    goal = ""
    if question.sequences > 1 and setting != "max-num-seqs":
        goal = f" for {format_count(question.sequences)} sequences at once"
    return Solution(
        setting=setting,
        value=value,
        possible=possible,
        flags=() if value is None else change(value).flags,
        reason=reason + goal,
    )


SETTINGS: dict[str, Callable[[Question], Solution]] = {
    "max-model-len": _max_model_len,
    "max-num-seqs": _max_num_seqs,
    "gpus": _gpus,
    "tp": _tp,
    "gpu-memory-utilization": _share,
    "kv-memory": _kv_memory,
    "ngl": _ngl,
}
"""What can be solved for."""
