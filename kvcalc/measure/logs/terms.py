"""The memory of one GPU as the log tells it, beside what kvcalc would have said without the log."""

from __future__ import annotations

from collections.abc import Mapping

from kvcalc.core.answers import RankBudget
from kvcalc.core.logs import Fact, LoggedTerm
from kvcalc.measure.logs.devices import Devices, on_device

__all__ = ["excess", "terms_of", "total_of"]

_TERMS = (
    ("weights", ("weights_memory", "model_buffer")),
    ("weights and other", ("consumed_memory",)),
    ("activation", ("activation_memory",)),
    ("graphs", ("graph_memory", "estimated_graph_memory")),
    ("other", ("non_torch_memory",)),
    ("compute buffers", ("compute_buffer",)),
    ("cache", ("available_kv_cache", "pool_memory", "cache_size")),
)
"""Term -> the figures that may tell it, the one that is preferred first."""

_PREDICTED = {
    "weights": ("weights",),
    "weights and other": ("weights", "context", "communication", "other"),
    "activation": ("activation",),
    "graphs": ("graphs",),
    "other": ("context", "communication", "other"),
    "compute buffers": ("activation",),
}
"""Term -> the terms of a capacity answer that are the same memory."""


_LOOSE = 32 * 2**20
"""A term is what the card's free memory fell by: segments of the allocator are inside it."""


def total_of(facts: Mapping[str, Fact], budget: tuple[RankBudget, ...]) -> int | None:
    """Return the card's memory: logged in the middle of its rounding, or the card's own."""
    fact = facts.get("total_memory")
    if fact is not None and isinstance(fact.low, int) and isinstance(fact.high, int):
        return (fact.low + fact.high) // 2
    return budget[0].total_bytes if budget else None


def terms_of(
    engine: str,
    facts: Mapping[str, Fact],
    budget: tuple[RankBudget, ...],
    devices: Devices | None = None,
    own: Mapping[str, tuple[int, int] | None] | None = None,
) -> tuple[LoggedTerm, ...]:
    """Return every term that the log or the card's budget tells.

    Args:
        engine: whose log it is.
        facts: its figures.
        budget: of the card; empty where none is known.
        devices: device -> figure -> [least, most] bytes, where lines are of one device each.
        own: term -> what a plan says of it, where that is another thing than the budget's.
    """
    first = budget[0] if budget else None
    found = []
    consumed = "consumed_memory" in facts
    for name, figures in _TERMS:
        if name in (("weights", "other") if consumed else ("weights and other",)):
            continue
        if name == ("activation" if engine == "llama.cpp" else "compute buffers"):
            continue  # llama.cpp's compute buffers are the activation of other engines
        fact = next((facts[figure] for figure in figures if figure in facts), None)
        logged = _range(fact)
        source = "" if fact is None else f"line {fact.line}"
        if engine == "sglang" and name in _OF_SGLANG:
            logged = _sglang(facts, name) or logged
        if engine == "llama.cpp" and (told := on_device(name, devices or {}, facts)) is not None:
            logged, source = told
        predicted = None if first is None else _predicted(name, first)
        predicted = (own or {}).get(name, predicted)
        if logged is None and predicted is None:
            continue
        meets = (
            None
            if logged is None or predicted is None or _capped(engine, name, facts, predicted[0])
            else logged[0] <= predicted[1] + _LOOSE and predicted[0] <= logged[1] + _LOOSE
        )
        found.append(
            LoggedTerm(name=name, logged=logged, predicted=predicted, agrees=meets, source=source)
        )
    return tuple(found)


def excess(terms: tuple[LoggedTerm, ...], total: int | None) -> int:
    """Return by how many bytes what was logged is more than the card has; 0 where it is not."""
    if not total:
        return 0
    return max(0, sum(term.logged[0] for term in terms if term.logged is not None) - total)


def _range(fact: Fact | None) -> tuple[int, int] | None:
    if fact is None or not isinstance(fact.low, int) or not isinstance(fact.high, int):
        return None
    return fact.low, fact.high


def _capped(engine: str, term: str, facts: Mapping[str, Fact], least: int) -> bool:
    """Whether SGLang's cache is smaller than memory allows: what is free beside it would do.

    A number of tokens (--max-total-tokens) or of requests that was given keeps it so.
    """
    if (engine, term) != ("sglang", "cache"):
        return False
    pools, free = _sglang(facts, term), _range(facts.get("free_after_pool"))
    return pools is not None and free is not None and pools[1] < least <= pools[1] + free[1]


_OF_SGLANG = {
    "weights": ("weights_memory",),
    "graphs": (
        *("graph_memory", "prefill_graph_memory", "draft_graph_memory"),
        *("draft_extend_graph_memory", "draft_prefill_graph_memory"),
    ),
    "cache": ("k_size", "v_size", "kv_size", "conv_state", "ssm_state", "proposed_"),
}
"""Term -> how the figures of SGLang begin that are parts of it: of model, draft and states."""


def _sglang(facts: Mapping[str, Fact], term: str) -> tuple[int, int] | None:
    """Return a term of SGLang, whose model and draft have a line each; None where none is there."""
    if term == "cache" and "available_kv_cache" in facts:
        return None
    spans = [
        span
        for name, fact in facts.items()
        if name.startswith(_OF_SGLANG[term]) and (span := _range(fact)) is not None
    ]
    return (sum(low for low, _ in spans), sum(high for _, high in spans)) if spans else None


def _predicted(name: str, budget: RankBudget) -> tuple[int, int] | None:
    if name == "cache":
        low, high = budget.cache_bytes
        return low, high
    names = _PREDICTED.get(name, ())
    terms = [term for term in budget.terms if term.name in names]
    if not terms:
        return None
    return sum(t.low_bytes for t in terms), sum(t.high_bytes for t in terms)
