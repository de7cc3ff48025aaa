"""Why a start failed, and what to set so that it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, floor

import msgspec

from kvcalc.answers.capacity import Figures, Lever
from kvcalc.answers.logs import Fact, Fix, Predicted
from kvcalc.core.capacity import smallest_budget
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.engines import plan
from kvcalc.engines.changes import Change, share_change
from kvcalc.measure.logs.measured import Measured, card_of
from kvcalc.measure.logs.predict import agrees, span_text
from kvcalc.sizing import Question, answer
from kvcalc.sizing.lever_changes import lever_changes
from kvcalc.sizing.question import work
from kvcalc.sizing.sharing import largest_share

__all__ = [
    "REFUSALS",
    "beside_others",
    "beyond_weights",
    "explained",
    "failure",
    "fix_of",
    "fixes",
    "highest_share",
    "least_fraction",
    "levers",
    "share_by_figures",
]

_Facts = Mapping[str, Fact]


def failure(
    engine: str,
    flags: Mapping[str, int],
    facts: _Facts,
    found: Mapping[str, Predicted],
    error: str = "",
) -> str | None:
    """Return what ended a start, with the arithmetic; None where nothing did."""
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


# --------------------------------------------------------------------- fixes
#
# What to change so that a start succeeds, each tried by a plan: the cheapest first.
#
# A share costs nothing; fewer sequences and smaller steps cost speed, a shorter maximum requests, a
# cache in fp8 quality, more GPUs money. Of each kind the least change that works is told, and none
# that does not.

_SHARE = "gpu_memory_utilization"
_PERCENT = 100
_MOST_SHARE = Fraction(98, 100)
"""Of a GPU: the driver's own part is never given."""

_SEQS = (512, 256, 128, 64, 32, 16, 8)
_STEPS = (8192, 4096, 2048, 1024)
_RANKS = (2, 4, 8, 16)
_WEIGHTS = ("fp8", "int4")
_NOTHING = 1.002
_MOST_LEVERS = 8


def fixes(found: Measured, facts: Mapping[str, Fact]) -> Iterator[Fix]:
    """Yield what makes a start succeed that was refused for want of room, the cheapest first."""
    yield from _share(found)
    yield from _smaller(found)
    yield from _shorter(found, facts)
    for change, cost in (
        (Change("cache in fp8", {"kv_cache_dtype": "fp8"}), "quality may change"),
        (Change("no CUDA graphs", {"enforce_eager": True}), "slower decoding"),
    ):
        if (figures := _works(found, change)) is not None:
            yield _fix(found, change, figures, cost)
    yield from _more_gpus(found)
    for word in _WEIGHTS:
        change = Change(f"weights in {word}", quantization=word)
        if found.as_published and (figures := _works(found, change)) is not None:
            fixed = _fix(found, change, figures, "quality may change")
            yield msgspec.structs.replace(
                fixed, text=f"a checkpoint quantized to {word}: {fixed.text}"
            )
            break


def beside_others(
    model: ModelSpec,
    deployment: Deployment,
    facts: Mapping[str, Fact],
    quantization: str | None = None,
) -> Iterator[tuple[bool, Fix]]:
    """Yield the largest share that starts beside what others hold, if it leaves enough.

    Args:
        model: of the start.
        deployment: of it.
        facts: the log's figures: what was free, and of how much.
        quantization: of the weights, where it is given.

    Yields:
        whether it surely leaves enough, and the share with what it gives.
    """
    free, total = facts.get("free_memory"), facts.get("total_memory")
    if free is None or total is None or not isinstance(free.low, int):
        return
    share = float(highest_share(facts) or 0)
    if share <= 0:
        return
    card = card_of(deployment, (int(total.low or 0) + int(total.high or 0)) // 2)
    change = share_change(_SHARE, share)
    asked = Question(
        model=model,
        deployment=msgspec.structs.replace(deployment, gpu=card, kv_cache_memory_bytes=None),
        quantization=quantization,
    )
    try:
        found = answer(change.applied(asked))
    except KvcalcError:
        return
    if found.low.fits:
        yield True, fix_of(change, found.low, found.max_model_len, "")
    elif found.high.fits:
        yield False, fix_of(change, found.high, found.max_model_len, "if all else takes its least")


def _works(found: Measured, change: Change) -> Figures | None:
    """Return the figures of a change that makes the start succeed; None where it is none."""
    deployment = found.deployment
    if all(getattr(deployment, name) == value for name, value in change.settings.items()) and (
        change.settings
    ):
        return None
    return found.works(change)


def _share(found: Measured) -> Iterator[Fix]:
    """Yield the least share, in hundredths, with which it starts."""
    if found.share is None:
        return
    need = smallest_budget(found.plan, 1)
    most = _most_share(found)
    if need is None:
        return
    least = found.share + Fraction(max(0, need - found.available[0]), found.gpu.low)
    step = ceil(least * _PERCENT)
    for tried in (step, step + 1):
        share = Fraction(tried, _PERCENT)
        if not found.share < share <= most:
            return
        change = share_change(_SHARE, float(share))
        if (figures := _works(found, change)) is not None:
            yield _fix(found, change, figures, _free_wanted(found, share))
            return


def _most_share(found: Measured) -> Fraction:
    """Return the largest share that starts: what was free, else what leaves room beside it."""
    if found.free is not None and found.gpu.high is not None:
        return Fraction(found.free, found.gpu.high)
    if found.budgets and found.gpu.high is not None:
        return Fraction(str(min(map(largest_share, found.budgets))))
    return _MOST_SHARE


def _free_wanted(found: Measured, share: Fraction) -> str:
    if found.free is not None:
        return ""
    if found.gpu.high is None:
        return f"{float(share):.0%} of the GPU must be free at the start"
    return f"{format_bytes(floor(share * found.gpu.high))} of the GPU must be free at the start"


def share_by_figures(facts: Mapping[str, Fact], share: Fraction | None) -> tuple[float, str] | None:
    """Return the least share by a log's own figures, where no model is known, and the sum.

    The engine itself tells what one sequence needs, and what was available.
    """
    names = ("needed_memory", "available_kv_cache", "total_memory")
    need, left, total = (facts.get(name) for name in names)
    if None in (need, left, total) or share is None:
        return None
    low, high = left.low if left else None, need.high if need else None
    whole = total.low if total else None
    if not isinstance(low, int) or not isinstance(high, int) or not isinstance(whole, int):
        return None
    least = ceil((share + Fraction(max(0, high - low), whole)) * _PERCENT)
    free = facts.get("free_memory")
    most = _MOST_SHARE
    if free is not None and isinstance(free.low, int) and total is not None:
        most = Fraction(free.low, int(total.high or whole))
    if not share < Fraction(least, _PERCENT) <= most:
        return None
    missing = format_bytes(max(0, high - low))
    return least / _PERCENT, f"{missing} more of the GPU's {format_bytes(whole)}"


def _smaller(found: Measured) -> Iterator[Fix]:
    """Yield fewer sequences and smaller steps, of each the most that works."""
    if not found.budgets:
        return
    for name, sizes in (("max_num_seqs", _SEQS), ("max_num_batched_tokens", _STEPS)):
        now = getattr(found.deployment, name)
        for size in sizes:
            if now is not None and size >= now:
                continue
            change = Change(name, {name: size})
            if (figures := _works(found, change)) is not None:
                cost = "fewer requests at once" if name == "max_num_seqs" else "slower prefill"
                yield _fix(found, change, figures, cost)
                break


def _shorter(found: Measured, facts: Mapping[str, Fact]) -> Iterator[Fix]:
    """Yield the longest maximum that fits: the engine's own figure, else the plan's."""
    now = found.plan.max_model_len
    logged = facts.get("max_model_len_that_fits")
    figures = found.figures(Change("as it is"))
    longest = logged.low if logged is not None and isinstance(logged.low, int) else None
    tried = [longest] if longest else []
    if figures is not None and figures.max_model_len_that_fits:
        tried.append(figures.max_model_len_that_fits)
    for length in tried:
        if not 0 < length < now:
            continue
        change = Change("maximum", {"max_model_len": length})
        most = found._replace(available=(found.available[1], found.available[1]))
        fits = _works(found, change) or (_works(most, change) if length == longest else None)
        if fits is not None:
            yield _fix(found, change, fits, "longer requests are refused")
            return


def _more_gpus(found: Measured) -> Iterator[Fix]:
    """Yield the fewest ranks, doubled, with which it starts."""
    tp = found.deployment.tensor_parallel_size
    for times in _RANKS:
        change = Change("tensor parallel", {"tensor_parallel_size": tp * times})
        if (figures := _works(found, change)) is not None:
            gpus = tp * times * found.deployment.pipeline_parallel_size
            yield _fix(found, change, figures, f"{gpus} GPUs")
            return


_FLAGS = {
    _SHARE: "--gpu-memory-utilization",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
}


def _fix(found: Measured, change: Change, figures: Figures, cost: str) -> Fix:
    return fix_of(change, figures, found.plan.max_model_len, cost)


def fix_of(change: Change, figures: Figures, max_model_len: int, cost: str) -> Fix:
    """Return a change that works, with what it gives and costs.

    Args:
        change: with the settings whose flags are told.
        figures: what a plan makes of it, at the least.
        max_model_len: of the start, where the change leaves it.
        cost: in words; "" for none.
    """
    flags: list[str] = []
    for name, value in change.settings.items():
        if name in _FLAGS:
            flags += [_FLAGS[name], f"{value:g}" if isinstance(value, float) else str(value)]
        elif value is True:
            flags.append(f"--{name.replace('_', '-')}")
    length = change.settings.get("max_model_len", max_model_len)
    gives = (
        f"{format_bytes(figures.kv_cache_bytes or 0)} of cache,"
        f" {format_count(figures.kv_cache_tokens)} tokens:"
        f" {format_number_of(figures.max_sequences, 'sequence')} of {format_count(length)}"
    )
    return Fix(
        flags=tuple(flags),
        text="; ".join(filter(None, (": ".join(filter(None, (" ".join(flags), gives))), cost))),
        kv_cache_bytes=figures.kv_cache_bytes,
        kv_cache_tokens=figures.kv_cache_tokens,
        max_concurrency=figures.max_concurrency,
    )


def levers(found: Measured) -> tuple[Lever, ...]:
    """Return what each setting would buy with a start's own memory, the most first."""
    asked, first = found.question, found.figures(Change("as it is"))
    if first is None:
        return ()
    try:
        own = work(asked)
    except KvcalcError:
        # Nothing tells the weights: settings that leave them as they are can be tried all the same.
        from kvcalc.sizing.worked import Worked

        size = max(found.available[0], 1)
        own = Worked(plan(asked.model, asked.deployment), (), size, size, size, asked.each)
    once = first.max_concurrency * asked.holders
    gaining: dict[tuple[str, ...], Lever] = {}
    for change in lever_changes(asked, own):
        if change.quantization and not found.as_published:
            continue
        figures = found.figures(change)
        holders = change.applied(asked).holders
        if figures is None or not figures.starts:
            continue
        now = figures.max_concurrency * holders
        if once and now <= once * _NOTHING:
            continue
        tokens = figures.kv_cache_tokens * holders
        gaining.setdefault(
            change.flags or (change.name,),
            Lever(
                name=change.name,
                flags=change.flags,
                figures=figures,
                kv_cache_tokens=tokens,
                max_concurrency=now,
                tokens_gained=tokens - first.kv_cache_tokens * asked.holders,
                concurrency_gain=now / once if once else None,
                caution=change.caution,
            ),
        )
    ordered = sorted(gaining.values(), key=lambda one: (not one.figures.fits, -one.max_concurrency))
    return tuple(ordered[:_MOST_LEVERS])
