"""What each setting buys: a new plan for every lever, sorted by what it gains."""

from __future__ import annotations

from kvcalc.core.answers import Figures, Lever, RefusedLever
from kvcalc.core.errors import KvcalcError
from kvcalc.sizing.changes import Change
from kvcalc.sizing.figured import figured
from kvcalc.sizing.lever_changes import lever_changes
from kvcalc.sizing.question import Question, Worked, work
from kvcalc.sizing.sizes import sizes_of

__all__ = ["levers"]

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
    for change in lever_changes(question, worked):
        asked = change.applied(question)
        if asked == question:
            continue
        try:
            done = work(asked)
            if done.refusal is not None and worked.refusal is None:
                reason = RefusedLever(name=change.name, flags=change.flags, reason=done.refusal.why)
                refused.setdefault(change.flags, reason)
                continue
            found = figured(asked, done, "middle")
        except KvcalcError as error:
            reason = RefusedLever(name=change.name, flags=change.flags, reason=error.message)
            refused.setdefault(change.flags, reason)
            continue
        before, after = (sizes_of(one.deployment).holders for one in (question, asked))
        once, now = expected.max_concurrency * before, found.max_concurrency * after
        if now <= once * (1 + _NOTHING):
            continue
        lever = Lever(
            name=change.name,
            flags=change.flags,
            figures=found,
            tokens_gained=found.kv_cache_tokens * after - expected.kv_cache_tokens * before,
            concurrency_gain=now / once if once else None,
            caution=_caution(change, done),
        )
        gaining.setdefault(change.flags, lever)
    return tuple(sorted(gaining.values(), key=_order)), tuple(refused.values())


def _caution(change: Change, done: Worked) -> str:
    """Return what a change costs, and whether a start with it may run out of memory."""
    if all(one.leaves_room(sure=True) for one in done.memory):
        return change.caution
    return "; ".join(filter(None, (change.caution, "a start may run out of memory")))


def _order(lever: Lever) -> tuple[float, int]:
    # Where nothing fitted before, there is no ratio: what fits now decides.
    gain = lever.concurrency_gain
    return -(lever.figures.max_concurrency if gain is None else gain), -lever.tokens_gained
