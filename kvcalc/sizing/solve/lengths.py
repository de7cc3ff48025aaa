"""The longest sequences, and the most of them at once."""

from __future__ import annotations

from collections.abc import Callable

from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import End
from kvcalc.core.plan import CachePlan
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.engines import engine_of, plan
from kvcalc.engines.changes import Change
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.solve.searches import Solved, Tries, largest, solved, why_not

__all__ = [
    "LEAST_LENGTH",
    "longest",
    "longest_planned",
    "max_model_len",
    "max_num_seqs",
    "of_length",
    "sequences_change",
]

LEAST_LENGTH = 256
"""A server of fewer tokens is of no use; llama.cpp has no context of fewer."""

_MOST_SEQUENCES = 1 << 20


def max_model_len(question: Question) -> Solved:
    """Return the longest sequences, up to what the model was made for."""
    tries = Tries(question)
    value, possible = longest(tries, "low"), longest(tries, "high")
    reason = f"one token more {_more(question, 'does not fit')}"
    if value is None:
        fewest = possible or _fewest(question)
        reason = why_not(question, of_length(question, fewest)) or "not even one token fits"
    elif value == question.model.longest:
        reason = "the model was made for no more"
    return solved(
        question, "max-model-len", value, possible, reason, lambda n: of_length(question, n)
    )


def longest(tries: Tries, end: End, below: int | None = None) -> int | None:
    """Return the longest sequences of which the goal is met, each length planned anew.

    Args:
        tries: of what is asked.
        end: with which of what may be left for the cache.
        below: a length that does not fit; the model's own maximum bounds the search by default.
    """
    question = tries.question
    most = (below or 0) - 1 if below else question.model.longest or MAX_DIMENSION
    if most < 1:
        return None
    return largest(lambda n: tries.meet(of_length(question, n), end), most, _fewest(question))


def _fewest(question: Question) -> int:
    return engine_of(question.deployment.engine).fewest_tokens


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
    return engine_of(question.deployment.engine).length_change(question.deployment, n)


def max_num_seqs(question: Question) -> Solved:
    """Return the most sequences that every server can run at once, all of the maximum asked for."""
    groups = sizes_of(question.deployment).groups
    servers = question.holders // groups
    of, tries = _sequences_change(question), Tries(question)

    def search(end: End) -> int | None:
        # A server's setting is one for all its groups of ranks, which share it evenly.
        def fits(each: int) -> bool:
            n = each * groups
            return tries.meet(of(n), end, n * servers)

        found = largest(fits, _MOST_SEQUENCES // groups)
        return None if found is None else found * groups

    value, possible = search("low"), search("high")
    reason = f"one more {_more(question, 'would have to wait for cache')}"
    if value is None:
        fewest = possible or groups
        asked = question._replace(sequences=fewest * servers)
        reason = why_not(asked, of(fewest)) or "not even one fits"
    return solved(question, "max-num-seqs", value, possible, reason, of)


def _more(question: Question, otherwise: str) -> str:
    """Say what more than the solution would do."""
    moves = question.may_move is not None
    return "would move more of the weights to the host" if moves else otherwise


def sequences_change(question: Question, n: int) -> Change:
    """Return the engine's setting for so many sequences at once on a server, as long as before."""
    return _sequences_change(question)(n)


def _sequences_change(question: Question) -> Callable[[int], Change]:
    return engine_of(question.deployment.engine).sequences_change(
        question.model, question.deployment, lambda: work(question).plan.max_model_len
    )
