"""The answer in a sentence: how a start ended, and what kvcalc says to its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kvcalc.core.logs import Difference, Fact, LoggedTerm, Predicted
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs.errors import whole
from kvcalc.measure.logs.explain import MAY_BE
from kvcalc.measure.logs.failure import failure
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.starts import Start
from kvcalc.measure.logs.terms import excess

__all__ = ["End", "ended", "held_against", "outside", "was_sized"]

_SIZED = (
    *("kv_cache_tokens", "num_gpu_blocks", "max_total_num_tokens", "max_concurrency", "k_size"),
    *("kv_size", "cache_size", "state_size", "kv_buffer", "pool_memory", "graph_memory"),
    *("suggested_to_fit", "suggested_to_fill", "full_tokens", "conv_state_size"),
)
"""Figures that are told of a cache that is there, or of what comes after it."""


def was_sized(start: Start, facts: Mapping[str, Fact]) -> bool:
    """Whether the cache was sized, whatever else its lines leave out."""
    return any(name in facts for name in _SIZED) or start.sized


class End(NamedTuple):
    """How a start ended.

    Attributes:
        clause: `did not start: ...`; "started"; "" where its log ends before the cache.
        failure: what ended it, or the server later; None for nothing.
        sizes: room or length may be the reason: settings that buy room are to the point.
        error: the error's line where it is the reason; "" where it is not.
        killed: the host ended it with the signal that it sends where its memory runs out.
        code: of the refusal that ended it, in the engine's table; "" for none.
    """

    clause: str
    failure: str | None = None
    sizes: bool = True
    error: str = ""
    killed: bool = False
    code: str = ""


def ended(start: Start, facts: Mapping[str, Fact], told: Mapping[str, Predicted]) -> End:
    """Return how a start ended.

    Args:
        start: whose lines they are.
        facts: its figures.
        told: kvcalc's.
    """
    if start.refused is not None:
        code, text = start.refused
        reason = whole(text)
        clause = f"did not start: {reason.rstrip('.')}"
        return End(clause, reason, sizes=code in _OF_BLOCKS, code=code)
    sized = was_sized(start, facts)
    ending = start.ending
    died = start.died and ("stopped" in start.flags or not sized)
    error = ending.told if died else ""
    oom = judged(start.oom)
    of_oom = not error and died and oom is not None and "stopped" in start.flags
    why = oom.summary.rstrip(".") if oom is not None and of_oom else error
    failed = failure(start.engine, start.flags, facts, told, why)
    if failed:
        code = next((code for flag, code in _CODES.items() if flag in start.flags), "")
        mine = bool(error) and failed == error
        clause = f"did not start: {failed.rstrip('.')}"
        of_size, killed = not mine or _of_length(error), mine and ending.killed
        return End(clause, failed, of_size, error, killed, "" if mine else code)
    if oom is not None:
        return End(f"ran out of memory: {oom.summary.rstrip('.')}")
    if sized and start.died_later:
        fatal = ending.told_fatal
        return End(f"started, and died later: {fatal}", fatal, sizes=False, killed=ending.killed)
    if "request_refused" in start.flags:
        asked, most = facts.get("asked_tokens"), facts.get("max_model_len_that_fits")
        if asked is not None and most is not None:
            reason = f"{asked.printed} tokens, where the cache's manager takes {most.printed}"
            return End(f"serves, and refused a request: {reason}")
    return End("started" if sized else "")


_OF_BLOCKS = ("sequences-over-state-blocks", "graphs-over-state-blocks")
"""Refusals of too few blocks: settings that buy room are to the point."""
_CODES = {
    "others_hold": "share-not-free",
    "too_long": "length-over-cache",
    "too_long_v0": "length-over-cache",
    "nothing_left": "no-memory-for-blocks",
}
"""What a line said -> the refusal that it is."""

_LENGTHS = ("max_model_len", "max seq len", "KV cache", "out of memory", "enough memory")


def _of_length(error: str) -> bool:
    """Whether an error is of room or of length, as its words say."""
    return any(word in error for word in _LENGTHS)


def held_against(
    agreeing: tuple[str, ...], differences: tuple[Difference, ...], predicted: bool, nothing: str
) -> str:
    """Return what kvcalc says to the figures.

    Args:
        agreeing: names of figures that agree.
        differences: those that do not.
        predicted: something is predicted at all.
        nothing: why nothing is, where it is not.
    """
    open_ = [d for d in differences if d.explained_by is None]
    if open_:
        names = ", ".join(d.name for d in open_)
        return f"kvcalc says otherwise of {names}, and knows no cause."
    if differences:
        causes = ", ".join(dict.fromkeys(d.explained_by or "" for d in differences))
        may = "may be" if any(d.why.startswith(MAY_BE) for d in differences) else "is"
        return f"What differs {may} explained by {causes}."
    if agreeing:
        count = "1 figure" if len(agreeing) == 1 else f"{len(agreeing)} figures"
        return f"{count} of the log {'is' if len(agreeing) == 1 else 'are'} what kvcalc says."
    if predicted:
        return "Nothing that the log prints can be held against a prediction."
    return f"Nothing is predicted: {nothing}."


def outside(terms: tuple[LoggedTerm, ...], total: int | None, card: str | None) -> str:
    """Return what the memory says against the card that was named; "" for nothing."""
    named = card or "the card"
    if excess(terms, total):
        parts = [t for t in terms if t.logged is not None and t.logged[0] > 0]
        held = sum(t.logged[0] for t in parts if t.logged is not None)
        names = " and ".join(t.name for t in parts) if len(parts) <= _FEW else "its parts"
        return (
            f" It was not on {named}: {names} come to {format_bytes(held)}, more than the"
            f" {format_bytes(total or 0)} of it."
        )
    names = ", ".join(term.name for term in terms if term.agrees is False)
    return f" Outside of what kvcalc says of {named} without the log: {names}." if names else ""


_FEW = 3
