"""Why a figure of a log differs from the predicted one: settings and rules that the log leaves out.

What the log states is no cause, whatever it would explain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from kvcalc.answers.logs import Difference, Fact, Predicted
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count
from kvcalc.engines import engine_of, plan
from kvcalc.measure.logs.predict import agrees, cache_budget, predicted, span_text
from kvcalc.measure.logs.resolve import Override, Resolved, undone
from kvcalc.sizing.weights import weights_of

__all__ = ["MAY_BE", "SPLIT", "Cause", "Explained", "causes", "differing", "explained", "of_others"]


class Cause(NamedTuple):
    """A cause: its name, in a sentence, and what it is planned with.

    Attributes:
        name: of the cause.
        why: a sentence.
        deployment: with the cause; None where no setting is it.
        plan: of it, once it was tried.
        model: None for the same.
    """

    name: str
    why: str
    deployment: Deployment | None = None
    plan: CachePlan | None = None
    model: ModelSpec | None = None


def causes(
    deployment: Deployment, stated: frozenset[str], releases: tuple[str, ...] = ()
) -> Iterator[Cause]:
    """Yield the causes that a log does not rule out, the likelier first.

    Args:
        deployment: of the start.
        stated: settings that the log says, of which no other value is a cause.
        releases: whose rules it may be of, where it does not say its own.
    """
    single = list(_single(deployment, stated))
    # A switch that a log leaves out is likelier than a release whose rules are others.
    yield from (cause for cause in single if cause.name in _FIRST)
    for release in releases:
        yield Cause(
            "version's rules",
            f"as vLLM {release} counts (the log does not say its version)",
            msgspec.structs.replace(deployment, engine_version=release),
        )
    yield from (cause for cause in single if cause.name not in _FIRST)
    yield from _pairs(deployment, stated)
    for release in releases:
        for cause in single:
            if cause.deployment is not None:
                changed = msgspec.structs.replace(cause.deployment, engine_version=release)
                yield Cause(
                    f"version's rules, {cause.name}", f"vLLM {release}, {cause.why}", changed
                )


SPLIT = "tensor parallel"
"""The cause of which the weights on a rank tell too."""

_FIRST = ("prefix caching",)
"""Causes that are tried before another release is."""

_UNTOLD: tuple[tuple[str, str, str, tuple[tuple[str, Any], ...]], ...] = (
    *(
        (
            "prefix caching",
            f"{'with' if on else 'without'} prefix caching, which sets a state's blocks",
            "enable_prefix_caching",
            (("enable_prefix_caching", on),),
        )
        for on in (True, False)
    ),
    *(
        (
            "draft layers",
            f"with {method} and {count} proposed tokens, whose layers keep K and V too",
            "speculative_method",
            (("speculative_method", method), ("num_speculative_tokens", count)),
        )
        for method in ("mtp", "eagle")
        for count in (1, 2, 3, 4)
    ),
    *(
        (
            "other KV dtype",
            f"with a cache in {dtype}",
            "kv_cache_dtype",
            (("kv_cache_dtype", dtype),),
        )
        for dtype in ("fp8", "bfloat16", "float32")
    ),
    (
        "steps in flight",
        "with steps one after the other, for which windows keep less room",
        "async_scheduling",
        (("async_scheduling", False),),
    ),
    (
        "no hybrid manager",
        "without the hybrid manager: windows keep every token",
        "disable_hybrid_kv_cache_manager",
        (("disable_hybrid_kv_cache_manager", True),),
    ),
    *(
        ("block size", f"with blocks of {size} tokens", "block_size", (("block_size", size),))
        for size in (32, 64, 128, 256)
    ),
    *(
        (
            SPLIT,
            f"over {size} GPUs",
            "tensor_parallel_size",
            (("tensor_parallel_size", size),),
        )
        for size in (2, 4, 8)
    ),
)
"""Cause, its sentence, the setting that a log leaves out, and what it is then."""


def _single(deployment: Deployment, stated: frozenset[str]) -> Iterator[Cause]:
    """Yield settings that the log leaves out, one at a time."""
    if deployment.kv_cache_dtype != "auto" and "kv_cache_dtype" not in stated:
        why = f"with a cache in the model's own dtype, not in {deployment.kv_cache_dtype}"
        own = msgspec.structs.replace(deployment, kv_cache_dtype="auto")
        yield Cause("other KV dtype", why, own)
    changed = deployment.changed()
    for name, why, field, settings in _UNTOLD:
        if field not in changed and field not in stated:
            yield Cause(name, why, msgspec.structs.replace(deployment, **dict(settings)))


def _pairs(deployment: Deployment, stated: frozenset[str]) -> Iterator[Cause]:
    """Yield a cache dtype with prefix caching, with a draft, and with both: each sets the block."""
    for dtype in _named("other KV dtype", deployment, stated):
        for draft in _named("draft layers", dtype.deployment, stated):
            yield _joined(dtype, draft)
        for caching in _named("prefix caching", dtype.deployment, stated):
            both = _joined(dtype, caching)
            yield both
            for draft in _named("draft layers", both.deployment, stated):
                yield _joined(both, draft)


def _named(name: str, deployment: Deployment | None, stated: frozenset[str]) -> Iterator[Cause]:
    if deployment is not None:
        yield from (cause for cause in _single(deployment, stated) if cause.name == name)


def _joined(first: Cause, second: Cause) -> Cause:
    why = f"{first.why} and {second.why}"
    return Cause(f"{first.name}, {second.name}", why, second.deployment)


# --------------------------------------------------------------------- explain others
#
# Causes of other engines than vLLM: what their lines leave out or count besides.

_K_V = ("k_size", "v_size")
_OLD_STEP, _STEP = 32, 256
"""Cells that llama.cpp padded to until 2025, and that it pads to."""

_DRAFTS = ("draft ", "mtp ")
"""How the pools of a draft's context are named."""


def of_others(
    model: ModelSpec, made: CachePlan, facts: Mapping[str, Fact], names: list[str]
) -> Cause | None:
    """Name what other engines' lines are of."""
    if (
        engine_of(made.engine).logs_devices
        and (padding := _padding(made, facts, names)) is not None
    ):
        return padding
    if names == ["kv_buffer"] and (parts := _parts_of(made, facts["kv_buffer"])):
        left = ", ".join(parts)
        return Cause("draft layers", f"the lines that are here leave out the cache of: {left}")
    drafts = sum(run.count for run in model.draft_layers)
    if names == ["state_layers"] and facts["state_layers"].low == model.num_hidden_layers + drafts:
        return Cause("draft layers", f"the line counts {drafts} of the file's draft layers as well")
    spread = next((n for n in names if facts[n].spread is not None), None)
    if spread is not None:
        least, most = facts[spread].spread or ("", "")
        return Cause("minimum over ranks", f"ranks logged {least} to {most}")
    return None


def _padding(made: CachePlan, facts: Mapping[str, Fact], names: list[str]) -> Cause | None:
    """Say where a cache has cells that the rules of kvcalc's releases would have padded."""
    size = facts.get("cache_size")
    if size is None or size.low is None or not set(names) <= {"cache_size", "kv_buffer", *_K_V}:
        return None
    if "cache_size" not in names or len(made.rank.pools) != 1:
        return None
    (pool,) = made.rank.pools
    held = pool.total_bytes(pool.units or 0)
    cells = made.capacity(None).kv_cache_tokens
    logged = round(Fraction(int(size.low) + int(size.high or 0), 2) * cells / max(1, held))
    if not 0 < logged < cells or logged % _OLD_STEP or not logged % _STEP:
        return None
    if not size.low <= held * logged // cells <= (size.high or 0):
        return None
    why = f"the cache is of {format_count(logged)} cells, a multiple of {_OLD_STEP}"
    return Cause("cells' padding", f"{why} and not of {_STEP}: an older release or a fork pads so")


def _parts_of(made: CachePlan, fact: Fact) -> tuple[str, ...]:
    """Return the drafts' pools without which the others are as large as logged; none if not."""
    sizes: dict[str, int] = {}
    for rank in made.ranks:
        for pool in rank.pools:
            if not pool.name.endswith("state"):
                size = pool.total_bytes(pool.units or 0)
                sizes[pool.name] = sizes.get(pool.name, 0) + size
    drafts = tuple(name for name in sizes if name.startswith(_DRAFTS))
    rest = sum(size for name, size in sizes.items() if name not in drafts)
    low, high = fact.low, fact.high
    return drafts if low is not None and high is not None and low <= rest <= high else ()


# --------------------------------------------------------------------- explain
#
# Why a logged figure is not the predicted one: causes that are tried, not guessed.
#
# What was given against the log's own words comes first. Every other cause is a setting or rule
# that the log does not tell; it explains a difference where a plan with it gives every printed
# figure. Only the first that does is named, and as what may be where a single figure speaks for it:
# among so many causes one that is not may give one figure by chance.

MAY_BE = "may be: "
"""Before the sentence of a cause for which a single figure speaks."""

_NEARLY = 0.5
"""A rank whose memory is less than this part of another's is another thing than a rank."""


_ENOUGH = 2
"""Figures that must speak for a cause so that it is said without a may be."""

_WEIGHTS_OFF = 0.08
"""Part of the weights by which what a rank logs may be off what a checkpoint's files tell."""

_SAME_FIGURE = frozenset(("kv_cache_tokens", "num_gpu_blocks", "available_kv_cache"))
_SLACK = 0.01


def differing(facts: Mapping[str, Fact], found: Mapping[str, Predicted]) -> list[str]:
    """Return the names of figures that cannot be the same number."""
    return [
        name for name, value in found.items() if name in facts and not agrees(facts[name], value)
    ]


class Explained(NamedTuple):
    """The differences with their causes, and what was planned with the cause in it.

    Attributes:
        differences: none where everything agrees.
        plan, model, deployment: with the cause, where a plan has it; as they were where not.
    """

    differences: tuple[Difference, ...]
    plan: CachePlan
    model: ModelSpec
    deployment: Deployment


def explained(
    found: Resolved,
    model: ModelSpec,
    made: CachePlan,
    facts: Mapping[str, Fact],
    told: Mapping[str, Predicted],
) -> Explained:
    """Return the differences with their causes."""
    deployment = found.deployment
    names = differing(facts, told)
    if not names:
        return Explained((), made, model, deployment)
    cause = _cause(found, model, made, facts, names)
    differences = tuple(
        Difference(
            name=name,
            logged=facts[name].printed,
            predicted=told[name].text,
            explained_by=None if cause is None else cause.name,
            why="" if cause is None else cause.why,
        )
        for name in names
    )
    if cause is None or cause.plan is None:
        return Explained(differences, made, model, deployment)
    return Explained(differences, cause.plan, cause.model or model, cause.deployment or deployment)


def _cause(
    found: Resolved,
    model: ModelSpec,
    made: CachePlan,
    facts: Mapping[str, Fact],
    names: list[str],
) -> Cause | None:
    if found.foreign:
        return Cause("given model", found.foreign)
    against = found.overrides
    for some in _subsets(against):
        own, deployment = undone(model, found.deployment, some)
        tried = _tried(own, deployment, facts)
        if tried is not None:
            return _given(some, tried, own, deployment)
    # What the log states stands: other causes are looked for beside it.
    own, deployment = undone(model, found.deployment, against)
    if against:
        try:
            made = plan(own, deployment)
            names = differing(facts, predicted(made, facts)) or names
        except KvcalcError:
            return None
    cause = _untold(found, own, deployment, made, facts, names)
    if cause is None or not against:
        return cause
    name = ", ".join(f"given {one.name}" for one in against)
    why = "; ".join(one.told for one in against)
    return cause._replace(name=f"{name}, {cause.name}", why=f"{why}; {cause.why}", model=own)


def _subsets(against: Sequence[Override]) -> Iterator[tuple[Override, ...]]:
    """Yield each of what was given against the log alone, then all of it."""
    for one in against:
        yield (one,)
    if len(against) > 1:
        yield tuple(against)


def _given(
    some: tuple[Override, ...],
    tried: CachePlan,
    model: ModelSpec,
    deployment: Deployment,
) -> Cause:
    """Return the cause that some of what was given is."""
    name = ", ".join(f"given {one.name}" for one in some)
    why = "; ".join(one.told for one in some) + ", and with that every figure agrees"
    return Cause(name, why, deployment, tried, model)


def _tried(model: ModelSpec, deployment: Deployment, facts: Mapping[str, Fact]) -> CachePlan | None:
    """Return the plan of a deployment if it gives every printed figure."""
    try:
        made = plan(model, deployment)
        told = predicted(made, facts)
    except KvcalcError:
        return None
    held = any(name in facts for name in told)
    return made if held and not differing(facts, told) else None


def _untold(
    found: Resolved,
    model: ModelSpec,
    deployment: Deployment,
    made: CachePlan,
    facts: Mapping[str, Fact],
    names: list[str],
) -> Cause | None:
    """Return the first cause that the log does not tell and that gives every figure."""
    engine = engine_of(deployment.engine)
    if not (engine.logs_memory or engine.prints_as):
        return of_others(model, made, facts, names)
    ranks = _of_ranks(deployment, made, facts)
    if ranks is not None:
        return ranks
    best: Cause | None = None
    for cause in causes(deployment, found.stated, found.releases):
        if cause.deployment is None or (best is not None and cause.name != SPLIT):
            continue
        try:
            tried = plan(model, cause.deployment)
            told = predicted(tried, facts)
        except KvcalcError:
            continue
        if told and not differing(facts, told):
            weighs = _weighs(model, cause.deployment, tried, facts)
            sure = _speak_for_it(facts, told, tried) + bool(weighs) >= _ENOUGH
            why = f"{cause.why}, as the weights on each show" if weighs and (
                cause.name == SPLIT) else cause.why  # fmt: skip
            one = cause._replace(why=why if sure else MAY_BE + why, plan=tried)
            if weighs is not False:
                return one
            best = best or one  # but for the weights, of which each rank may have a part
            continue
        ranks = _of_ranks(cause.deployment, tried, facts) if best is None else None
        if ranks is not None:
            why = f"{MAY_BE}{cause.why}; {ranks.why}"
            return cause._replace(name=f"{cause.name}, {ranks.name}", why=why, plan=tried)
    return best


def _weighs(
    model: ModelSpec, deployment: Deployment, made: CachePlan, facts: Mapping[str, Fact]
) -> bool | None:
    """Whether the weights that a rank loaded are those of a deployment; None: not known."""
    weights = facts.get("weights_memory")
    if weights is None or not isinstance(weights.low, int):
        return None
    try:
        terms = weights_of(model, deployment, made, total_bytes=None, quantization=None)
    except KvcalcError:
        return None
    most = max(terms, key=lambda term: term.high_bytes)
    return (
        most.low_bytes * (1 - _WEIGHTS_OFF) <= weights.low <= most.high_bytes * (1 + _WEIGHTS_OFF)
    )


def _speak_for_it(facts: Mapping[str, Fact], told: Mapping[str, Predicted], made: CachePlan) -> int:
    """Return how many figures agree that are not each other's in other words.

    Blocks and tokens are one; of one memory and one maximum the concurrency is another only where
    it is not the tokens over the maximum.
    """
    held = {name for name in told if name in facts}
    count = len(held - _SAME_FIGURE - {"max_concurrency"})
    count += bool(held & _SAME_FIGURE)
    if "max_concurrency" in held:
        tokens, times = facts.get("kv_cache_tokens"), facts["max_concurrency"]
        if tokens is None or not isinstance(tokens.low, int) or times.low is None:
            return count + (not held & _SAME_FIGURE)
        ratio = tokens.low / made.max_model_len
        count += not times.low - _SLACK <= ratio <= (times.high or 0) + _SLACK
    return count


def _of_ranks(deployment: Deployment, made: CachePlan, facts: Mapping[str, Fact]) -> Cause | None:
    """Say where the figures are those of a rank with less memory than the one that was logged."""
    memory = facts.get("available_kv_cache")
    if memory is None or not isinstance(memory.low, int) or memory.said >= deployment.num_gpus:
        return None
    others = {name: fact for name, fact in facts.items() if name != "available_kv_cache"}
    span = cache_budget(made, others)
    if span is None or not memory.low * _NEARLY < span.high < memory.low:
        return None
    if differing(others, predicted(made, others)):
        return None
    told = span_text(span.low, span.high, "B")
    gives = "give" if " to " in told else "gives"
    return Cause(
        "minimum over ranks",
        f"the rank with the least memory decides: {told} {gives} these figures, and the line that"
        f" is here says {memory.printed}",
    )
