"""Where the memory went by the log's own figures: sums that need no model.

Each rule is the engine's: what it takes from what. A sum is kept as a range, as every term of it
is printed rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, floor

from kvcalc.core.logs import Fact, Predicted
from kvcalc.measure.logs.predict import span_text

__all__ = ["accounted"]

_Facts = Mapping[str, Fact]
_RESERVE = 150 * 2**20
"""What vLLM keeps back of its own suggestions (gpu_worker.py, compile_or_warm_up_model)."""


def accounted(engine: str, facts: _Facts) -> dict[str, Predicted]:
    """Return the figures that the log's other figures give."""
    rules = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt}
    rule = rules.get(engine)
    return dict(rule(facts)) if rule is not None else {}


def _sum(facts: _Facts, plus: str, *minus: str) -> tuple[int, int] | None:
    """Return one figure less others as a range; None where one is not logged."""
    first = _of(facts, plus)
    if first is None:
        return None
    low, high = first
    for name in minus:
        found = _of(facts, name)
        if found is None:
            return None
        low, high = low - found[1], high - found[0]
    return low, high


def _of(facts: _Facts, name: str) -> tuple[int, int] | None:
    fact = facts.get(name)
    if fact is None or not isinstance(fact.low, int) or not isinstance(fact.high, int):
        return None
    return fact.low, fact.high


def _bytes(span: tuple[int, int], basis: str) -> Predicted:
    low, high = span
    text = span_text(low, high, "B")
    return Predicted(text=text, low=low, high=high, unit="B", basis=basis)


def _share_of(facts: _Facts) -> tuple[int, int] | None:
    """Return gpu_memory_utilization times the card's memory."""
    total, share = _of(facts, "total_memory"), facts.get("gpu_memory_utilization")
    if total is None or share is None:
        return None
    if share.low is None or share.high is None:
        return None
    # V0 prints two decimals of the share, and V1 all of them: the former is a range.
    low, high = Fraction(str(share.low)), Fraction(str(share.high))
    return floor(total[0] * low), ceil(total[1] * high)


def _vllm(facts: _Facts) -> Iterator[tuple[str, Predicted]]:
    share = _share_of(facts)
    if share is not None and "requested_memory" in facts:
        yield "requested_memory", _bytes(share, "gpu_memory_utilization of the card")
    if share is not None and "initial_memory" in facts:
        peak, other = _of(facts, "peak_torch_memory"), _of(facts, "non_torch_memory")
        if peak is not None and other is not None:
            span = share[0] - peak[1] - other[1], share[1] - peak[0] - other[0]
            yield "available_kv_cache", _bytes(span, "the share less PyTorch's peak and the rest")
    for terms in (
        ("weights_memory", "non_torch_memory", "activation_memory"),
        ("consumed_memory", "activation_memory"),
    ):
        left = _sum(facts, "requested_memory", *terms)
        if left is None:
            continue
        words = ", ".join(name.removesuffix("_memory").replace("_", " ") for name in terms)
        estimate = _of(facts, "estimated_graph_memory")
        if estimate is not None and not _meets(left, _of(facts, "available_kv_cache")):
            left = left[0] - estimate[1], left[1] - estimate[0]
            words += ", the graphs' estimate"
        yield "available_kv_cache", _bytes(left, f"the share less {words}")
        free = _sum(facts, "free_memory", *terms, "graph_memory")
        if free is not None and "suggested_to_fill_gib" in facts:
            span = free[0] - _RESERVE, free[1] - _RESERVE
            basis = f"what is free less {words}, the graphs and 150 MiB"
            yield "suggested_to_fill_gib", _bytes(span, basis)
    fit = _sum(facts, "available_kv_cache", "graph_memory")
    if fit is not None and "suggested_to_fit_gib" in facts:
        span = fit[0] - _RESERVE, fit[1] - _RESERVE
        yield "suggested_to_fit_gib", _bytes(span, "the cache less the graphs and 150 MiB")


def _meets(first: tuple[int, int], second: tuple[int, int] | None) -> bool:
    return second is None or (first[0] <= second[1] and second[0] <= first[1])


_FIXED_PARTS = (
    *("c128_state_memory", "c2_state_memory", "c4_state_memory"),
    *("window_memory", "window_ring_memory"),
)
"""What SGLang takes off the memory of DeepSeek-V4's tokens first, whatever their number."""

_PADDING = 8
"""Pages at most that newer releases take off for what is reserved (pool_configurator.py)."""


def _sglang(facts: _Facts) -> Iterator[tuple[str, Predicted]]:
    free, total = _of(facts, "free_after_weights"), _of(facts, "total_memory")
    share = facts.get("mem_fraction_static")
    if free is not None and total is not None and share is not None:
        kept = 1 - Fraction(share.printed)
        span = floor(free[0] - total[1] * kept), ceil(free[1] - total[0] * kept)
        if "available_kv_cache" in facts:
            basis = "what is free after loading less (1 - mem_fraction_static) of the card"
            yield "available_kv_cache", _bytes(span, basis)
    parts = [name for name in _FIXED_PARTS if name in facts]
    left, price = _sum(facts, "available_kv_cache", *parts), facts.get("bytes_per_full_token")
    if left is not None and price is not None and "full_tokens" in facts and price.low:
        page = 256
        padding = _PADDING if "c2_state_memory" in facts else 0
        low = max(0, int(left[0] / float(price.high or 1)) // page - padding) * page
        high = int(left[1] / float(price.low)) // page * page
        yield (
            "full_tokens",
            Predicted(
                text=span_text(low, high, "tokens"),
                low=low,
                high=high,
                unit="tokens",
                basis="that memory over the bytes of a token, in pages of 256",
            ),
        )


def _tensorrt(facts: _Facts) -> Iterator[tuple[str, Predicted]]:
    """Yield the cache of the PyTorch backend: _torch/pyexecutor/_util.py, _cal_max_memory."""
    left, given = _sum(facts, "total_memory", "peak_memory"), _of(facts, "profiled_cache")
    share = facts.get("free_gpu_memory_fraction")
    if left is None or given is None or share is None or "available_kv_cache" not in facts:
        return
    part = Fraction(share.printed)
    span = floor((left[0] + given[0]) * part), ceil((left[1] + given[1]) * part)
    basis = "free_gpu_memory_fraction of what the peak leaves, without the cache it was measured by"
    yield "available_kv_cache", _bytes(span, basis)
