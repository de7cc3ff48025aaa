"""Where the memory went, by the figures of the log and beside what kvcalc would have said.

Each rule is the engine's: what it takes from what. A sum is kept as a range, as every term of it
is printed rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from math import ceil, floor

import msgspec

from kvcalc.answers.capacity import RankBudget
from kvcalc.answers.logs import Fact, LoggedTerm, Predicted
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.engines.engine import Engine
from kvcalc.measure.logs.engine_settings import Devices, on_device
from kvcalc.measure.logs.predict import agrees, span_text

__all__ = ["UNTOLD", "accounted", "excess", "graphs_given", "telling", "terms_of", "total_of"]

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


# --------------------------------------------------------------------- terms
#
# The memory of one GPU as the log tells it, beside what kvcalc would have said without the log.

_LOGGED_TERMS = (
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
    engine: Engine,
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
    for name, figures in _LOGGED_TERMS:
        if name in (("weights", "other") if consumed else ("weights and other",)):
            continue
        if name == ("activation" if engine.logs_devices else "compute buffers"):
            continue  # llama.cpp's compute buffers are the activation of other engines
        fact = next((facts[figure] for figure in figures if figure in facts), None)
        logged = _range(fact)
        source = "" if fact is None else f"line {fact.line}"
        if engine.logs_parts and name in _OF_SGLANG:
            logged = _sglang_term(facts, name) or logged
        if engine.logs_devices and (told := on_device(name, devices or {}, facts)) is not None:
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


def _capped(engine: Engine, term: str, facts: Mapping[str, Fact], least: int) -> bool:
    """Whether SGLang's cache is smaller than memory allows: what is free beside it would do.

    A number of tokens (--max-total-tokens) or of requests that was given keeps it so.
    """
    if not engine.logs_parts or term != "cache":
        return False
    pools, free = _sglang_term(facts, term), _range(facts.get("free_after_pool"))
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


def _sglang_term(facts: Mapping[str, Fact], term: str) -> tuple[int, int] | None:
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


# --------------------------------------------------------------------- evidence
#
# Which figures that agree could have disagreed: those alone speak for what kvcalc says.
#
# A number of blocks that is read from a log and multiplied back agrees for any model. So the start
# is planned once more with models that it is not: one of three times the layers (no size that is
# found by trying powers of two makes up for that), one of twice the width of a head. Where each
# figure agrees with those as well, nothing speaks for the model. Where some do not, those count,
# and so does a figure that agrees with what the other lines of the log alone give.

UNTOLD = Fact(printed="", low=None, high=None, unit="text", line=0)
"""A figure that stands for one that is asked about and not known."""

_WIDTHS = ("head_dim", "v_head_dim", "kv_lora_rank")


Predict = Callable[[ModelSpec, Mapping[str, Fact]], Mapping[str, Predicted]]
"""Figures of another model, or of fewer facts, with what is derived from the log derived anew."""


def telling(
    model: ModelSpec,
    facts: Mapping[str, Fact],
    found: Mapping[str, Predicted],
    predict: Predict,
) -> frozenset[str]:
    """Return the names of figures that agree and could have disagreed."""
    agreeing = {name for name, value in found.items() if name in facts
                and agrees(facts[name], value)}  # fmt: skip
    same = set(agreeing)
    for other in _others(model):
        if same:
            same &= _agreeing(predict, other, facts, facts)
    strong = agreeing - same
    if not strong:
        return frozenset()
    for line in {facts[name].line for name in same}:
        rest = {name: fact for name, fact in facts.items() if fact.line != line}
        mine = {name for name in same if facts[name].line == line}
        strong |= mine & _agreeing(predict, model, rest, facts)
    return frozenset(strong)


def _agreeing(
    predict: Predict, model: ModelSpec, known: Mapping[str, Fact], facts: Mapping[str, Fact]
) -> set[str]:
    """Return the names of figures that agree with those of a model by what is known of the log."""
    try:
        told = predict(model, {**known})
    except KvcalcError:
        return set(facts) if known is facts else set()
    return {name for name, value in told.items() if name in facts and agrees(facts[name], value)}


_MORE = 3


def _others(model: ModelSpec) -> Iterator[ModelSpec]:
    yield msgspec.structs.replace(
        model, layers=model.layers * _MORE, num_hidden_layers=model.num_hidden_layers * _MORE
    )
    wider = []
    for run in model.layers:
        caches = tuple(
            msgspec.structs.replace(
                cache,
                **{
                    name: 2 * size
                    for name in _WIDTHS
                    if isinstance(size := getattr(cache, name, None), int) and size
                },
            )
            for cache in run.caches
        )
        wider.append(msgspec.structs.replace(run, caches=caches))
    yield msgspec.structs.replace(model, layers=tuple(wider))
