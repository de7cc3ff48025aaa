"""What each setting buys: a new plan for every lever, sorted by what it gains."""

from __future__ import annotations

from kvcalc.answers.capacity import Figures, Lever, RefusedLever
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of
from kvcalc.engines.changes import Change, cost
from kvcalc.sizing.figured import figured
from kvcalc.sizing.lever_changes import SURELY_STARTS, lever_changes
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.solve.cards import num_gpus
from kvcalc.sizing.worked import Worked

__all__ = ["levers"]

_DEAREST = 99
_NOTHING = 0.002
"""What changes the sequences by less buys nothing."""


def levers(
    question: Question, worked: Worked, expected: Figures
) -> tuple[tuple[Lever, ...], tuple[RefusedLever, ...]]:
    """Return every lever that gains anything, the best first, and those that are refused.

    Args:
        question: as it was asked.
        worked: the same, worked out.
        expected: its figures in the middle.
    """
    gaining: dict[tuple[str, ...], Lever] = {}
    refused: dict[tuple[str, ...], RefusedLever] = {}
    costs: dict[tuple[str, ...], int] = {}
    refusal = worked.refusal()
    stands = None if refusal is None else refusal.why
    for change in lever_changes(question, worked):
        made = _tried(question, worked, expected, change)
        if isinstance(made, Lever):
            gaining.setdefault(_key(change), made)
            costs.setdefault(_key(change), cost(change))
        elif made is not None and made.reason != stands:  # what it does not change says nothing
            refused.setdefault(_key(change), made)
    met = worked.meets("low")
    if not met and not any(lever.fits and _of_gpus(lever) for lever in gaining.values()):
        last = _more_gpus(question, worked, expected)
        if isinstance(last, Lever):
            gaining.setdefault(last.flags, last)
            costs.setdefault(last.flags, _DEAREST)
        elif last is not None and last.reason != stands:
            refused[last.flags] = last
    if met:
        return tuple(sorted(gaining.values(), key=_gain)), tuple(refused.values())

    def order(lever: Lever) -> tuple[bool, bool, int, int, tuple[float, int]]:
        """What meets the goal comes first, the cheapest of it before all."""
        dear = costs[lever.flags or (lever.name,)]
        length = lever.figures.max_model_len_that_fits
        return not lever.fits, not lever.figures.fits, dear, -length, _gain(lever)

    return tuple(sorted(gaining.values(), key=order)), tuple(refused.values())


def _of_gpus(lever: Lever) -> bool:
    """Whether a lever takes more GPUs."""
    return any(flag in lever.flags for flag in ("--tp", "--pp"))


def _key(change: Change) -> tuple[str, ...]:
    return change.flags or (change.name,)


def _tried(
    question: Question, worked: Worked, expected: Figures, change: Change
) -> Lever | RefusedLever | None:
    """Return what a change gains, or why it cannot be made; None where it gains nothing."""
    asked = change.applied(question)
    if asked == question:
        return None
    try:
        done = work(asked)
        refusal = done.refusal()
        if refusal is not None:
            return RefusedLever(name=change.name, flags=change.flags, reason=refusal.why)
        found = figured(asked, done, "middle")
    except KvcalcError as error:
        return RefusedLever(name=change.name, flags=change.flags, reason=error.message)
    once, now = (
        one.max_concurrency * of.holders for one, of in ((expected, question), (found, asked))
    )
    surer = done.meets("low") and not worked.meets("low")  # of a perhaps it makes a yes
    helps = surer or (found.fits and not expected.fits)
    if now <= once * (1 + _NOTHING) and not helps:
        return None
    tokens = found.kv_cache_tokens * asked.holders
    return Lever(
        name=change.name,
        flags=change.flags,
        figures=found,
        kv_cache_tokens=tokens,
        max_concurrency=now,
        tokens_gained=tokens - expected.kv_cache_tokens * question.holders,
        concurrency_gain=now / once if once else None,
        caution=_caution(change, done, found),
        fits=done.fits("low"),
    )


def _more_gpus(
    question: Question, worked: Worked, expected: Figures
) -> Lever | RefusedLever | None:
    """Return the fewest GPUs that meet a goal, or why none do."""
    splits = engine_of(question.deployment.engine).tensor_parallel
    if not splits or not question.deployment.gpu:
        return None
    found = num_gpus(question)
    if found.change is None:
        return RefusedLever(name="more GPUs", flags=(), reason=found.solution.reason)
    sizes = found.change.settings
    tp, pp = sizes["tensor_parallel_size"], sizes["pipeline_parallel_size"]
    return _tried(
        question,
        worked,
        expected,
        found.change._replace(
            name=f"{tp * pp} GPUs of a replica",
            caution=f"tensor parallel {tp}, stages {pp}",
        ),
    )


def _caution(change: Change, done: Worked, found: Figures) -> str:
    """Return what a change costs, and whether a start with it may run out of memory."""
    told = change.caution
    if told == SURELY_STARTS and not found.fits:  # a start that ends for want of cache is none
        longest = found.max_model_len_that_fits
        told = f"passes the share check; holds {format_count(longest) if longest else 'no'} tokens"
    if done.runs("low"):
        return told
    return "; ".join(filter(None, (told, "a start may run out of memory")))


def _gain(lever: Lever) -> tuple[float, int]:
    # Where nothing fitted before there is no ratio.
    return -lever.max_concurrency, -lever.tokens_gained
