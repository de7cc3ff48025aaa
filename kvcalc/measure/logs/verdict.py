"""How a start ended, in a sentence, and what ran out of memory.

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

from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers.logs import Difference, Fact, Fix, LoggedTerm, Outcome, Predicted
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes
from kvcalc.engines import plan
from kvcalc.engines.changes import Change, share_change
from kvcalc.measure.logs.accounting import excess
from kvcalc.measure.logs.errors import PHASES, known_of, shortened, whole
from kvcalc.measure.logs.explain import MAY_BE
from kvcalc.measure.logs.fixes import REFUSALS, beyond_weights, explained, failure, fix_of
from kvcalc.measure.logs.measured import Gpu, Measured, card_of
from kvcalc.measure.logs.starts import Start
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.sizing.weights import weights_of

__all__ = [
    "End",
    "RanOut",
    "ended",
    "held_against",
    "judged",
    "opening",
    "otherwise",
    "outside",
    "ran_out",
    "was_sized",
]

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
    from kvcalc.measure.oom import read_oom

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
    """Return what ran out at a phase of a start of vLLM, and what helps."""
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


# --------------------------------------------------------------------- verdict
#
# The answer in a sentence: how a start ended, and what kvcalc says to its figures.

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
        outcome: in one word (answers.logs.Outcome).
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
    """Return how a start ended."""
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
    """Return what kvcalc says to the figures."""
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
