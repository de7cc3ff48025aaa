"""An out-of-memory text inside a log: what ran out at which phase of a start, and what helps there.

Weights that do not fit are no matter of the share or of batches; a step that is profiled is not
bounded by the share either; what comes behind the cache is outside the share, so that a smaller one
makes room. What is told as a cure was confirmed by a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import floor
from typing import NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Fact, Fix
from kvcalc.core.model import ModelSpec
from kvcalc.core.oom_values import OutOfMemory
from kvcalc.core.units import format_bytes
from kvcalc.engines import plan
from kvcalc.engines.changes import Change, share_change
from kvcalc.measure.logs.fixes import fix_of
from kvcalc.measure.logs.measured import Gpu, Measured, card_of
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.weights import weights_of

__all__ = ["RanOut", "judged", "ran_out"]

_RANKS = (2, 4, 8, 16)
_WEIGHTS = ("fp8", "int4")
_LARGER = ("l40s", "a100-80gb", "h100-80gb", "h200", "b200")
_SEQS = (256, 128, 64, 32, 16, 8)
_STEPS = (8192, 4096, 2048, 1024, 512)
_OTHERS = 2**30
"""Bytes of other processes that are worth a line; the driver's own are less."""

_SHARE = "gpu_memory_utilization"
_PERCENT = 100
_SLACK = 2**28
"""Bytes that a smaller share leaves beyond what was missing."""


class RanOut(NamedTuple):
    """What ran out.

    Attributes:
        cause: in a clause; "" where the figures alone tell.
        fixes: what a plan says that works.
        advice: what helps at this phase, and what does not.
    """

    cause: str = ""
    fixes: tuple[Fix, ...] = ()
    advice: tuple[str, ...] = ()


def judged(lines: Sequence[str]) -> OutOfMemory | None:
    """Return the verdict on the last out-of-memory text among lines; None where there is none."""
    if not lines:
        return None
    from kvcalc.measure.oom import read_oom  # only logs that have one need it

    for text in (*reversed(lines), "\n".join(lines)):
        found = read_oom(text)
        if found is not None:
            return found
    return None


def ran_out(
    oom: OutOfMemory,
    phase: str,
    model: ModelSpec | None,
    deployment: Deployment,
    facts: Mapping[str, Fact],
    found: Measured | None,
    quantization: str | None = None,
) -> RanOut:
    """Return what ran out at a phase of a start of vLLM, and what helps.

    Args:
        oom: the text, judged.
        phase: phases.PHASES.
        model: None where it is not known.
        deployment: of the start.
        facts: the log's figures.
        found: its memory; None where no cache was sized.
        quantization: of the weights, where it is given.
    """
    capacity = oom.text.capacity
    if phase not in _ADVICE:
        return RanOut(advice=oom.advice)
    if capacity is None:  # the text has no figures
        some = () if found is None else tuple(_behind(found.question, phase, oom, found))
        return RanOut("", some, (_ADVICE[phase],))
    asked = None
    if model is not None:
        total = _of(facts, "total_memory") or (capacity.low, capacity.high)
        gpu = card_of(deployment, sum(total) // 2)
        alone = msgspec.structs.replace(deployment, gpu=gpu, kv_cache_memory_bytes=None)
        asked = Question(model=model, deployment=alone, quantization=quantization)
        if found is not None and found.gpu.high is None:
            found = found._replace(gpu=Gpu(*total, "the text"))
    others = _others(oom)
    advice = (*(line for line in oom.advice if line.startswith("expandable")), _ADVICE[phase])
    if phase == "loading":
        cause, fits = _weights(asked, oom, others)
        return RanOut(cause, tuple(fits), advice)
    cause = ""
    if others >= _OTHERS and oom.verdict == "other_process":
        cause = f"other processes hold {format_bytes(others)} of the GPU"
    if asked is None:
        return RanOut(cause, (), advice)
    if phase == "profiling":
        return RanOut(cause, tuple(_step(asked, oom)), advice)
    return RanOut(cause, tuple(_behind(asked, phase, oom, found)), advice)


_ADVICE = {
    "loading": "the weights are loaded before the cache and the step are sized: no lower"
    " --gpu-memory-utilization, batch or length helps",
    "profiling": "the step is profiled before the share counts: fewer tokens or sequences a step"
    " help (--max-num-batched-tokens, --max-num-seqs), a lower --gpu-memory-utilization does not",
    "allocating": "the cache is what the share leaves: a lower --gpu-memory-utilization (or"
    " --kv-cache-memory-bytes) asks for less",
    "capturing": "graphs are captured behind the cache: a lower --gpu-memory-utilization leaves"
    " them room, fewer sizes (--max-num-seqs) take less, --enforce-eager none",
    "warming": "the sampler is warmed up behind the cache: a lower --gpu-memory-utilization or"
    " --max-num-seqs leaves it room",
    "serving": "requests take memory behind the cache: a lower --gpu-memory-utilization leaves"
    " them room",
}  # fmt: skip
"""Phase -> what helps there."""


def _others(oom: OutOfMemory) -> int:
    """Return what other processes hold as the text lists them; 0 where one may be this itself.

    In a container the driver's list has this process under a number that it does not know itself
    by, so that one process alone, of what is allocated here, is no other.
    """
    text = oom.text
    held = [one.memory.bytes for one in text.processes if not one.own]
    own = text.allocated.low if text.allocated is not None else 0
    if len(held) == 1 and not any(one.own for one in text.processes) and held[0] >= own:
        return 0
    return sum(held) if held else oom.other_processes_bytes or 0


# ------------------------------------------------------------------------- weights


def _weights(asked: Question | None, oom: OutOfMemory, others: int) -> tuple[str, Iterator[Fix]]:
    """Return why the weights do not fit, and on what they would."""
    text = oom.text
    capacity = text.capacity.bytes if text.capacity is not None else 0
    size = _on_each(asked)
    if size is not None and asked is not None and size[0] > capacity:
        told = f"the weights ({_span(size)} on each GPU) exceed the GPU's {format_bytes(capacity)}"
        return told, _elsewhere(asked, capacity)
    if others >= _OTHERS:
        told = f"other processes hold {format_bytes(others)} of the GPU's {format_bytes(capacity)}"
        return told, iter(())
    loaded = text.allocated
    part = "" if loaded is None else f": {loaded.text} were allocated when it was full"
    told = f"the weights exceed the GPU's {format_bytes(capacity)}{part}"
    return told, iter(()) if asked is None else _elsewhere(asked, capacity)


def _on_each(asked: Question | None) -> tuple[int, int] | None:
    """Return [least, most] bytes of the weights on a GPU; None where nothing tells them."""
    if asked is None:
        return None
    try:
        terms = weights_of(
            asked.model, asked.deployment, plan(asked.model, asked.deployment),
            total_bytes=asked.weights_bytes, quantization=asked.quantization,
        )  # fmt: skip
    except KvcalcError:
        return None
    most = max(terms, key=lambda term: term.high_bytes)
    return most.low_bytes, most.high_bytes


def _elsewhere(asked: Question, capacity: int) -> Iterator[Fix]:
    """Yield on how many GPUs, in what format and on what GPU the start succeeds."""
    tp = asked.deployment.tensor_parallel_size
    for times in _RANKS:
        change = Change("tensor parallel", {"tensor_parallel_size": tp * times})
        gpus = tp * times * asked.deployment.pipeline_parallel_size
        if fixed := _fits(asked, change, f"{gpus} GPUs of {format_bytes(capacity)}"):
            yield fixed
            break
    for word in _WEIGHTS:
        change = Change(f"weights in {word}", quantization=word)
        if fixed := _fits(asked, change, "quality may change"):
            yield msgspec.structs.replace(
                fixed, text=f"a checkpoint quantized to {word}: {fixed.text}"
            )
            break
    for name in _LARGER:
        try:
            gpu = load_gpu(name)
        except KvcalcError:
            continue
        if gpu.memory_bytes <= capacity:
            continue
        if fixed := _fits(asked, Change(name, {"gpu": gpu}), ""):
            yield msgspec.structs.replace(fixed, text=f"a larger GPU ({name}): {fixed.text}")
            break


def _fits(asked: Question, change: Change, cost: str) -> Fix | None:
    """Return a change with which a capacity answer is a sure yes; None where it is none."""
    try:
        found = answer(change.applied(asked))
    except KvcalcError:
        return None
    return fix_of(change, found.low, found.max_model_len, cost) if found.low.fits else None


# --------------------------------------------------------------- steps, and what is behind


def _step(asked: Question, oom: OutOfMemory) -> Iterator[Fix]:
    """Yield smaller steps whose peak is less by what was missing."""
    missing = oom.shortfall_bytes[1] if oom.shortfall_bytes is not None else 0
    before = _activation(asked)
    for name, sizes in (("max_num_batched_tokens", _STEPS), ("max_num_seqs", _SEQS)):
        now = getattr(asked.deployment, name)
        for size in sizes:
            if now is not None and size >= now:
                continue
            change = Change(name, {name: size})
            after = _activation(change.applied(asked))
            if before is None or after is None or before[0] - after[0] <= missing:
                continue
            cost = "slower prefill" if name == "max_num_batched_tokens" else "fewer at once"
            if fixed := _fits(asked, change, cost):
                yield fixed
                break


def _activation(asked: Question) -> tuple[int, int] | None:
    try:
        budget = answer(asked).budget
    except KvcalcError:
        return None
    return budget[0].activation_bytes if budget else None


def _behind(asked: Question, phase: str, oom: OutOfMemory, found: Measured | None) -> Iterator[Fix]:
    """Yield what leaves room for what comes behind the cache."""
    changes: list[tuple[Change, str]] = []
    capacity, missing = oom.text.capacity, oom.shortfall_bytes
    share = found.share if found is not None else None
    if capacity is not None and share is not None:
        least = _SLACK + (missing[1] if missing is not None else 0)
        lower = floor((share - Fraction(least, capacity.bytes)) * _PERCENT) / _PERCENT
        if lower > 0:
            changes.append((share_change(_SHARE, lower), "less cache"))
    if phase == "warming":
        now = asked.deployment.max_num_seqs
        fewer = [size for size in _SEQS if now is None or size < now][:1]
        changes += [
            (Change("sequences", {"max_num_seqs": size}), "fewer at once") for size in fewer
        ]
    if phase == "capturing":
        changes.append((Change("no graphs", {"enforce_eager": True}), "slower decoding"))
    for change, cost in changes:
        if found is not None:
            figures = found.works(change)
            if figures is not None:
                yield fix_of(change, figures, found.plan.max_model_len, cost)
        elif fixed := _fits(asked, change, cost):
            yield fixed


def _of(facts: Mapping[str, Fact], name: str) -> tuple[int, int] | None:
    fact = facts.get(name)
    if fact is None or not isinstance(fact.low, int) or not isinstance(fact.high, int):
        return None
    return fact.low, fact.high


def _span(span: tuple[int, int]) -> str:
    low, high = (format_bytes(end) for end in span)
    return low if low == high else f"{low} to {high}"
