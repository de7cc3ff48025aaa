"""Causes that a log may leave out: settings and rules, each as a deployment that has it.

What the log states is no cause, whatever it would explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan

__all__ = ["SPLIT", "Cause", "causes"]


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
