"""The longest sequences, and the most of them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcalc.core.errors import KvcalcError
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.engines import plan
from kvcalc.sizing.changes import Change
from kvcalc.sizing.question import End, Question
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve.searches import Solved, largest, solved, tried

__all__ = ["longest", "longest_planned", "max_model_len", "max_num_seqs", "of_length"]

_MOST_SEQUENCES = 1 << 20
_SURE_CONTEXT = 256  # as many cells as llama.cpp has sequences at most

_CONTEXTS = ("ctx_size", "kv_unified_per_slot", "num_ctx", "ollama_context_length")
"""llama.cpp's and ollama's settings that say how long a context is."""

_SEQUENCES = {"llama.cpp": "parallel", "sglang": "max_running_requests"}
"""Engine -> its own setting for sequences at once, where that is no field of Deployment."""

_UNBOUNDED = ("none", "transformers")
"""Engines without such a setting."""


def max_model_len(question: Question) -> Solved:
    """Return the longest sequences, up to what the model was made for."""
    value, possible = longest(question, "low"), longest(question, "high")
    reason = "one token more does not fit"
    if value is None:
        reason = "not even one token fits"
    elif value == question.model.max_position_embeddings:
        reason = "the model was made for no more"
    return solved(
        question, "max-model-len", value, possible, reason, lambda n: of_length(question, n)
    )


def longest(question: Question, end: End, below: int | None = None) -> int | None:
    """Return the longest sequences of which the goal is met, each length planned anew.

    Args:
        question: what is asked.
        end: with which of what may be left for the cache.
        below: a length that does not fit; the model's own maximum bounds the search by default.
    """
    most = (below or 0) - 1 if below else question.model.max_position_embeddings or MAX_DIMENSION
    if most < 1:
        return None
    return largest(lambda n: tried(question, of_length(question, n), end), most, _fewest(question))


def _fewest(question: Question) -> int:
    """Return the length to begin with: llama.cpp has no context of fewer cells than sequences."""
    return _SURE_CONTEXT if question.deployment.engine == "llama.cpp" else 1


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

    return largest(planned, high - 1, _fewest(question)) or 0


def of_length(question: Question, n: int) -> Change:
    """Return the engine's setting for sequences of n tokens."""
    name, deployment = f"maximum of {format_count(n)} tokens", question.deployment
    if deployment.engine != "llama.cpp":
        return Change(name, {"max_model_len": n})
    from kvcalc.engines.llamacpp.args import OLLAMA, full_name  # only its questions need it

    given = {full_name(key): key for key in deployment.engine_args}
    contexts = [name for name in _CONTEXTS if name in given]
    if not contexts:
        return Change(name, {"max_model_len": n})
    others: dict[str, Any] = {given[name]: None for name in contexts}
    if any(name in given for name in OLLAMA):
        return Change(name, {"max_model_len": None}, {**others, "num_ctx": n})
    args = deployment.engine_args
    slots = args.get(given.get("parallel", ""), deployment.max_num_seqs)
    alone = isinstance(slots, int) and slots > 0 and not args.get(given.get("kv_unified", ""))
    size = n * slots if alone and isinstance(slots, int) else n
    return Change(name, {"max_model_len": None}, {**others, "ctx_size": size})


def max_num_seqs(question: Question) -> Solved:
    """Return the most sequences that every server can run at once, all of the maximum."""
    _, _, replicas, groups = sizes_of(question.deployment)

    def search(end: End) -> int | None:
        # A server's setting is one for all its groups of ranks, which share it evenly.
        def fits(each: int) -> bool:
            goal = question._replace(sequences=each * groups * replicas)
            return tried(goal, _of_sequences(question, each * groups), end)

        found = largest(fits, _MOST_SEQUENCES // groups)
        return None if found is None else found * groups

    value, possible = search("low"), search("high")
    reason = "one more would have to wait for cache" if value else "not even one fits"
    return solved(
        question, "max-num-seqs", value, possible, reason, lambda n: _of_sequences(question, n)
    )


def _of_sequences(question: Question, n: int) -> Change:
    """Return the engine's setting for so many sequences at once on a server."""
    engine, name = question.deployment.engine, f"{format_count(n)} sequences"
    if engine in _UNBOUNDED:
        return Change(name)
    if engine in _SEQUENCES:
        return Change(name, {}, {_SEQUENCES[engine]: n})
    return Change(name, {"max_num_seqs": n})
