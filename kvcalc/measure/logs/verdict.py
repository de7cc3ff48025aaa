"""The answer in a sentence: how a start ended, and what kvcalc says to its figures."""

from __future__ import annotations

from collections.abc import Mapping

from kvcalc.core.logs import Difference, Fact, LoggedTerm, Predicted
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs.explain import MAY_BE
from kvcalc.measure.logs.failure import failure
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.starts import Start
from kvcalc.measure.logs.terms import excess

__all__ = ["ended", "held_against", "outside", "was_sized"]

_SIZED = (
    *("kv_cache_tokens", "num_gpu_blocks", "max_total_num_tokens", "max_concurrency", "k_size"),
    *("kv_size", "cache_size", "state_size", "kv_buffer", "pool_memory", "graph_memory"),
    *("suggested_to_fit", "suggested_to_fill", "full_tokens", "conv_state_size"),
)
"""Figures that are told of a cache that is there, or of what comes after it."""


def was_sized(start: Start, facts: Mapping[str, Fact]) -> bool:
    """Whether the cache was sized, whatever else its lines leave out."""
    return any(name in facts for name in _SIZED) or start.sized


def ended(
    start: Start, facts: Mapping[str, Fact], told: Mapping[str, Predicted]
) -> tuple[str, str | None]:
    """Return how a start ended, as a clause (`did not start: ...`), and what ended it, if anything.

    Args:
        start: whose lines they are.
        facts: its figures.
        told: kvcalc's.
    """
    sized = was_sized(start, facts)
    died = start.died and ("stopped" in start.flags or not sized)
    error = start.ending.told if died else ""
    if not error and died and (oom := judged(start.oom)) is not None and "stopped" in start.flags:
        error = oom.summary.rstrip(".")
    failed = failure(start.engine, start.flags, facts, told, error)
    if failed:
        return f"did not start: {failed.rstrip('.')}", failed
    oom = judged(start.oom)
    if oom is not None:
        return f"ran out of memory: {oom.summary.rstrip('.')}", None
    if "request_refused" in start.flags:
        asked, most = facts.get("asked_tokens"), facts.get("max_model_len_that_fits")
        if asked is not None and most is not None:
            why = f"{asked.printed} tokens, where the cache's manager takes {most.printed}"
            return f"serves, and refused a request: {why}", None
    return ("started" if sized else ""), None


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
