"""Where the memory went by the log's own figures: sums that need no model.

Each rule is the engine's: what it takes from what. A sum is kept as a range, as every term of it
is printed rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from math import ceil, floor

from kvcalc.core.logs import Fact, Predicted
from kvcalc.measure.logs.predict import span_text

__all__ = ["accounted", "graphs_given"]

_Facts = Mapping[str, Fact]
_RESERVE = 150 * 2**20
"""What vLLM keeps back of its own suggestions (gpu_worker.py, compile_or_warm_up_model)."""


def accounted(
    engine: str,
    facts: _Facts,
    flags: Collection[str] = (),
    total: tuple[int, int] | None = None,
) -> dict[str, Predicted]:
    """Return the figures that the log's other figures give.

    Args:
        engine: whose log it is.
        facts: its figures, of one rank where ranks have their own.
        flags: what its lines without figures say.
        total: [least, most] bytes of the GPU, where it is known and not logged.
    """
    if engine == "vllm":
        return dict(_vllm(facts, flags, total))
    rules = {"sglang": _sglang, "tensorrt-llm": _tensorrt}
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


def _vllm(
    facts: _Facts, flags: Collection[str], total: tuple[int, int] | None
) -> Iterator[tuple[str, Predicted]]:
    share = _share_of(facts)
    if share is not None and "requested_memory" in facts:
        yield "requested_memory", _bytes(share, "gpu_memory_utilization of the card")
    if share is not None and "initial_memory" in facts:
        peak, other = _of(facts, "peak_torch_memory"), _of(facts, "non_torch_memory")
        if peak is not None and other is not None:
            span = share[0] - peak[1] - other[1], share[1] - peak[0] - other[0]
            yield "available_kv_cache", _bytes(span, "the share less PyTorch's peak and the rest")
    yield from _graphs(facts, total)
    for terms in _TERMS:
        left = _sum(facts, "requested_memory", *terms)
        if left is None:
            continue
        words = ", ".join(name.removesuffix("_memory").replace("_", " ") for name in terms)
        estimate = _of(facts, "estimated_graph_memory")
        if estimate is not None and _graphs_taken(facts, flags, left, estimate):
            taken, told = (left[0] - estimate[1], left[1] - estimate[0]), ", the graphs' estimate"
        else:
            taken, told = left, ""
        yield "available_kv_cache", _bytes(taken, f"the share less {words}{told}")
        for name, whole, what in (
            ("suggested_to_fit", "requested_memory", "the share"),
            ("suggested_to_fill", "free_memory", "what is free"),
        ):
            found = _sum(facts, whole, *terms, "graph_memory")
            if found is not None:
                # The graphs as captured, whatever was estimated of them.
                span = found[0] - _RESERVE, found[1] - _RESERVE
                basis = f"{what} less {words}, the graphs as captured and 150 MiB"
                yield from _suggested(facts, name, span, basis)
        return
    fit = _sum(facts, "available_kv_cache", "graph_memory")
    if fit is not None and "estimated_graph_memory" not in facts:
        span = fit[0] - _RESERVE, fit[1] - _RESERVE
        yield from _suggested(
            facts, "suggested_to_fit", span, "the cache less the graphs and 150 MiB"
        )


_TERMS = (
    ("weights_memory", "non_torch_memory", "activation_memory"),
    ("consumed_memory", "activation_memory"),
)
"""What is taken of the share before the cache, up to 0.26 and since 0.27, whose activation has the
estimate of the graphs in it (gpu_worker.py, determine_available_memory)."""


def _suggested(
    facts: _Facts, name: str, span: tuple[int, int], basis: str
) -> Iterator[tuple[str, Predicted]]:
    """Yield a cache that vLLM suggests, by the figure that tells it: in GiB too since 0.11."""
    shown = f"{name}_gib" if f"{name}_gib" in facts else name
    if shown in facts:
        yield shown, _bytes(span, basis)


def _graphs(facts: _Facts, total: tuple[int, int] | None) -> Iterator[tuple[str, Predicted]]:
    """Yield the estimate of the graphs by two shares, which are that part of the GPU apart.

    Each is rounded to four decimals, and the larger is no more than 1.
    """
    share = facts.get("gpu_memory_utilization")
    if share is None or not isinstance(share.low, float):
        return
    parts = []
    less, more = facts.get("utilization_without_graphs"), facts.get("utilization_with_graphs")
    if less is not None and less.low is not None and less.high is not None:
        parts.append((share.low - less.high, (share.high or share.low) - less.low))
    if more is not None and more.low is not None and more.high is not None and more.low < _ALL:
        parts.append((more.low - (share.high or share.low), more.high - share.low))
    if not parts:
        return
    low, high = max(0.0, *(one for one, _ in parts)), min(one for _, one in parts)
    if high < low:
        return
    whole = _of(facts, "total_memory") or total
    if whole is None:
        text = f"{(low + high) / 2:.2%} of the GPU"
        basis = "the shares with and without the graphs"
        yield (
            "estimated_graph_share",
            Predicted(text=text, low=low, high=high, unit="share", basis=basis),
        )
        return
    span = floor(whole[0] * low), ceil(whole[1] * high)
    yield "estimated_graph_memory", _bytes(span, "the shares with and without the graphs")


_ALL = 0.9999


def _graphs_taken(
    facts: _Facts, flags: Collection[str], left: tuple[int, int], estimate: tuple[int, int]
) -> bool:
    """Whether the estimate of the graphs was taken off the cache.

    A line says that it was not, else the sum does: what of the two gives the cache that is logged.
    Since 0.27 the activation that is printed has it already.
    """
    if "graphs_not_counted" in flags:
        return False
    available = _of(facts, "available_kv_cache")
    without = _meets(left, available)
    within = _meets((left[0] - estimate[1], left[1] - estimate[0]), available)
    return within if within != without else "consumed_memory" not in facts


def graphs_given(facts: _Facts, flags: Collection[str], *, counted: bool) -> int:
    """Return the bytes of cache that an estimate of the graphs took and the graphs did not.

    0 where nothing was taken for them.

    Args:
        facts: of the start.
        flags: what its lines without figures say.
        counted: the release takes the estimate off the share unless it is told not to.
    """
    estimate, actual = _of(facts, "estimated_graph_memory"), _of(facts, "graph_memory")
    if estimate is None or actual is None or "graphs_not_counted" in flags:
        return 0
    left = _sum(facts, "requested_memory", *_TERMS[0])
    taken = counted or "graphs_counted" in flags or "consumed_memory" in facts
    if left is not None:
        taken = _graphs_taken(facts, flags, left, estimate)
    return max(0, estimate[0] - actual[1]) if taken else 0


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
