"""One start of a log answered, and two starts compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec

from kvcalc.allocator.oom_values import OutOfMemory
from kvcalc.answers.capacity import CapacityAnswer, Lever
from kvcalc.answers.logs import Changed, Difference, Fact, Fix, LogAnswer, LogComparison, Predicted
from kvcalc.core.capacity import logged_figures
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.core.visible import visible
from kvcalc.engines import plan
from kvcalc.engines.changes import Change
from kvcalc.measure.logs.accounting import UNTOLD, accounted, excess, telling, terms_of, total_of
from kvcalc.measure.logs.explain import differing, explained
from kvcalc.measure.logs.fixes import beside_others, fix_of, fixes, levers
from kvcalc.measure.logs.measured import Measured, measured, neighbour
from kvcalc.measure.logs.predict import cache_budget, predicted
from kvcalc.measure.logs.reading import ReadStart, with_derived
from kvcalc.measure.logs.remedies import (
    ONE_BY_ONE,
    after,
    confirmed_cures,
    cures,
    end_others,
    lifted,
    on_gpu,
    with_file,
)
from kvcalc.measure.logs.resolve import NOTHING, Given, resolved
from kvcalc.measure.logs.starts import NO_ENGINE, Start
from kvcalc.measure.logs.verdict import (
    RanOut,
    ended,
    held_against,
    judged,
    opening,
    otherwise,
    outside,
    ran_out,
)
from kvcalc.sizing import Question, answer

__all__ = ["answered", "compared"]

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
    model, deployment, made, told, differences, agreeing = _compared(read, given, notes)
    if start.record.loads_gguf:
        given = with_file(given, facts)
    sized = _capacity(model, deployment, given, made)
    memory = None
    if model is not None and made is not None:
        memory = _measured(read, model, deployment, made, given)
    budget = sized.budget if sized is not None else ()
    per_token = made.growth(windows_open=False) if made is not None else None
    rate = -(-per_token[0] // per_token[1]) if per_token and per_token[0] else None
    oom = judged(start.oom)
    out = _ran_out(read, given, oom, model, deployment, memory)
    taken = neighbour(memory, facts) if memory is not None else 0
    end = ended(start, facts, told, out.cause or _by_another(taken))
    fixed, perhaps = _offered(read, given, model, deployment, memory, out, taken)
    total = total_of(facts, budget)
    own = {}
    if start.record.logs_devices and made is not None and model is not None:
        own = on_gpu(start, model, deployment, made, given)
    terms = terms_of(start.record, _with_graphs(facts, told), budget, start.devices, own)
    planned = memory is not None or bool(perhaps)
    card = gpu_name(found.deployment.gpu)
    if excess(terms, total):
        notes.append(f"what is logged does not fit on {card or 'the card'}: --gpu names another")
    notes += otherwise(terms, card)
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
        fixes=fixed,
        cures=(
            *lifted(end.code, facts, model, deployment, made),
            *(fix.text for fix in fixed),
            *([ONE_BY_ONE] if taken and not fixed else []),
            *perhaps,
            *(
                _cures(start, model, deployment, given, facts, told, rate, planned=planned)
                if end.sizes
                else ()
            ),
            *after(end.error, killed=end.killed),
            *((end.cure,) if end.cure else ()),
            *out.advice,
        ),
        levers=_levers(memory) if end.sizes and oom is None else (),
        oom=oom,
        notes=tuple(dict.fromkeys(notes)),
        unsupported=made.unsupported if made is not None else (),
        code=end.code or None,
    )


class _Compared(NamedTuple):
    """What a plan says to a log: figures, what differs, and the model and plan that explain it."""

    model: ModelSpec | None
    deployment: Deployment
    plan: CachePlan | None
    predicted: dict[str, Predicted]
    differences: tuple[Difference, ...]
    agreeing: tuple[str, ...]


def _compared(read: ReadStart, given: Given, notes: list[str]) -> _Compared:
    """Hold a log's figures against each other, and against a plan where there is one."""
    facts, found, made = read.facts, read.resolved, read.plan
    told, differences = _sums(read)
    idle: AbstractSet[str] = set()
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
        if "ssm_state_size" in facts and "ssm_state_size" not in told:
            notes.append(_NO_SLOTS)
    other = {*idle, *(d.name for d in differences)}
    agreeing = tuple(name for name in told if name in facts and name not in other)
    return _Compared(model, deployment, made, told, differences, agreeing)


def _offered(
    read: ReadStart,
    given: Given,
    model: ModelSpec | None,
    deployment: Deployment,
    memory: Measured | None,
    out: RanOut,
    taken: int,
) -> tuple[tuple[Fix, ...], tuple[str, ...]]:
    """Return changes that a plan confirms, and what may help."""
    start, facts = read.start, read.facts
    fixed = (*out.fixes, *_fixes(start, memory, facts, taken))
    if "others_hold" not in start.flags or model is None:
        return fixed, ()
    shares = [*beside_others(model, deployment, facts, given.quantization)]
    fixed += tuple(fix for sure, fix in shares if sure)
    perhaps = tuple(fix.text for sure, fix in shares if not sure)
    return fixed, (*perhaps, end_others(facts, some=bool(shares)))


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


def _cures(
    start: Start,
    model: ModelSpec | None,
    deployment: Deployment,
    given: Given,
    facts: Mapping[str, Fact],
    told: Mapping[str, Predicted],
    rate: int | None,
    *,
    planned: bool,
) -> tuple[str, ...]:
    """Return what to change: of llama.cpp what a plan confirms, where model and GPU are known."""
    known = start.record.logs_devices and isinstance(deployment.gpu, GpuSpec)
    if model is not None and known and "allocation" in start.flags:
        try:
            return tuple(confirmed_cures(model, deployment, given))
        except KvcalcError:
            return ()
    version = deployment.engine_version
    return tuple(
        cures(start.engine, start.flags, facts, told, rate, version=version, planned=planned)
    )


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
    model: ModelSpec | None, deployment: Deployment, given: Given, made: CachePlan | None
) -> CapacityAnswer | None:
    """Return what kvcalc says of the card without the log; None where none is known."""
    if model is None or made is None or deployment.engine not in _WITH_BUDGET:
        return None
    if not isinstance(deployment.gpu, GpuSpec):
        return None
    args = {k: v for k, v in deployment.engine_args.items() if k not in _AS_SIZED}
    asked = msgspec.structs.replace(deployment, kv_cache_memory_bytes=None, engine_args=args)
    try:
        return answer(
            Question(
                model=model,
                deployment=asked,
                weights_bytes=given.weights_bytes,
                quantization=given.quantization,
            )
        )
    except KvcalcError:
        return None


def _measured(
    read: ReadStart, model: ModelSpec, deployment: Deployment, made: CachePlan, given: Given
) -> Measured | None:
    """Return the memory of a start by its own figures, those of the rank that decides."""
    start = read.start
    mine = start.by_rank().get(start.binding, read.facts) if start.binding else read.facts
    try:
        return measured(
            model, deployment, made, {**read.facts, **mine},
            weights_bytes=given.weights_bytes, quantization=given.quantization,
        )  # fmt: skip
    except KvcalcError:
        return None


_FOR_ROOM = ("too_long", "too_long_v0", "nothing_left")
"""Flags of a start that was refused for want of room."""


def _fixes(
    start: Start, memory: Measured | None, facts: Mapping[str, Fact], taken: int
) -> tuple[Fix, ...]:
    """Return what makes a refused start succeed; what a neighbour took is first of all his."""
    if memory is None or not start.flags.keys() & set(_FOR_ROOM):
        return ()
    if not taken:
        return tuple(fixes(memory, facts))
    low, high = memory.available
    alone = memory._replace(available=(low + taken, high + taken))
    figures = alone.works(Change("alone"))
    if figures is None:
        return () if memory.gpu.high is None else tuple(fixes(alone, facts))
    told = fix_of(Change("alone"), figures, memory.plan.max_model_len, "")
    text = (
        "start the servers of a GPU one after another, each when the one before is ready (or lower"
        f" the other's share): at least {format_bytes(taken)} more are left then, {told.text}"
    )
    return (msgspec.structs.replace(told, text=text),)


def _by_another(taken: int) -> str:
    if not taken:
        return ""
    return (
        f"another process took {format_bytes(taken)} or more of the GPU while this one loaded and"
        " measured, which counts as its own"
    )


def _ran_out(
    read: ReadStart,
    given: Given,
    oom: OutOfMemory | None,
    model: ModelSpec | None,
    deployment: Deployment,
    memory: Measured | None,
) -> RanOut:
    """Return what ran out of memory in a start that an out-of-memory text is of."""
    if oom is None:
        return RanOut()
    start = read.start
    phase = "serving" if start.ready else start.ended_at
    if not start.record.logs_memory:
        return RanOut(advice=oom.advice)
    return ran_out(oom, phase, model, deployment, read.facts, memory, given.quantization)


def _levers(memory: Measured | None) -> tuple[Lever, ...]:
    return levers(memory) if memory is not None and memory.available[0] > 0 else ()


def _why_nothing(read: ReadStart) -> str:
    if read.start.engine in NO_ENGINE:
        return "no engine's lines are in it"
    if read.resolved.model is None:
        return "the model is not known (--model)"
    return "the figures that the log has are not kvcalc's to predict"


# --------------------------------------------------------------------- compare
#
# Two starts side by side: what changed, and how many tokens each change brought or cost.
#
# Tokens are counted by making one change after another, from the first start to the second, so that
# the parts add up to the whole; the memory comes last, and its own parts by the tokens of a byte.

_MEMORY = (
    *("total_memory", "requested_memory", "free_memory", "weights_memory", "consumed_memory"),
    *("activation_memory", "non_torch_memory", "estimated_graph_memory", "graph_memory"),
)
"""Figures that lead to the cache's memory: more of the first three gives more, of the rest less."""
_GIVES = frozenset(("total_memory", "requested_memory", "free_memory"))
_FIGURES = ("available_kv_cache", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency")


_TOKENS = ("kv_cache_tokens", "max_total_num_tokens", "n_ctx")
_CONTEXT = "ctx_size"
"""llama.cpp's context, which fixes the tokens of its cache."""

_NO_FIGURES = frozenset(("card_index", "failed_device", "checkpoint", "slot"))
"""What is printed as a number and counts nothing."""


def compared(first: ReadStart, second: ReadStart) -> LogComparison:
    """Return what changed from one start to another."""
    rows = [*_engines(first, second), *_settings(first, second), *_figures(first, second)]
    tokens = _tokens(first), _tokens(second)
    gained = None if None in tokens else (tokens[1] or 0) - (tokens[0] or 0)
    counted = sum(row.tokens or 0 for row in rows)
    notes = [f"{one.file}: {note}" for one in (first, second) for note in one.notes]
    if gained is not None and counted != gained and any(row.tokens is not None for row in rows):
        rows.append(
            Changed(
                name="not accounted for", first=None, second=None, tokens=gained - counted,
                why="what is left between the counted changes and the logged figures",
            )
        )  # fmt: skip
    rows.sort(key=lambda row: (row.tokens is None, -abs(row.tokens or 0)))
    return LogComparison(
        files=(first.file, second.file),
        engines=(first.start.engine, second.start.engine),
        verdict=" ".join((*_ends(first, second), _verdict(gained, rows, tokens))),
        tokens=tokens,
        tokens_gained=gained,
        changed=tuple(rows),
        notes=tuple(notes),
    )


def _verdict(gained: int | None, rows: list[Changed], tokens: tuple[int | None, int | None]) -> str:
    changed = [row for row in rows if row.name != "not accounted for"]
    if not changed:
        return "Nothing that kvcalc reads differs."
    if gained is None:
        missing = " and ".join(
            which for which, count in zip(("the first", "the second"), tokens, strict=True)
            if count is None
        )  # fmt: skip
        verb = "log" if tokens == (None, None) else "logs"
        return f"{_count_of(changed)}; {missing} {verb} no tokens."
    if not gained:
        return f"The tokens are the same; {_count_of(changed)}."
    what = "gained" if gained > 0 else "lost"
    # A change that brought tokens is no cause of a loss.
    same = [row for row in changed if (row.tokens or 0) * gained > 0]
    most = max(same, key=lambda row: abs(row.tokens or 0), default=None)
    cause = ""
    if most is not None and 2 * abs(most.tokens or 0) > abs(gained):
        cause = f", most of it by {most.name}"
    return f"{format_number_of(abs(gained), 'token')} {what}{cause}."


def _count_of(changed: list[Changed]) -> str:
    if len(changed) == 1:
        return "1 setting or figure differs"
    return f"{len(changed)} settings or figures differ"


def _ends(first: ReadStart, second: ReadStart) -> Iterator[str]:
    """Yield how each of the two ended, if it did not start or ran out of memory."""
    for which, read in (("first", first), ("second", second)):
        end = ended(read.start, read.facts, {})
        if end.clause and end.outcome != "started":
            yield f"The {which} {end.clause}."
        elif end.outcome == "unknown":
            yield f"The {which} ends before the cache was sized."


def _engines(first: ReadStart, second: ReadStart) -> Iterator[Changed]:
    one, two = first.start.engine, second.start.engine
    if one != two:
        yield Changed(name="engine", first=one, second=two, tokens=None)


def _tokens(read: ReadStart) -> int | None:
    for name in _TOKENS:
        fact = read.facts.get(name)
        if fact is not None and isinstance(fact.low, int):
            return fact.low
    context = read.resolved.deployment.engine_args.get(_CONTEXT)
    if read.start.record.settings_fix_cache and isinstance(context, int):
        return context
    blocks = read.facts.get("num_gpu_blocks")
    if blocks is not None and isinstance(blocks.low, int) and read.plan is not None:
        return blocks.low * (read.plan.block_size or 1)
    return None


def _of_one_kind(first: ReadStart, second: ReadStart) -> bool:
    """Whether a byte is as many tokens in both: of one engine, and of one model where it is known.

    What differs between two engines or models is not counted part by part.
    """
    one, two = first.resolved.model, second.resolved.model
    return first.start.engine == second.start.engine and (one is None or two is None or one == two)


def _settings(first: ReadStart, second: ReadStart) -> Iterator[Changed]:
    """Yield settings that differ, each with the tokens that a plan says it brought."""
    ours, theirs = _named(first), _named(second)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    steps = _steps(first, second, names)
    counts = _tokens(first), _tokens(second)
    for name in names:
        tokens, why = steps.get(name, (None, ""))
        if name == _CONTEXT and None not in counts:
            tokens, why = (counts[1] or 0) - (counts[0] or 0), "the cells of the context"
        yield Changed(
            name=name, first=ours.get(name), second=theirs.get(name), tokens=tokens, why=why
        )


def _named(read: ReadStart) -> dict[str, str]:
    found = {named.name: named.value for named in read.resolved.named}
    for name in ("quantization", "enforce_eager", "max_num_batched_tokens"):
        text = read.start.settings.text(name)
        if text is not None:
            found.setdefault(name, text)
    return found


def _steps(
    first: ReadStart, second: ReadStart, names: list[str]
) -> dict[str, tuple[int | None, str]]:
    """Change one setting after another under the first start's memory."""
    model, other = first.resolved.model, second.resolved.model
    span = cache_budget(first.plan, first.facts) if first.plan is not None else None
    if model is None or other is None or first.plan is None or second.plan is None or not span:
        return {}
    if span.low < 1 or first.start.engine != second.start.engine or model != other:
        return {}
    found: dict[str, tuple[int | None, str]] = {}
    deployment, before = first.resolved.deployment, _count(first.plan, _middle(first, first.plan))
    for name in names:
        if name not in Deployment.__struct_fields__:
            continue
        changed = _with(deployment, name, getattr(second.resolved.deployment, name))
        made = _planned(model, changed)
        if made is None:
            continue
        after = _count(made, _middle(first, first.plan))
        if after is not None and before is not None:
            found[name] = (after - before, "the same memory, planned anew")
            deployment, before = changed, after
    return found


def _with(deployment: Deployment, name: str, value: Any) -> Deployment:
    try:
        return msgspec.structs.replace(deployment, **{name: value})
    except KvcalcError:
        return deployment


def _planned(model: ModelSpec, deployment: Deployment) -> CachePlan | None:
    try:
        return plan(model, deployment)
    except KvcalcError:
        return None


def _middle(read: ReadStart, made: CachePlan) -> int:
    """Return the memory with which a plan gives the logged tokens, within its rounding."""
    without = {k: v for k, v in read.facts.items() if k != "available_kv_cache"}
    exact = cache_budget(made, without)
    span = cache_budget(made, read.facts)
    if exact is not None and span is not None and span.low <= exact.high and exact.low <= span.high:
        return max(exact.low, span.low)
    return (span.low + span.high) // 2 if span is not None else 1


def _count(made: CachePlan, budget: int) -> int | None:
    try:
        return logged_figures(made, max(1, budget)).kv_cache_tokens
    except KvcalcError:
        return None


def _figures(first: ReadStart, second: ReadStart) -> Iterator[Changed]:
    """Yield figures of memory that differ, in tokens of the second start's plan."""
    rate = _rate(second) if _of_one_kind(first, second) else None
    ours, theirs = first.facts, second.facts
    parts = 0
    for name in _MEMORY:
        one, two = ours.get(name), theirs.get(name)
        if one is None or two is None or not _differ(one, two):
            continue
        if not isinstance(one.low, int) or not isinstance(two.low, int):
            continue
        size = (two.low + int(two.high or 0) - one.low - int(one.high or 0)) // 2
        size = size if name in _GIVES else -size
        # The card and the share are what the requested memory is made of: counted once.
        once = not (name in ("total_memory", "free_memory") and "requested_memory" in ours)
        counted = once and name != "graph_memory" and rate is not None
        tokens = size * rate[1] // rate[0] if rate and counted else None
        parts += tokens or 0
        yield Changed(
            name=name,
            first=one.printed,
            second=two.printed,
            tokens=tokens,
            why="" if tokens is None else f"{format_bytes(size)} over the bytes of a token",
        )
    memory = _memory_tokens(first, second)
    one, two = ours.get("available_kv_cache"), theirs.get("available_kv_cache")
    if one is not None and two is not None and _differ(one, two):
        rest = None if memory is None else memory - parts
        yield Changed(
            name="available_kv_cache", first=one.printed, second=two.printed, tokens=rest,
            why="the memory of the cache, less what the parts above explain",
        )  # fmt: skip
    known = {*_MEMORY, "available_kv_cache", *_NO_FIGURES}
    settings = {*_named(first), *_named(second)}
    names = [*_FIGURES[1:], *(name for name in ours if name not in _FIGURES)]
    for name in names:
        one, two = ours.get(name), theirs.get(name)
        if name in known or one is None or two is None or not _differ(one, two):
            continue
        if name not in settings and not (name == "n_ctx" and _CONTEXT in settings):
            yield Changed(name=name, first=one.printed, second=two.printed, tokens=None)


def _differ(one: Fact, two: Fact) -> bool:
    """Whether two printed figures cannot be the same number."""
    if one.low is None or two.low is None or one.high is None or two.high is None:
        return one.printed != two.printed
    return one.high < two.low or two.high < one.low


def _memory_tokens(first: ReadStart, second: ReadStart) -> int | None:
    """Tokens of the second plan between the two memories."""
    made = second.plan
    if made is None or first.plan is None or not _of_one_kind(first, second):
        return None
    if cache_budget(made, second.facts) is None or cache_budget(first.plan, first.facts) is None:
        return None
    one = _count(made, _middle(first, first.plan))
    two = _count(made, _middle(second, made))
    return None if one is None or two is None else two - one


def _rate(read: ReadStart) -> tuple[int, int] | None:
    """Return (bytes, tokens) that more memory gives; of the log itself where no plan is known."""
    made = read.plan
    if made is not None and not isinstance(made.model, GpuSpec):
        span = cache_budget(made, read.facts)
        if span is not None and span.low > 0:
            count = _count(made, span.low)
            if count:
                return span.low, count
    tokens, memory = read.facts.get("kv_cache_tokens"), read.facts.get("available_kv_cache")
    if tokens is None or memory is None:
        return None
    if isinstance(tokens.low, int) and isinstance(memory.low, int) and tokens.low > 0:
        return max(1, memory.low), tokens.low
    return None
