"""Why a logged figure is not the predicted one: causes that are tried, not guessed.

Every cause is a setting or rule that the log does not tell; it explains a difference where a plan
with it gives every printed figure. Only the first that does is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.logs import Difference, Fact, Predicted
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_bytes
from kvcalc.engines import plan
from kvcalc.measure.logs.dated import OTHER_RELEASES
from kvcalc.measure.logs.predict import agrees, cache_budget, predicted

__all__ = ["Cause", "differing", "explained"]

_NEARLY = 0.5
"""A rank whose memory is less than this part of another's is another thing than a rank."""


_DRAFTS = ("draft ", "mtp ")
"""How the pools of a draft's context are named."""


class Cause(NamedTuple):
    """A cause: its name, in a sentence, and the deployment with it."""

    name: str
    why: str
    deployment: Deployment | None = None


def differing(facts: Mapping[str, Fact], found: Mapping[str, Predicted]) -> list[str]:
    """Return the names of figures that cannot be the same number."""
    return [
        name for name, value in found.items() if name in facts and not agrees(facts[name], value)
    ]


def explained(
    model: ModelSpec,
    deployment: Deployment,
    made: CachePlan,
    facts: Mapping[str, Fact],
    found: Mapping[str, Predicted],
    *,
    version_told: bool,
) -> tuple[tuple[Difference, ...], CachePlan]:
    """Return the differences with their causes, and the plan that has none where one was found."""
    names = differing(facts, found)
    if not names:
        return (), made
    cause, better = _cause(model, deployment, made, facts, names, version_told=version_told)
    return tuple(
        Difference(
            name=name,
            logged=facts[name].printed,
            predicted=found[name].text,
            explained_by=None if cause is None else cause.name,
            why="" if cause is None else cause.why,
        )
        for name in names
    ), better or made


def _cause(
    model: ModelSpec,
    deployment: Deployment,
    made: CachePlan,
    facts: Mapping[str, Fact],
    names: list[str],
    *,
    version_told: bool,
) -> tuple[Cause | None, CachePlan | None]:
    if deployment.engine not in ("vllm", "vllm-ascend", "vllm-tpu"):
        return _of_others(model, made, facts, names), None
    ranks = _of_ranks(deployment, made, facts)
    if ranks is not None:
        return ranks, None
    for cause in _causes(deployment, version_told=version_told):
        if cause.deployment is None:
            continue
        try:
            tried = plan(model, cause.deployment)
            told = predicted(tried, facts)
        except KvcalcError:
            continue
        if told and not differing(facts, told):
            return cause, tried
        ranks = _of_ranks(cause.deployment, tried, facts)
        if ranks is not None:
            return Cause(f"{cause.name}, {ranks.name}", f"{cause.why}; {ranks.why}"), tried
    return None, None


def _of_ranks(deployment: Deployment, made: CachePlan, facts: Mapping[str, Fact]) -> Cause | None:
    """Say where the figures are those of a rank with less memory than the one that was logged."""
    memory = facts.get("available_kv_cache")
    if memory is None or not isinstance(memory.low, int) or deployment.num_gpus == 1:
        return None
    others = {name: fact for name, fact in facts.items() if name != "available_kv_cache"}
    span = cache_budget(made, others)
    if span is None or not memory.low * _NEARLY < span.high < memory.low:
        return None
    if differing(others, predicted(made, others)):
        return None
    return Cause(
        "minimum over ranks",
        f"the rank with the least memory decides: {format_bytes(span.low)} to"
        f" {format_bytes(span.high)} give these figures, and the line that is here says"
        f" {memory.printed}",
    )


def _causes(deployment: Deployment, *, version_told: bool) -> Iterator[Cause]:
    single = list(_single(deployment))
    if not version_told:
        for release in OTHER_RELEASES:
            yield Cause(
                "version's rules",
                f"as vLLM {release} counts (the log does not say its version)",
                msgspec.structs.replace(deployment, engine_version=release),
            )
    yield from single
    if version_told:
        return
    for release in OTHER_RELEASES:
        for cause in single:
            if cause.deployment is not None:
                changed = msgspec.structs.replace(cause.deployment, engine_version=release)
                yield Cause(
                    f"version's rules, {cause.name}", f"vLLM {release}, {cause.why}", changed
                )


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
            "tensor parallel",
            f"over {size} GPUs",
            "tensor_parallel_size",
            (("tensor_parallel_size", size),),
        )
        for size in (2, 4, 8)
    ),
)
"""Cause, its sentence, the setting that a log leaves out, and what it is then."""


def _single(deployment: Deployment) -> Iterator[Cause]:
    """Yield settings that logs leave out, one at a time."""
    if deployment.kv_cache_dtype != "auto":
        why = f"with a cache in the model's own dtype, not in {deployment.kv_cache_dtype}"
        own = msgspec.structs.replace(deployment, kv_cache_dtype="auto")
        yield Cause("other KV dtype", why, own)
    changed = deployment.changed()
    for name, why, field, settings in _UNTOLD:
        if field not in changed:
            yield Cause(name, why, msgspec.structs.replace(deployment, **dict(settings)))


def _of_others(
    model: ModelSpec, made: CachePlan, facts: Mapping[str, Fact], names: list[str]
) -> Cause | None:
    """Name what other engines' lines are of."""
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
