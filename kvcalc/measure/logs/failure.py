"""How a start ended that did not come up: what failed, by how much, and what would do."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor

from kvcalc.core.logs import Fact, Predicted
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs.predict import agrees, span_text

__all__ = [
    "REFUSALS",
    "beyond_weights",
    "explained",
    "failure",
    "highest_share",
    "least_fraction",
]

_Facts = Mapping[str, Fact]


def failure(
    engine: str,
    flags: Mapping[str, int],
    facts: _Facts,
    found: Mapping[str, Predicted],
    error: str = "",
) -> str | None:
    """Return what ended a start, with the arithmetic; None where nothing did.

    Args:
        engine: whose log it is.
        flags: what its lines without figures say.
        facts: its figures.
        found: kvcalc's.
        error: the error line that ended it; "" for none.
    """
    for flag, told in REFUSALS:
        if flag in flags and "failed" in flags:
            return told(engine, facts, found)
    if error:
        return error
    if "stopped" in flags:
        return "the engine stopped; the log that is here does not tell why"
    return "the start failed" if "failed" in flags else None


def explained(engine: str, code: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    """Return what a refusal means, with the arithmetic; "" where its own words say it."""
    told = dict(REFUSALS).get(code)
    return "" if told is None else told(engine, facts, found)


def _printed(facts: _Facts, name: str, otherwise: str = "an unknown size") -> str:
    return facts[name].printed if name in facts else otherwise


def _too_long(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    length = _printed(facts, "max_model_len", _printed(facts, "asked_tokens", ""))
    what = f"one sequence of {length} tokens" if length else "one sequence of the maximum"
    need = found.get("needed_memory")
    needed = _printed(facts, "needed_memory", "" if need is None else need.text)
    available = _printed(facts, "available_kv_cache", "")
    told = f"{what} does not fit"
    if needed and available:
        told += f": it needs {needed}, and {available} are available on each GPU"
        missing = _missing(facts, need)
        if missing:
            told += f", {missing} short"
    elif "kv_cache_tokens" in facts:
        told += f": the cache holds {_printed(facts, 'kv_cache_tokens')} tokens"
    fits = found.get("max_model_len_that_fits")
    logged = facts.get("max_model_len_that_fits")
    if logged is not None:
        told += f"; the longest that fits is {logged.printed} tokens"
        told += " by the log" if fits is None else f" ({fits.text} by kvcalc)"
    elif fits is not None:
        told += f"; the longest that fits is {fits.text} tokens"
    del engine
    return told


def _missing(facts: _Facts, need: Predicted | None) -> str:
    """Return what is missing: of the log's own figures; of kvcalc's need where it tells none."""
    available, logged = facts.get("available_kv_cache"), facts.get("needed_memory")
    if available is None or not isinstance(available.low, int):
        return ""
    wanted = logged if logged is not None else need
    if wanted is None or not isinstance(wanted.low, int) or not isinstance(wanted.high, int):
        return ""
    if logged is not None and need is not None and agrees(logged, need):
        wanted = need  # the same size with every digit
    low, high = int(wanted.low or 0), int(wanted.high or 0)
    return span_text(max(0, low - int(available.high or 0)), high - available.low, "B")


def _others_hold(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, found
    free, total = facts.get("free_memory"), facts.get("total_memory")
    wanted = _printed(facts, "requested_memory")
    told = (
        f"{_printed(facts, 'free_memory')} of {_printed(facts, 'total_memory')} are free at the"
        f" start, and gpu_memory_utilization"
        f" {_printed(facts, 'gpu_memory_utilization', '')} asks for {wanted}"
    )
    if free is not None and total is not None and isinstance(free.low, int):
        held = int(total.low or 0) - int(free.high or 0)
        told += f": others hold {format_bytes(max(0, held))}"
        told += f"; {highest_share(facts)} is the most that starts"
    return told


def highest_share(facts: _Facts) -> str:
    """Return free over total, rounded down to what surely starts."""
    free, total = facts["free_memory"].low, facts["total_memory"].high
    if not free or not total:
        return "nothing"
    return f"{floor(Fraction(int(free), int(total)) * 1000) / 1000:.3f}"


def _nothing_left(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del found
    if engine == "mlc-llm" and "free_memory" in facts:
        parts = facts["weights_memory"], facts["activation_memory"]
        low = sum(int(part.low or 0) for part in parts)
        high = sum(int(part.high or 0) for part in parts)
        missing = span_text(low - int(facts["free_memory"].high or 0),
                            high - int(facts["free_memory"].low or 0), "B")  # fmt: skip
        larger = max(("weights are", "weights_memory"),
                     ("temporary buffer is", "activation_memory"),
                     key=lambda pair: facts[pair[1]].low or 0)  # fmt: skip
        return (
            f"weights and the temporary buffer come to {span_text(low, high, 'B')}, and"
            f" {_printed(facts, 'free_memory')} are there: {missing} short before any cache; the"
            f" {larger[0]} the larger part"
        )
    if engine == "sglang":
        told = "weights leave nothing of --mem-fraction-static"
        told += f" {_printed(facts, 'mem_fraction_static', '')}".rstrip()
        share = least_fraction(facts)
        given = facts.get("mem_fraction_static")
        if share and given is not None and float(share) < (given.low or 0):
            return f"{told}, though by what was free {share} would leave something"
        return told + (f"; from {share} on something is left" if share else "")
    available = _printed(facts, "available_kv_cache", "")
    told = "nothing is left for the cache" + (f": {available} available" if available else "")
    weights, wanted = facts.get("weights_memory"), facts.get("requested_memory")
    if weights is not None and wanted is not None and (weights.low or 0) > (wanted.high or 0):
        told += f"; the weights alone ({weights.printed}) are more than the {wanted.printed} that"
        told += " gpu_memory_utilization allows"
        total = facts.get("total_memory")
        if total is not None and (weights.low or 0) > (total.high or 0):
            told += f", and than the card's {total.printed}"
    return told


def beyond_weights(facts: _Facts) -> str:
    """Return what may have taken more than the weights where nothing is left; "" for no more."""
    weights, left = facts.get("weights_memory"), facts.get("available_kv_cache")
    if weights is None or left is None or not isinstance(left.high, int):
        return ""
    if -left.high <= (weights.high or 0):
        return ""
    return (
        f"that is more than the weights ({weights.printed}): either another process took memory of"
        " the GPU while this one loaded and measured, or the step that is profiled is too large"
    )


def least_fraction(facts: _Facts) -> str:
    """Return SGLang's smallest share: 1 - free after loading / the card, rounded up."""
    free, total = facts.get("free_after_weights"), _card(facts)
    if free is None or not isinstance(free.low, int) or not total:
        return ""
    return f"{-floor(-(1 - Fraction(free.low, total)) * 10_000) / 10_000:.4f}"


def _card(facts: _Facts) -> int | None:
    """Return the card's memory: logged, or what was free before the weights."""
    for name in ("total_memory", "free_before_weights"):
        if name in facts and isinstance(facts[name].high, int):
            return int(facts[name].high or 0)
    weights, free = facts.get("weights_memory"), facts.get("free_after_weights")
    if weights is None or free is None:
        return None
    return int(weights.high or 0) + int(free.high or 0)


def _allocation(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    if engine.startswith("exllama"):
        return "the weights and the cache do not fit on the card: the whole length is allocated"
    size = facts.get("failed_memory") or facts.get("failed_bytes")
    told = "an allocation failed" if size is None else f"an allocation of {size.printed} failed"
    cache, predicted = facts.get("cache_size"), found.get("cache_bytes")
    if predicted is not None and size is not None and agrees(size, predicted):
        told += f": it was the cache, {predicted.basis}"
    if cache is not None and size is not None:
        told += f"; the cache ({cache.printed}) was there already: it was not the cache"
    return told


def _cache(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    told = _allocation(engine, facts, found)
    return told if "the cache" in told else f"{told}: it was the cache"


def _graphs(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, facts, found
    return "the graphs could not be captured: they take memory beside the cache"


def _prefill(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, found
    return f"a prefill of {_printed(facts, 'asked_tokens')} tokens does not fit"


def _warm_up(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, found
    told = f"the warm-up of {_printed(facts, 'asked_tokens')} tokens failed"
    if "kv_cache_tokens" in facts:
        told += f": the cache holds {_printed(facts, 'kv_cache_tokens')} tokens"
    return told


def _component(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    """Say which part of TensorRT-LLM's executor found no memory (py_executor_creator.py)."""
    del engine, found
    told = f"memory ran out while {_printed(facts, 'component', 'a part of it')} was created"
    free, total = (_printed(facts, n, "") for n in ("free_before_component", "total_memory"))
    return f"{told}: {free} of {total} were free before it" if free and total else told


REFUSALS = (
    ("others_hold", _others_hold),
    ("too_long", _too_long),
    ("too_long_v0", _too_long),
    ("nothing_left", _nothing_left),
    ("cache_failed", _cache),
    ("allocation", _allocation),
    ("graphs", _graphs),
    ("prefill", _prefill),
    ("warm_up", _warm_up),
    ("component-without-memory", _component),
)
"""What a line said -> what it means, the one that says the most first."""
