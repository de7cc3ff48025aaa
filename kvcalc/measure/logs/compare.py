"""Two starts side by side: what changed, and how many tokens each change brought or cost.

Tokens are counted by making one change after another, from the first start to the second, so that
the parts add up to the whole; the memory comes last, and its own parts by the tokens of a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvcalc.core.capacity import logged_figures
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Changed, Fact, LogComparison
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes, format_number_of
from kvcalc.engines import plan
from kvcalc.measure.logs.predict import cache_budget
from kvcalc.measure.logs.reading import ReadStart
from kvcalc.measure.logs.verdict import ended

__all__ = ["compared"]

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
    if read.start.engine == "llama.cpp" and isinstance(context, int):
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
