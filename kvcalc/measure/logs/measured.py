"""What of a GPU a changed setting would leave for the cache, by what a start's own log measured.

A log tells what was left: the share less everything else, whatever that came to. A change adds or
takes away from it: a larger share what it is larger by; other sizes what the terms that depend on
them change by, each in the proportion of kvcalc's own figures for the two. So no cure rests on what
kvcalc would have said of a GPU that it has not seen.

vLLM alone: the others' logs name fewer terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import NamedTuple

import msgspec

from kvcalc.answers.capacity import Figures
from kvcalc.answers.logs import Fact
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import MemoryBudget
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.visible import visible
from kvcalc.engines import engine_of, plan
from kvcalc.engines.changes import Change
from kvcalc.measure.logs.predict import cache_budget
from kvcalc.sizing.figures import figures
from kvcalc.sizing.question import Question, work
from kvcalc.sizing.worked import Worked

__all__ = ["Gpu", "Measured", "card_of", "gpu_of", "measured", "neighbour"]

_TERMS = {
    "weights": ("weights_memory",),
    "activation": ("activation_memory",),
    "graphs": ("estimated_graph_memory",),
}
"""Term of a budget -> the log's figure of the same memory."""

_SMALLEST = 2**30
_PUBLISHED = 0.9
"""Of the published weights, at least, where they are not quantized by another's hand."""

_CAPABILITY = "9.0"
"""Of a GPU that no line names: kvcalc's rules are those of the newer ones unless told."""


class Gpu(NamedTuple):
    """The memory of one GPU.

    Attributes:
        low, high: bytes that the engine sees of it; `high` is None where a bound is all there is.
        source: where it is known from.
    """

    low: int
    high: int | None
    source: str


class Measured(NamedTuple):
    """The memory of a start by its own figures.

    Attributes:
        question: the start, on a GPU of that memory.
        plan: of it.
        budgets: what kvcalc says of it; empty where nothing tells the weights.
        available: [least, most] bytes of a rank's cache as logged; negative where none was left.
        gpu: its memory.
        share: of it that the engine took; None where the cache's bytes were given.
        free: least bytes that were free at the start; None where that is not logged.
        terms: term -> [least, most] bytes as logged.
        deployment: as the log and the user say it, whose GPU may not be known.
    """

    question: Question
    plan: CachePlan
    budgets: tuple[MemoryBudget, ...]
    available: tuple[int, int]
    gpu: Gpu
    share: Fraction | None
    free: int | None
    terms: Mapping[str, tuple[int, int]]
    deployment: Deployment

    def left(self, change: Change) -> int | None:
        """Return the least bytes that a change leaves for a cache; None: it cannot be made."""
        asked = change.applied(self.question)
        share = asked.deployment.gpu_memory_utilization
        gained = 0
        if share is not None and self.share is not None:
            more = Fraction(str(share)) - self.share
            if more < 0 and self.gpu.high is None:
                return None
            gained = floor(more * (self.gpu.low if more > 0 else self.gpu.high or 0))
        if not self.budgets:
            return self.available[0] + gained
        changed = work(asked).memory
        base = self.budgets[0]
        return self.available[0] + gained + min(self._freed(base, one) for one in changed)

    def _freed(self, base: MemoryBudget, changed: MemoryBudget) -> int:
        """Return the least bytes that a change frees within the share; below 0: what it takes."""
        before, after = _by_name(base), _by_name(changed)
        freed = 0
        for name in {**before, **after}:
            old, new = before.get(name, (0, 0)), after.get(name, (0, 0))
            if old == new:
                continue
            logged = self.terms.get(name, old)
            if not new[1]:
                freed += logged[0]
            elif not old[0] or not old[1]:
                freed += old[0] - new[1]
            else:
                ratio = max(Fraction(new[0], old[0]), Fraction(new[1], old[1]))
                freed += floor(logged[0 if ratio < 1 else 1] * (1 - ratio))
        return freed

    @property
    def as_published(self) -> bool:
        """Whether the weights that were loaded are in the checkpoint's own format, as known."""
        logged, told = self.terms.get("weights"), self.budgets and _by_name(self.budgets[0])
        if logged is None or not told or "weights" not in told:
            return bool(told) and self.gpu.high is not None
        return logged[0] >= told["weights"][0] * _PUBLISHED

    def figures(self, change: Change) -> Figures | None:
        """Return what the engine makes of a start with a change; None where it cannot be made."""
        try:
            left = self.left(change)
            if left is None:
                return None
            asked = change.applied(self.question._replace(deployment=self.deployment))
            made = plan(asked.model, asked.deployment)
            worked = Worked(made, (), left, left, left, asked.each)
            return figures(worked, "low")
        except KvcalcError:
            return None

    def works(self, change: Change) -> Figures | None:
        """Return the figures of a change with which the start succeeds; None where it does not."""
        found = self.figures(change)
        return found if found is not None and found.starts and found.fits else None


def measured(
    model: ModelSpec,
    deployment: Deployment,
    made: CachePlan,
    facts: Mapping[str, Fact],
    *,
    weights_bytes: int | None = None,
    quantization: str | None = None,
) -> Measured | None:
    """Return the memory of a start by its own figures; None where they do not tell it."""
    span = cache_budget(made, facts)
    if span is None or not engine_of(deployment.engine).logs_memory:
        return None
    given = deployment.kv_cache_memory_bytes is not None
    terms = {
        name: found
        for name, figures in _TERMS.items()
        if (found := next(filter(None, (_of(facts, figure) for figure in figures)), None))
    }
    share = None if given else _share(deployment)
    gpu = gpu_of(deployment, facts, share, span.low)
    if gpu is None:
        return None
    whole = (gpu.low + (gpu.high or gpu.low)) // 2
    asked = Question(
        model=model,
        deployment=msgspec.structs.replace(
            deployment, gpu=card_of(deployment, whole), kv_cache_memory_bytes=None
        ),
        weights_bytes=weights_bytes,
        quantization=quantization,
    )
    try:
        budgets = work(asked).memory
    except KvcalcError:
        budgets = ()
    free = _of(facts, "free_memory")
    return Measured(
        asked, made, budgets, (span.low, span.high), gpu, share, free and free[0], terms,
        msgspec.structs.replace(deployment, kv_cache_memory_bytes=None),
    )  # fmt: skip


def gpu_of(
    deployment: Deployment, facts: Mapping[str, Fact], share: Fraction | None, available: int
) -> Gpu | None:
    """Return the memory of a start's GPU: logged, that of the one that is named, or a least bound.

    What a share was left of is no less than that share: a GPU has at least the logged terms and
    what was left, over the share.
    """
    total = _of(facts, "total_memory")
    if total is not None:
        return Gpu(*total, "the log")
    if isinstance(deployment.gpu, GpuSpec):
        seen = visible(deployment.gpu)
        return Gpu(seen.low_bytes, seen.high_bytes, deployment.gpu.name)
    requested = _of(facts, "requested_memory")
    if requested is not None and share:
        return Gpu(floor(requested[0] / share), floor(requested[1] / share), "the log's share")
    names = ("weights_memory", "consumed_memory", "activation_memory", "non_torch_memory")
    spans = (_of(facts, name) for name in names)
    taken = sum(span[0] for span in spans if span is not None) + max(available, 0)
    if available < 0 and share and share < 1:
        # All that was taken lay on the GPU: share x total - available is no more than the total.
        taken = max(taken, floor(-available * share / (1 - share)))
    if not share or taken < _SMALLEST:
        return None  # too few of the terms are logged
    return Gpu(floor(taken / share), None, "what the log's own terms come to at least")


def card_of(deployment: Deployment, memory: int) -> GpuSpec:
    """Return the GPU of a start with the memory that its log tells, under the name that it has."""
    gpu = deployment.gpu
    if isinstance(gpu, GpuSpec):
        return msgspec.structs.replace(gpu, memory_bytes=max(memory, 1))
    name = "the log's GPU"
    return GpuSpec(
        name=name, title=name, memory_bytes=max(memory, 1), compute_capability=_CAPABILITY
    )


def neighbour(found: Measured, facts: Mapping[str, Fact]) -> int:
    """Return the least bytes that another process took while a start measured; 0 for none.

    What was left is the share less all that was taken since the first snapshot, whoever took it
    (v1/worker/gpu_worker.py, determine_available_memory): what neither the logged terms nor the
    most of kvcalc's account for is another's.
    """
    if found.share is None or not found.budgets:
        return 0
    taken = floor(found.share * found.gpu.low) - found.available[1]
    accounted = 0
    for name, (_, high) in _by_name(found.budgets[0]).items():
        logged = found.terms.get(name)
        accounted += high if logged is None else logged[1]
    rest = _of(facts, "graph_memory")
    if rest is not None and "graphs" not in found.terms:
        accounted += rest[1]
    return max(0, taken - accounted) if taken - accounted > _NEIGHBOUR else 0


_NEIGHBOUR = 2**29
"""Bytes beyond every account that are told as another's: half a GiB."""


def _share(deployment: Deployment) -> Fraction:
    """Return the share of the GPU that a start took: its own, or its release's default."""
    from kvcalc.engines.vllm.rules import rules_of  # no other engine's log needs it
    from kvcalc.engines.vllm.version import release

    rules = rules_of(release(deployment.engine_version))
    return Fraction(str(deployment.gpu_memory_utilization or rules.gpu_memory_utilization))


def _of(facts: Mapping[str, Fact], name: str) -> tuple[int, int] | None:
    fact = facts.get(name)
    if fact is None or not isinstance(fact.low, int) or not isinstance(fact.high, int):
        return None
    return fact.low, fact.high


def _by_name(budget: MemoryBudget) -> dict[str, tuple[int, int]]:
    """Return a budget's terms within the share, those of one name together."""
    found: dict[str, tuple[int, int]] = {}
    for term in budget.terms:
        low, high = found.get(term.name, (0, 0))
        found[term.name] = low + term.low_bytes, high + term.high_bytes
    return found
