"""One start of a log answered: facts, prediction, differences with causes, memory, cures."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvcalc.core.answers import CapacityAnswer, Lever
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Difference, Fact, LogAnswer, Predicted
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.measure.logs.accounting import accounted
from kvcalc.measure.logs.cures import after, cures
from kvcalc.measure.logs.explain import differing, explained
from kvcalc.measure.logs.llamacpp_memory import cures as confirmed
from kvcalc.measure.logs.llamacpp_memory import on_gpu, with_file
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.predict import cache_budget, predicted
from kvcalc.measure.logs.reading import ReadStart
from kvcalc.measure.logs.resolve import NOTHING, Given
from kvcalc.measure.logs.starts import Start
from kvcalc.measure.logs.terms import excess, terms_of, total_of
from kvcalc.measure.logs.verdict import ended, held_against, outside
from kvcalc.sizing import Question, answer

__all__ = ["answered"]

_MOST_LEVERS = 8
_NO_SLOTS = (
    "the states are not predicted: the number of their slots is not logged, and no whole number of"
    " them has the logged bytes (max_mamba_cache_size says how many; pp_size and the layers of a"
    " stage change the bytes of one)"
)
_SAME = 0.02
"""Two figures whose ratio is off 1 by less do not contradict each other."""

_AS_SIZED = ("max_total_tokens", "max_mamba_cache_size")
"""Arguments that stand for what the log says was made, not for what was asked for."""

_WITH_BUDGET = ("vllm", "sglang", "lmdeploy", "tensorrt-llm", "llama.cpp")


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
    model, deployment = found.model, found.deployment
    if made is not None and model is not None:
        try:
            told_by_plan = predicted(made, facts)
            more = explained(found, model, made, facts, told_by_plan)
            made, model, deployment = more.plan, more.model, more.deployment
            found_out = more.differences
        except KvcalcError as error:
            notes.append(f"no prediction: {error.message}")
            told_by_plan, found_out = {}, ()
        differences = (*(d for d in differences if d.name not in told_by_plan), *found_out)
        told = {**told, **told_by_plan}
        notes += _version_notes(made, facts)
        if start.engine == "sglang" and "ssm_state_size" in facts and "ssm_state_size" not in told:
            notes.append(_NO_SLOTS)
    agreeing = tuple(
        name for name in told if name in facts and name not in {d.name for d in differences}
    )
    if start.engine == "llama.cpp":
        given = with_file(given, facts)
    sized, levers = _capacity(model, deployment, given, made, facts)
    budget = sized.budget if sized is not None else ()
    per_token = made.growth(windows_open=False) if made is not None else None
    rate = -(-per_token[0] // per_token[1]) if per_token and per_token[0] else None
    end = ended(start, facts, told)
    oom = judged(start.oom)
    total = total_of(facts, budget)
    own = {}
    if start.engine == "llama.cpp" and made is not None and model is not None:
        own = on_gpu(start, model, deployment, made, given)
    terms = terms_of(start.engine, facts, budget, start.devices, own)
    card = gpu_name(found.deployment.gpu)
    if excess(terms, total):
        notes.append(f"what is logged does not fit on {card or 'the card'}: --gpu names another")
    says = held_against(agreeing, differences, bool(told), _why_nothing(read))
    first = f"It {end.clause}." if end.clause else "The log ends before the cache was sized."
    return LogAnswer(
        file=read.file,
        start=read.number,
        starts=read.starts,
        lines=(start.first, start.last),
        engine=found.deployment.engine if start.engine != "pytorch" else "pytorch",
        engine_version=start.version or _build(start) or found.deployment.engine_version,
        model=None if found.model is None else found.model.name,
        gpu=card,
        verdict=f"{first}{outside(terms, total, card)} {says}",
        failure=end.failure,
        facts=facts,
        settings=found.named,
        predicted=told,
        agrees=agreeing,
        differences=differences,
        total_bytes=total,
        terms=terms,
        budget=budget,
        cures=(
            *(_cures(start, model, deployment, given, facts, told, rate) if end.sizes else ()),
            *after(end.error, killed=end.killed),
            *(oom.advice if oom is not None else ()),
        ),
        levers=levers if end.sizes else (),
        oom=oom,
        notes=tuple(dict.fromkeys(notes)),
        unsupported=made.unsupported if made is not None else (),
    )


def _cures(
    start: Start,
    model: ModelSpec | None,
    deployment: Deployment,
    given: Given,
    facts: Mapping[str, Fact],
    told: Mapping[str, Predicted],
    rate: int | None,
) -> tuple[str, ...]:
    """Return what to change: of llama.cpp what a plan confirms, where model and GPU are known."""
    known = start.engine == "llama.cpp" and isinstance(deployment.gpu, GpuSpec)
    if model is not None and known and "allocation" in start.flags:
        try:
            return tuple(confirmed(model, deployment, given))
        except KvcalcError:
            return ()
    return tuple(cures(start.engine, start.flags, facts, told, rate))


def gpu_name(gpu: GpuSpec | str | None) -> str | None:
    """Return the name of a card; None where none is known."""
    return gpu.name if isinstance(gpu, GpuSpec) else gpu


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
    model: ModelSpec | None,
    deployment: Deployment,
    given: Given,
    made: CachePlan | None,
    facts: Mapping[str, Fact],
) -> tuple[CapacityAnswer | None, tuple[Lever, ...]]:
    """Return the card's budget where a card is known, and levers with the logged memory.

    The deployment is that with the cause of what differs in it: no lever offers what is there.
    """
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


def _why_nothing(read: ReadStart) -> str:
    if read.start.engine == "pytorch":
        return "no engine's lines are in it"
    if read.resolved.model is None:
        return "the model is not known (--model)"
    return "the figures that the log has are not kvcalc's to predict"
