"""One start of a log answered: facts, prediction, differences with causes, memory, cures."""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from kvcalc.core.answers import CapacityAnswer, Lever
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Difference, Fact, LogAnswer, Predicted
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.core.visible import visible
from kvcalc.engines import plan
from kvcalc.measure.logs.accounting import accounted
from kvcalc.measure.logs.cures import after, cures
from kvcalc.measure.logs.evidence import UNTOLD, telling
from kvcalc.measure.logs.explain import differing, explained
from kvcalc.measure.logs.oom import judged
from kvcalc.measure.logs.predict import cache_budget, predicted
from kvcalc.measure.logs.reading import ReadStart, with_derived
from kvcalc.measure.logs.resolve import NO_ENGINE, NOTHING, Given, resolved
from kvcalc.measure.logs.starts import Start
from kvcalc.measure.logs.terms import excess, terms_of, total_of
from kvcalc.measure.logs.verdict import ended, held_against, opening, outside
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
    told, differences = _sums(read)
    made = read.plan
    idle: Set[str] = set()
    model, deployment = found.model, found.deployment
    if made is not None and model is not None:
        try:
            told_by_plan = predicted(made, facts)
            more = explained(found, model, made, facts, told_by_plan)
            made, model, deployment = more.plan, more.model, more.deployment
            found_out = more.differences
            idle = told_by_plan.keys() - _telling(read, given, model, deployment, told_by_plan)
        except KvcalcError as error:
            notes.append(f"no prediction: {error.message}")
            told_by_plan, found_out, idle = {}, (), set()
        differences = (*(d for d in differences if d.name not in told_by_plan), *found_out)
        told = {**told, **told_by_plan}
        notes += _version_notes(made, facts)
        if start.engine == "sglang" and "ssm_state_size" in facts and "ssm_state_size" not in told:
            notes.append(_NO_SLOTS)
    agreeing = tuple(
        name
        for name in told
        if name in facts and name not in idle and name not in {d.name for d in differences}
    )
    sized, levers = _capacity(model, deployment, given, made, facts)
    budget = sized.budget if sized is not None else ()
    per_token = made.growth(windows_open=False) if made is not None else None
    rate = -(-per_token[0] // per_token[1]) if per_token and per_token[0] else None
    end = ended(start, facts, told)
    oom = judged(start.oom)
    total = total_of(facts, budget)
    terms = terms_of(start.engine, _with_graphs(facts, told), budget, start.devices)
    card = gpu_name(found.deployment.gpu)
    if excess(terms, total):
        notes.append(f"what is logged does not fit on {card or 'the card'}: --gpu names another")
    says = held_against(agreeing, differences, bool(told), _why_nothing(read))
    return LogAnswer(
        file=read.file,
        start=read.number,
        starts=read.starts,
        lines=(start.first, start.last),
        engine=start.engine if start.engine in NO_ENGINE else found.deployment.engine,
        engine_version=start.version or _build(start) or found.deployment.engine_version,
        model=None if found.model is None else found.model.name,
        gpu=card,
        outcome=end.outcome,
        verdict=f"{opening(end)}{outside(terms, total, card)} {says}",
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
            *(
                cures(
                    start.engine,
                    start.flags,
                    facts,
                    told,
                    rate,
                    version=found.deployment.engine_version,
                )
                if end.sizes
                else ()
            ),
            *after(end.error, killed=end.killed),
            *((end.cure,) if end.cure else ()),
            *(oom.advice if oom is not None else ()),
        ),
        levers=levers if end.sizes else (),
        oom=oom,
        notes=tuple(dict.fromkeys(notes)),
        unsupported=made.unsupported if made is not None else (),
    )


def _sums(read: ReadStart) -> tuple[dict[str, Predicted], tuple[Difference, ...]]:
    """Return the figures that a log's others give, and those that are not what they give.

    Of several ranks each adds up by itself; the one with the least memory is the start's.
    """
    start, gpu = read.start, read.resolved.deployment.gpu
    seen = visible(gpu) if isinstance(gpu, GpuSpec) else None
    total = None if seen is None else (seen.low_bytes, seen.high_bytes)
    told: dict[str, Predicted] = {}
    differences = []
    ranks = start.by_rank()
    ranks = {"": read.facts} if len(ranks) == 1 else ranks
    for rank, facts in ranks.items():
        found = accounted(start.engine, facts, start.flags, total)
        if rank == start.binding:
            told = found
        differences += [
            Difference(
                name=name if rank == start.binding else f"{name} of {rank}",
                logged=facts[name].printed,
                predicted=found[name].text,
                explained_by=None,
                why=found[name].basis,
            )
            for name in differing(facts, found)
        ]
    return told, tuple(differences)


def _telling(
    read: ReadStart,
    given: Given,
    model: ModelSpec,
    deployment: Deployment,
    told: Mapping[str, Predicted],
) -> frozenset[str]:
    """Return the names of figures that agree and could have disagreed."""
    explained_so = deployment != read.resolved.deployment

    def predict(one: ModelSpec, facts: Mapping[str, Fact]) -> Mapping[str, Predicted]:
        asked = read.asked
        if explained_so:
            asked = asked._replace(deployment=deployment)
        elif facts.keys() != read.facts.keys():
            asked = resolved(read.start, facts, given)
        of = asked if explained_so else with_derived(asked, one, facts)
        made = plan(one, of.deployment)
        # What a line says that is left out is asked about all the same.
        return predicted(made, {**dict.fromkeys(told.keys() & read.facts.keys(), UNTOLD), **facts})

    return telling(model, read.facts, told, predict)


def _with_graphs(facts: Mapping[str, Fact], told: Mapping[str, Predicted]) -> Mapping[str, Fact]:
    """Return the figures with the estimate of the graphs that the shares give."""
    found, share = told.get("estimated_graph_memory"), facts.get("gpu_memory_utilization")
    if found is None or share is None or "estimated_graph_memory" in facts:
        return facts
    graphs = Fact(printed=found.text, low=found.low, high=found.high, unit="B", line=share.line)
    return {**facts, "estimated_graph_memory": graphs}


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
    if read.start.engine in NO_ENGINE:
        return "no engine's lines are in it"
    if read.resolved.model is None:
        return "the model is not known (--model)"
    return "the figures that the log has are not kvcalc's to predict"
