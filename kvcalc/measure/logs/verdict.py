"""The answer in a sentence: how a start ended, and what kvcalc says to its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kvcalc.core.logs import Difference, Fact, LoggedTerm, Outcome, Predicted
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs.errors import shortened, whole
from kvcalc.measure.logs.explain import MAY_BE
from kvcalc.measure.logs.failure import REFUSALS, beyond_weights, explained, failure
from kvcalc.measure.logs.known_errors import known_of
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.phases import PHASES
from kvcalc.measure.logs.starts import Start
from kvcalc.measure.logs.terms import excess

__all__ = [
    "End",
    "ended",
    "held_against",
    "opening",
    "otherwise",
    "outside",
    "was_sized",
]

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
        outcome: in one word (core.logs.Outcome).
        clause: `did not start: ...`; "started"; "" where its log ends before it says either.
        failure: what ended it, or the server later; None for nothing.
        sizes: room or length may be the reason: settings that buy room are to the point.
        error: the error's line where it is the reason; "" where it is not.
        killed: the host ended it with the signal that it sends where its memory runs out.
        code: of the refusal that ended it, in the engine's table; "" for none.
        cure: what to change where the table of known errors tells it; "" where it does not.
    """

    outcome: Outcome
    clause: str
    failure: str | None = None
    sizes: bool = True
    error: str = ""
    killed: bool = False
    cure: str = ""
    code: str = ""


def ended(
    start: Start,
    facts: Mapping[str, Fact],
    told: Mapping[str, Predicted],
    because: str = "",
) -> End:
    """Return how a start ended.

    Args:
        start: whose lines they are.
        facts: its figures.
        told: kvcalc's.
        because: what ran out of the GPU's memory, or who took it, where that is known.
    """
    if start.refused is not None:
        code, text = start.refused
        reason = whole(text)
        known = known_of(text)
        why = explained(start.engine, code, facts, told)
        why = why or (known.cause if known is not None else "") or reason.rstrip(".")
        clause = f"did not start: {why}"
        cure = "" if known is None else known.cure
        return End("refused", clause, reason, sizes=code in _OF_BLOCKS, code=code, cure=cure)
    sized = was_sized(start, facts)
    ending = start.ending
    ready = start.ready or (sized and ending.served)
    if start.died and ending.known is not None and ending.known.ends:
        ready = False  # the server's own process gave up: a port in use is found out last
    died = start.died and ("stopped" in start.flags or not sized or _at_start(start))
    error = _told_with_phase(start) if died and not ready else ""
    oom = judged(start.oom)
    of_oom = oom is not None and not ready and (not error or ending.follows)
    failed = failure(start.engine, start.flags, facts, told, "" if of_oom else error)
    if of_oom and oom is not None and not _of_size(start):
        why = because or (_cut(oom.summary) if oom.verdict != "unknown" else _said(start))
        clause = f"ran out of memory{_when(start, sized=sized)}: {why}"
        return End("died", clause, why)
    if failed:
        return _not_up(start, facts, failed, error, because)
    if oom is not None:
        cut = _cut(oom.summary)
        return End("died_later", f"started, and ran out of memory: {cut}", cut)
    return _served(start, facts, sized=sized, ready=ready)


def _not_up(start: Start, facts: Mapping[str, Fact], failed: str, error: str, because: str) -> End:
    """Return the end of a start that did not come up."""
    ending = start.ending
    known = ending.known if error else None
    if "nothing_left" in start.flags and (why := because or beyond_weights(facts)):
        failed = f"{failed.rstrip('.')}; {why}"
    mine = bool(error) and failed == error
    code = next((code for flag, code in _CODES.items() if flag in start.flags), "")
    return End(
        "refused" if _of_size(start) else "died",
        f"did not start: {failed.rstrip('.')}{_at(start) if mine and ending.killed else ''}",
        failed,
        not mine or (known is None and _of_length(error)),
        error,
        mine and ending.killed,
        "" if known is None else known.cure,
        "" if mine else code,
    )


def _served(start: Start, facts: Mapping[str, Fact], *, sized: bool, ready: bool) -> End:
    """Return the end of a log in which no start failed."""
    ending = start.ending
    if sized and start.died_later:
        fatal = ending.told_fatal
        clause = f"started, and died later: {fatal}"
        known = known_of(ending.fatal)
        cure = "" if known is None else known.cure
        return End("died_later", clause, fatal, sizes=False, killed=ending.killed, cure=cure)
    if "request_refused" in start.flags:
        asked, most = facts.get("asked_tokens"), facts.get("max_model_len_that_fits")
        if asked is not None and most is not None:
            reason = f"{asked.printed} tokens, where the cache's manager takes {most.printed}"
            return End("started", f"serves, and refused a request: {reason}")
    if ready:
        return End("started", "started")
    return End("sized" if sized else "unknown", "")


def opening(end: End) -> str:
    """Return the first sentence of a verdict."""
    if end.clause:
        return f"It {end.clause}."
    if end.outcome == "sized":
        return (
            "It started as far as the log goes: the cache was sized; the log ends before the server"
            " is ready."
        )
    return "The log ends before the cache was sized."


def _when(start: Start, *, sized: bool) -> str:
    """Return what a start was at when its memory ran out, as far as its lines tell."""
    if start.ended_at == "allocating" and not start.frames and sized:
        return " after the cache was sized"
    return f" while {PHASES[start.ended_at]}" if start.ended_at else ""


def _said(start: Start) -> str:
    """Return an out-of-memory text that has no figures."""
    return _cut(shortened(start.oom[-1], _LONGEST))


def _at(start: Start) -> str:
    return f", while {PHASES[start.ended_at]}" if start.ended_at else ""


_LONGEST = 300


def _cut(text: str) -> str:
    return text.rstrip(".")


def _of_size(start: Start) -> bool:
    """Whether the engine itself refused the start for want of room."""
    return bool(start.flags.keys() & {flag for flag, _ in REFUSALS})


def _at_start(start: Start) -> bool:
    """Whether an error behind the sizing of a cache is the start's, and no request's.

    One of a request is said by the server's own process, and by one that has said that it serves.
    """
    ending = start.ending
    known = ending.known
    return start.is_worker(ending.rank) or ending.cut or (known is not None and known.ends)


def _told_with_phase(start: Start) -> str:
    """Return the error that ended a start; where the log cuts it off, what the start was at."""
    ending = start.ending
    if not ending.cut:
        return ending.told
    return f"an error while {PHASES[start.ended_at]}, of which the log that is here cuts the reason"


_OF_BLOCKS = (
    *("sequences-over-state-blocks", "graphs-over-state-blocks"),
    "component-without-memory",
)
"""Refusals of too little memory: settings that buy room are to the point."""
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
    """Return what the memory says against the card that was named for certain; "" for nothing."""
    named = card or "the card"
    if excess(terms, total):
        parts = [t for t in terms if t.logged is not None and t.logged[0] > 0]
        held = sum(t.logged[0] for t in parts if t.logged is not None)
        names = " and ".join(t.name for t in parts) if len(parts) <= _FEW else "its parts"
        return (
            f" It was not on {named}: {names} come to {format_bytes(held)}, more than the"
            f" {format_bytes(total or 0)} of it."
        )
    return ""


def otherwise(terms: tuple[LoggedTerm, ...], card: str | None) -> Iterator[str]:
    """Yield a note where a term is not what kvcalc would have said of a GPU without the log.

    It speaks against what was assumed of the weights or the settings, not against the server.
    """
    names = ", ".join(term.name for term in terms if term.agrees is False)
    if names:
        of = card or "the GPU"
        yield f"outside of what kvcalc would have said of {of} without the log: {names}"


_FEW = 3
