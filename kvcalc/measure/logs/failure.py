"""How a start ended that did not come up: what failed, by how much, and what would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import floor

from kvcalc.core.logs import Fact, Predicted
from kvcalc.core.units import format_bytes, format_count
from kvcalc.measure.logs.predict import span_text

__all__ = ["cures", "failure"]

_Facts = Mapping[str, Fact]


def failure(
    engine: str, flags: Mapping[str, int], facts: _Facts, found: Mapping[str, Predicted]
) -> str | None:
    """Return what ended a start, with the arithmetic; None where nothing did."""
    if "failed" not in flags:
        return None
    for flag, told in _TOLD:
        if flag in flags:
            return told(engine, facts, found)
    return "the start failed"


def _printed(facts: _Facts, name: str, otherwise: str = "an unknown size") -> str:
    return facts[name].printed if name in facts else otherwise


def _too_long(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    length = _printed(facts, "max_model_len", _printed(facts, "asked_tokens", "the maximum"))
    need = found.get("needed_memory")
    needed = _printed(facts, "needed_memory", "" if need is None else need.text)
    available = _printed(facts, "available_kv_cache", "")
    told = f"one sequence of {length} tokens does not fit"
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
    available, logged = facts.get("available_kv_cache"), facts.get("needed_memory")
    if available is None or not isinstance(available.low, int):
        return ""
    low = need.low if need is not None else logged.low if logged is not None else None
    high = need.high if need is not None else logged.high if logged is not None else None
    if not isinstance(low, int) or not isinstance(high, int):
        return ""
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
        told += f"; {_highest_share(facts)} is the most that starts"
    return told


def _highest_share(facts: _Facts) -> str:
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
        larger = max(("weights", "weights_memory"), ("temporary buffer", "activation_memory"),
                     key=lambda pair: facts[pair[1]].low or 0)  # fmt: skip
        return (
            f"weights and the temporary buffer come to {span_text(low, high, 'B')}, and"
            f" {_printed(facts, 'free_memory')} are there: {missing} short before any cache; the"
            f" {larger[0]} is the larger part"
        )
    if engine == "sglang":
        told = "weights leave nothing of --mem-fraction-static"
        told += f" {_printed(facts, 'mem_fraction_static', '')}".rstrip()
        share = _least_fraction(facts)
        return told + (f"; from {share} on something is left" if share else "")
    available = _printed(facts, "available_kv_cache", "")
    return "nothing is left for the cache" + (f": {available} available" if available else "")


def _least_fraction(facts: _Facts) -> str:
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
    del found
    if engine.startswith("exllama"):
        return "the weights and the cache do not fit on the card: the whole length is allocated"
    size = facts.get("failed_memory") or facts.get("failed_bytes")
    told = "an allocation failed" if size is None else f"an allocation of {size.printed} failed"
    cache = facts.get("cache_size")
    if cache is not None and size is not None:
        told += f"; the cache ({cache.printed}) was there already: it was not the cache"
    return told


def _prefill(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, found
    return f"a prefill of {_printed(facts, 'asked_tokens')} tokens does not fit"


def _warm_up(engine: str, facts: _Facts, found: Mapping[str, Predicted]) -> str:
    del engine, found
    told = f"the warm-up of {_printed(facts, 'asked_tokens')} tokens failed"
    if "kv_cache_tokens" in facts:
        told += f": the cache holds {_printed(facts, 'kv_cache_tokens')} tokens"
    return told


_TOLD = (
    ("others_hold", _others_hold),
    ("too_long", _too_long),
    ("too_long_v0", _too_long),
    ("nothing_left", _nothing_left),
    ("allocation", _allocation),
    ("prefill", _prefill),
    ("warm_up", _warm_up),
)
"""What a line said -> what it means, the one that says the most first."""


def cures(
    engine: str, flags: Mapping[str, int], facts: _Facts, found: Mapping[str, Predicted],
    bytes_per_token: int | None,
) -> Iterator[str]:  # fmt: skip
    """Yield what to change, in the engine's own flags."""

    def gained(size: int) -> str:
        if not bytes_per_token or size <= 0:
            return ""
        return f" (about {format_count(size // bytes_per_token)} tokens more)"

    if "others_hold" in flags and "free_memory" in facts and "total_memory" in facts:
        yield (
            f"--gpu-memory-utilization {_highest_share(facts)}, or end what holds the rest of the"
            " card"
        )
    if "too_long" in flags or "too_long_v0" in flags:
        fits = found.get("max_model_len_that_fits")
        logged = facts.get("max_model_len_that_fits")
        length = int(fits.low) if fits is not None else 0
        if logged is not None and isinstance(logged.low, int):
            length = logged.low
        if length and engine == "vllm":
            yield f"--max-model-len {length}: the longest that fits in this memory"
    current = facts.get("available_kv_cache")
    for name, what in (
        ("suggested_to_fill", "all that was free at the start, less 150 MiB"),
        ("suggested_to_fit", "what the utilisation allows, with the graphs inside"),
    ):
        suggested = facts.get(name)
        if suggested is None or not isinstance(suggested.low, int):
            continue
        more = suggested.low - int(current.high or 0) if current is not None else 0
        yield f"--kv-cache-memory-bytes {suggested.low}: {what}{gained(more)}"
    estimated, actual = facts.get("estimated_graph_memory"), facts.get("graph_memory")
    if estimated is not None and actual is not None:
        given = int(estimated.low or 0) - int(actual.high or 0)
        if given > 2**28:
            yield (
                f"the graphs took {actual.printed} of an estimated {estimated.printed}:"
                f" {format_bytes(given)} of cache were given away{gained(given)};"
                " --kv-cache-memory-bytes takes them back"
            )
    if engine == "sglang" and "nothing_left" in flags and (share := _least_fraction(facts)):
        yield f"--mem-fraction-static above {share}, more GPUs, or smaller weights"
    if engine == "sglang" and (profiled := facts.get("profiled_tokens")) is not None:
        if isinstance(profiled.low, int) and profiled.low <= 0:
            yield (
                f"the profiled tokens are {profiled.printed}: the weights leave less than nothing"
                " under --mem-fraction-static; raise it, or use more GPUs"
            )
    if engine == "mlc-llm" and "nothing_left" in flags:
        yield "a smaller prefill_chunk_size (--overrides), or a higher gpu_memory_utilization"
    if engine == "llama.cpp" and "allocation" in flags:
        yield "a smaller -ub and -c, -ctk q8_0 -ctv q8_0, or fewer layers on the card (-ngl)"
    if engine.startswith("exllama") and "allocation" in flags:
        yield "a smaller cache_size (max_seq_len), or cache_mode Q8, Q6 or Q4"
