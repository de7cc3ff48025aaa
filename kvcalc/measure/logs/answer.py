"""One start of a log answered: facts, prediction, differences with causes, memory, cures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, NamedTuple

import msgspec

from kvcalc.core.answers import CapacityAnswer, Lever
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import InputError, InvalidValueError, KvcalcError
from kvcalc.core.logs import Difference, Fact, LogAnswer, Predicted
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count, format_number_of
from kvcalc.engines import plan
from kvcalc.measure.logs.accounting import accounted
from kvcalc.measure.logs.catalogue import BY_ENGINE
from kvcalc.measure.logs.cures import cures
from kvcalc.measure.logs.explain import differing, explained
from kvcalc.measure.logs.failure import failure
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.predict import cache_budget, predicted
from kvcalc.measure.logs.reader import file_name, lines_of
from kvcalc.measure.logs.resolve import NOTHING, Given, Resolved, resolved
from kvcalc.measure.logs.starts import Start, starts_of
from kvcalc.measure.logs.terms import terms_of, total_of
from kvcalc.sizing import Question, answer

__all__ = ["ReadStart", "answered", "chosen", "read_start"]

_MOST_LEVERS = 8
_SAME = 0.02
"""Two figures whose ratio is off 1 by less do not contradict each other."""

_AS_SIZED = ("max_total_tokens", "max_mamba_cache_size")
"""Arguments that stand for what the log says was made, not for what was asked for."""

_WITH_BUDGET = ("vllm", "sglang", "lmdeploy", "tensorrt-llm", "llama.cpp")


class ReadStart(NamedTuple):
    """A start that was read from a file: which of how many, and what it was of."""

    file: str
    number: int
    starts: int
    start: Start
    facts: dict[str, Fact]
    resolved: Resolved
    plan: CachePlan | None
    notes: tuple[str, ...]


def chosen(
    source: str, number: int | None = None, stdin: BinaryIO | None = None
) -> tuple[Start, int, int]:
    """Return a start of a log, its number from 1, and how many there are.

    Args:
        source: a path, or `-`.
        number: which; the last when None.
        stdin: the stream for `-`.

    Raises:
        InputError: the log cannot be read, or no engine is recognised in it.
        InvalidValueError: it has no such start.
    """
    found = starts_of(lines_of(source, stdin))
    if not found:
        engines = ", ".join(name for name in BY_ENGINE if name != "exllamav2")
        raise InputError(
            "no start-up line of a known engine is in it",
            hint=f"recognised are lines of {engines} (llama-server, ollama, LM Studio and koboldcpp"
            " among them) and out-of-memory texts of PyTorch",
            where=file_name(source),
        )
    told = [start for start in found if start.facts() or start.oom] or found
    if number is None:
        return told[-1], len(told), len(told)
    if not 1 <= number <= len(told):
        raise InvalidValueError(
            f"there is no start {number}: the log has {format_number_of(len(told), 'start')}",
            hint=f"give 1 to {len(told)}",
            where=file_name(source),
        )
    return told[number - 1], number, len(told)


def read_start(
    source: str,
    given: Given = NOTHING,
    number: int | None = None,
    stdin: BinaryIO | None = None,
) -> ReadStart:
    """Return a start of a log with the plan that kvcalc makes of it.

    Raises:
        InputError, InvalidValueError: as `chosen`.
        UnknownNameError: a card that is given and not known.
    """
    start, which, count = chosen(source, number, stdin)
    facts = start.facts()
    found = resolved(start, facts, given)
    notes = list(found.notes)
    if count > 1:
        notes.insert(
            0,
            f"the log holds {count} starts: this is number {which} (lines {start.first:,} to"
            f" {start.last:,}); --start N takes another",
        )
    made = None
    if found.model is not None and found.deployment.engine != "none":
        try:
            made = plan(found.model, found.deployment)
        except KvcalcError as error:
            notes.append(
                f"no plan of it: {error.message}" + (f" ({error.hint})" if error.hint else "")
            )
    return ReadStart(file_name(source), which, count, start, facts, found, made, tuple(notes))


def answered(read: ReadStart, given: Given = NOTHING) -> LogAnswer:
    """Return what kvcalc says to a start."""
    start, facts, found = read.start, read.facts, read.resolved
    notes = list(read.notes)
    told = accounted(start.engine, facts)
    differences = tuple(
        Difference(
            name=name, logged=facts[name].printed, predicted=told[name].text, explained_by=None,
            why=told[name].basis,
        )
        for name in differing(facts, told)
    )  # fmt: skip
    made = read.plan
    if made is not None and found.model is not None:
        try:
            told_by_plan = predicted(made, facts)
            more, better = explained(
                found.model, found.deployment, made, facts, told_by_plan,
                version_told=found.version_told,
            )  # fmt: skip
        except KvcalcError as error:
            notes.append(f"no prediction: {error.message}")
            told_by_plan, more, better = {}, (), made
        differences = (*(d for d in differences if d.name not in told_by_plan), *more)
        told = {**told, **told_by_plan}
        made = better
        notes += _version_notes(made, facts)
    agreeing = tuple(
        name for name in told if name in facts and name not in {d.name for d in differences}
    )
    sized, levers = _capacity(read, given, made, facts)
    budget = sized.budget if sized is not None else ()
    per_token = made.growth(windows_open=False) if made is not None else None
    rate = -(-per_token[0] // per_token[1]) if per_token and per_token[0] else None
    failed = failure(start.engine, start.flags, facts, told)
    oom = judged(start.oom)
    gpu = found.deployment.gpu
    return LogAnswer(
        file=read.file,
        start=read.number,
        starts=read.starts,
        lines=(start.first, start.last),
        engine=found.deployment.engine if start.engine != "pytorch" else "pytorch",
        engine_version=start.version or _build(start) or found.deployment.engine_version,
        model=None if found.model is None else found.model.name,
        gpu=gpu.name if isinstance(gpu, GpuSpec) else gpu,
        verdict=_verdict(
            read, failed, None if oom is None else oom.summary, agreeing, differences, told
        ),
        failure=failed,
        facts=facts,
        settings=found.named,
        predicted=told,
        agrees=agreeing,
        differences=differences,
        total_bytes=total_of(facts, budget),
        terms=terms_of(start.engine, facts, budget),
        budget=budget,
        cures=(
            *cures(start.engine, start.flags, facts, told, rate),
            *(oom.advice if oom is not None else ()),
        ),
        levers=levers,
        oom=oom,
        notes=tuple(dict.fromkeys(notes)),
        unsupported=made.unsupported if made is not None else (),
    )


def _build(start: Start) -> str | None:
    return None if start.build is None else f"b{start.build}"


def _version_notes(made: CachePlan, facts: Mapping[str, Fact]) -> list[str]:
    """Say which of two figures of vLLM that contradict each other is the capacity."""
    tokens, times = facts.get("kv_cache_tokens"), facts.get("max_concurrency")
    if tokens is None or times is None or not isinstance(tokens.low, int) or not times.high:
        return []
    product = float(times.printed) * made.max_model_len
    if made.report != "even_groups" or abs(product / max(1, tokens.low) - 1) < _SAME:
        return []
    groups = len(made.rank.pools[0].groups)
    told = (
        f"tokens and concurrency contradict each other ({tokens.printed} against"
        f" {format_count(int(product))}): this version divides its blocks by the"
        f" {groups} groups and counts tokens of the smallest block; the concurrency is right"
    )
    return [told]


def _capacity(
    read: ReadStart, given: Given, made: CachePlan | None, facts: Mapping[str, Fact]
) -> tuple[CapacityAnswer | None, tuple[Lever, ...]]:
    """Return the card's budget where a card is known, and levers with the logged memory."""
    found = read.resolved
    model, deployment = found.model, found.deployment
    if model is None or made is None or deployment.engine not in _WITH_BUDGET:
        return None, ()
    try:
        sized = None
        if isinstance(deployment.gpu, GpuSpec):
            args = {k: v for k, v in deployment.engine_args.items() if k not in _AS_SIZED}
            asked = msgspec.structs.replace(
                deployment, kv_cache_memory_bytes=None, engine_args=args
            )
            sized = answer(
                Question(
                    model=model,
                    deployment=asked,
                    weights_bytes=given.weights_bytes,
                    quantization=given.quantization,
                )
            )
        levers: tuple[Lever, ...] = ()
        span = cache_budget(made, facts) if deployment.engine == "vllm" else None
        if span is not None and span.low > 0:
            with_cache = msgspec.structs.replace(deployment, kv_cache_memory_bytes=span.low)
            levers = answer(Question(model=model, deployment=with_cache), with_levers=True).levers
            levers = tuple(
                lever
                for lever in levers
                if lever.figures is not None and (lever.concurrency_gain or 2) > 1
            )[:_MOST_LEVERS]
    except KvcalcError:
        return None, ()
    return sized, levers


def _verdict(
    read: ReadStart,
    failed: str | None,
    oom: str | None,
    agreeing: tuple[str, ...],
    differences: tuple[Difference, ...],
    told: Mapping[str, Predicted],
) -> str:
    start = "It did not start" if failed else "It ran out of memory" if oom else "It started"
    if start == "It started" and not read.start.sized:
        start = "The log ends before the cache was sized"
    first = f"{start}: {(failed or oom or '').rstrip('.')}." if failed or oom else f"{start}."
    open_ = [d for d in differences if d.explained_by is None]
    if open_:
        names = ", ".join(d.name for d in open_)
        return f"{first} kvcalc says otherwise of {names}, and knows no cause."
    if differences:
        causes = ", ".join(dict.fromkeys(d.explained_by or "" for d in differences))
        return f"{first} What differs is explained by {causes}."
    if agreeing:
        count = "1 figure" if len(agreeing) == 1 else f"{len(agreeing)} figures"
        return (
            f"{first} {count} of the log {'is' if len(agreeing) == 1 else 'are'} what kvcalc says."
        )
    if told:
        return f"{first} Nothing that the log prints can be held against a prediction."
    return f"{first} Nothing is predicted: {_why_nothing(read)}."


def _why_nothing(read: ReadStart) -> str:
    if read.start.engine == "pytorch":
        return "no engine's lines are in it"
    if read.resolved.model is None:
        return "the model is not known (--model)"
    return "the figures that the log has are not kvcalc's to predict"
