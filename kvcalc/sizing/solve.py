"""A question turned round: the value of one setting with which the goal is met, and no further.

Each search ends between a value that was tried and holds and its neighbour that was tried and does
not, so that the answer is exact whatever lies in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcalc.core.answers import Solution
from kvcalc.core.capacity import holds, smallest_budget
from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.engines import plan
from kvcalc.sizing.changes import SHARES, changed, flags_of
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


def _tried(
    question: Question, *, sure: bool, settings: dict[str, Any], args: dict[str, Any] | None = None
) -> bool:
    """Whether the goal is met with settings changed; False where the engine refuses them."""
    asked = question._replace(deployment=changed(question.deployment, settings, args or {}))
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
    above = min(above, high + 1)
    while above - low > 1:
        middle = (low + above) // 2
        if fits(middle):
            low = middle
        else:
            above = middle
    return low


def _smallest(fits: _Fits, low: int, high: int) -> int | None:
    """Return an n of low..high that fits while n - 1 does not; None where `high` does not fit."""
    if fits(low):
        return low
    if not fits(high):
        return None
    below, found = low, high
    while found - below > 1:
        middle = (below + found) // 2
        if fits(middle):
            found = middle
        else:
            below = middle
    return found


def _both(search: Callable[[bool], Any]) -> tuple[Any, Any]:
    return search(True), search(False)


def _max_model_len(question: Question) -> Solution:
    own = question.model.max_position_embeddings
    most = own or MAX_DIMENSION
    low = _fewest(question)

    def search(sure: bool) -> int | None:
        return _largest(lambda n: _tried(question, sure=sure, **of_length(question, n)), most, low)

    value, possible = _both(search)
    reason = "one token more does not fit"
    if value is None:
        reason = "not even one token fits"
    elif value == own:
        reason = "the model was made for no more"
    told = of_length(question, value) if value else {"settings": {}, "args": {}}
    return _solution(
        question, "max-model-len", value, possible, told["settings"], reason, told["args"]
    )


def of_length(question: Question, n: int) -> dict[str, dict[str, Any]]:
    """Return the engine's setting for sequences of n tokens."""
    deployment = question.deployment
    if deployment.engine != "llama.cpp":
        return {"settings": {"max_model_len": n}, "args": {}}
    from kvcalc.engines.llamacpp.args import OLLAMA, full_name  # only its questions need it

    given = {full_name(key): key for key in deployment.engine_args}
    others: dict[str, Any] = {given[name]: None for name in _CONTEXTS if name in given}
    if any(name in given for name in OLLAMA):
        return {"settings": {"max_model_len": None}, "args": {**others, "num_ctx": n}}
    args = deployment.engine_args
    slots = args.get(given.get("parallel", ""), deployment.max_num_seqs)
    alone = isinstance(slots, int) and slots > 0 and not args.get(given.get("kv_unified", ""))
    size = n * slots if alone and isinstance(slots, int) else n
    return {"settings": {"max_model_len": None}, "args": {**others, "ctx_size": size}}


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
        own = of_length(question, n)
        try:
            return fits(
                plan(question.model, changed(question.deployment, own["settings"], own["args"]))
            )
        except KvcalcError:
            return False

    return _largest(planned, high - 1, _fewest(question)) or 0


def _fewest(question: Question) -> int:
    """Return the length to begin with: llama.cpp has no context of fewer cells than sequences."""
    return _SURE_CONTEXT if question.deployment.engine == "llama.cpp" else 1


def _max_num_seqs(question: Question) -> Solution:
    def search(sure: bool) -> int | None:
        def fits(n: int) -> bool:
            asked = question._replace(sequences=n)
            own = _of_sequences(question, n)
            return _tried(asked, sure=sure, **own)

        return _largest(fits, _MOST_SEQUENCES)

    value, possible = _both(search)
    reason = "one more would have to wait for cache" if value else "not even one fits"
    settings = _of_sequences(question, value)["settings"] if value else {}
    args = _of_sequences(question, value)["args"] if value else {}
    return _solution(question, "max-num-seqs", value, possible, settings, reason, args)


def _of_sequences(question: Question, n: int) -> dict[str, dict[str, Any]]:
    """Return the engine's setting for so many sequences of one step."""
    engine = question.deployment.engine
    if engine == "llama.cpp":
        return {"settings": {}, "args": {"parallel": n}}
    if engine == "sglang":
        return {"settings": {}, "args": {"max_running_requests": n}}
    if engine in ("none", "transformers"):
        return {"settings": {}, "args": {}}
    return {"settings": {"max_num_seqs": n}, "args": {}}


def _gpus(question: Question) -> Solution:
    """The fewest GPUs, in whatever split over tensor and pipeline ranks holds the goal."""

    def layout(count: int, *, sure: bool) -> dict[str, int] | None:
        for tp in range(count, 0, -1):
            if count % tp == 0:
                split = {"tensor_parallel_size": tp, "pipeline_parallel_size": count // tp}
                if _tried(question, sure=sure, settings=split):
                    return split
        return None

    def search(sure: bool) -> tuple[int, dict[str, int]] | None:
        for count in range(1, _MOST_GPUS + 1):
            found = layout(count, sure=sure)
            if found is not None:
                return count, found
        return None

    value, possible = _both(search)
    split = value[1] if value else {}
    reason = "no split over fewer GPUs holds it" if value else f"no {_MOST_GPUS} GPUs hold it"
    return _solution(question, "gpus", value and value[0], possible and possible[0], split, reason)


def _tp(question: Question) -> Solution:
    def search(sure: bool) -> int | None:
        fits = (
            tp
            for tp in range(1, _MOST_GPUS + 1)
            if _tried(question, sure=sure, settings={"tensor_parallel_size": tp})
        )
        return next(fits, None)

    value, possible = _both(search)
    reason = "no smaller size holds it" if value else f"no size up to {_MOST_GPUS} holds it"
    return _solution(question, "tp", value, possible, {"tensor_parallel_size": value}, reason)


def _share(question: Question) -> Solution:
    engine = question.deployment.engine
    setting = SHARES.get(engine)
    if setting is None:
        raise UnsupportedError(
            f"{engine} has no share of the card's memory", hint="solve for another setting"
        )

    def given(step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        share = {setting: step / _STEPS}
        return (share, {}) if setting == "gpu_memory_utilization" else ({}, share)

    def search(sure: bool) -> int | None:
        def fits(step: int) -> bool:
            settings, args = given(step)
            return _tried(question, sure=sure, settings=settings, args=args)

        return _smallest(fits, 1, _STEPS)

    value, possible = _both(search)
    settings, args = given(value) if value else ({}, {})
    reason = "with a thousandth less it does not fit"
    if value is None:
        reason = "it does not fit in the whole card"
    elif (most := _most_share(question, settings, args)) is not None:
        reason += f"; at most {most} leaves room for what lies outside of it"
    return _solution(
        question,
        "gpu-memory-utilization",
        value and value / _STEPS,
        possible and possible / _STEPS,
        settings,
        reason,
        args,
    )


def _most_share(question: Question, settings: dict[str, Any], args: dict[str, Any]) -> float | None:
    """Return the largest share that leaves room for the terms beside it; None: there are none."""
    asked = question._replace(deployment=changed(question.deployment, settings, args))
    memory = work(asked).memory
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
    return _solution(question, "kv-memory", value, value, {"kv_cache_memory_bytes": value}, reason)


def _ngl(question: Question) -> Solution:
    if question.deployment.engine != "llama.cpp":
        raise UnsupportedError(
            "layers on the card (ngl) are llama.cpp's", hint="name --engine llama.cpp"
        )
    most = question.model.num_hidden_layers + len(question.model.draft_layers) + 1

    def search(sure: bool) -> int | None:
        fits = (
            n
            for n in range(most, -1, -1)
            if _tried(question, sure=sure, settings={}, args={"n_gpu_layers": n})
        )
        return next(fits, None)

    value, possible = _both(search)
    reason = "one layer more does not fit"
    if value is None:
        reason = "not even with every layer on the host"
    elif value == most:
        reason = "the whole model fits"
    return _solution(question, "ngl", value, possible, {}, reason, {"n_gpu_layers": value})


def _solution(
    question: Question,
    setting: str,
    value: float | None,
    possible: float | None,
    settings: dict[str, Any],
    reason: str,
    args: dict[str, Any] | None = None,
) -> Solution:
    goal = ""
    if question.sequences > 1 and setting != "max-num-seqs":
        goal = f" for {format_count(question.sequences)} sequences at once"
    return Solution(
        setting=setting,
        value=value,
        possible=possible,
        flags=() if value is None else flags_of(settings, args or {}),
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
