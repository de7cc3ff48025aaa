"""A capacity question, and the plan and memory that every answer to it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from kvcalc.core.capacity import Budgets, holds, least_of, smallest_budget
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import MemoryBudget
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv, format_bytes, format_count
from kvcalc.core.visible import left_free
from kvcalc.engines import budgets, plan, shares_out
from kvcalc.sizing.shares import PLACES
from kvcalc.sizing.sharing import (
    Refusal,
    beyond_card,
    beyond_free,
    beyond_room,
    check_shares,
    free_for_one,
    with_free,
)
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.weights import least_without_cache, weights_of

__all__ = ["End", "Question", "Worked", "too_many", "work"]


class Question(NamedTuple):
    """What is asked.

    Attributes:
        model: as published.
        deployment: as it is to be served; its gpu is the card, its kv_cache_memory_bytes the cache
            of each rank where that is given.
        weights_bytes: of the whole model, instead of what is known of it.
        quantization: what the weights are kept in, instead of the checkpoint's own.
        sequences: the goal: so many sequences of the maximum at once, on all replicas together.
        lengths: further lengths to tell the concurrency of.
        workload: (name, requests) to tell the concurrency of.
        instances: servers of this kind on each card.
        free_bytes: of each card before this server starts; None where it is alone.
    """

    model: ModelSpec
    deployment: Deployment
    weights_bytes: int | None = None
    quantization: str | None = None
    sequences: int = 1
    lengths: Sequence[int] = ()
    workload: tuple[str, Lengths] | None = None
    instances: int = 1
    free_bytes: int | None = None

    @property
    def each(self) -> int:
        """Sequences of the goal that every replica (or group of ranks) must hold at once."""
        return cdiv(self.sequences, sizes_of(self.deployment).holders)


End = Literal["low", "middle", "high"]
"""With which of what may be left for the cache: the least is sure, the most is possible."""


class Worked(NamedTuple):
    """A question worked out as far as every answer needs it.

    Attributes:
        plan: what the engine makes of it.
        memory: of each rank of the plan; empty where the cache is given.
        low, middle, high: bytes of the cache of each rank.
        each: sequences of the goal that every replica (or group of ranks) must hold at once.
        refusal: why it cannot run, whatever the cache would hold; None where it can.
    """

    plan: CachePlan
    memory: tuple[MemoryBudget, ...]
    low: Budgets
    middle: Budgets
    high: Budgets
    each: int
    refusal: Refusal | None

    def budgets(self, end: End) -> Budgets:
        """Bytes of the cache of each rank: least, expected, or most."""
        return {"low": self.low, "middle": self.middle, "high": self.high}[end]

    def holds(self, budgets: Budgets) -> bool:
        """Whether the goal is met with caches of so many bytes."""
        return self.refusal is None and holds(self.plan, budgets, self.each)

    @property
    def crowded(self) -> str | None:
        """Why the goal is not met whatever the memory; None where that is not so."""
        return too_many(self.plan, self.each)

    def missing(self) -> int:
        """Bytes that one GPU lacks for the goal with the least that is left; 0: none would do."""
        if self.refusal is not None:
            return self.refusal.missing_bytes
        wanted = smallest_budget(self.plan, self.each)
        return 0 if wanted is None else max(0, wanted - (least_of(self.low) or 0))


def too_many(found: CachePlan, sequences: int) -> str | None:
    """Return that so many sequences are never run at once; None where they may be."""
    places = found.places
    if places is None or sequences <= places:
        return None
    setting = PLACES.get(found.engine, "max_num_seqs")
    return f"no more than {format_count(places)} run at once ({setting}), whatever the memory"


def work(question: Question) -> Worked:
    """Plan a question and say what is left for its cache.

    Raises:
        UsageError: neither a card nor a cache is given.
        UnsupportedError: the engine refuses it, or kvcalc does not model it.
        InvalidValueError: more free than there is, or shares of more than the card.
    """
    deployment = with_free(question.deployment, question.free_bytes)
    check_shares(deployment, question.instances)
    found = plan(question.model, deployment)
    each = question.each
    given = deployment.kv_cache_memory_bytes
    if given is not None or (deployment.gpu is None and found.split == "fixed"):
        refusal = None if given is None else _beside(question, found, given)
        return Worked(found, (), given, given, given, each, refusal)
    if deployment.gpu is None:
        raise UsageError(
            "capacity needs memory", hint="name the card (--gpu), its memory or the cache's"
        )
    memory = _memory(question, deployment, found)
    lows = tuple(one.cache_bytes[0] for one in memory)
    highs = tuple(one.cache_bytes[1] for one in memory)
    middles = tuple((low + high) // 2 for low, high in zip(lows, highs, strict=True))
    on_cards = [one for one, rank in zip(memory, found.ranks, strict=True) if not rank.on_host]
    refusal = next(filter(None, map(beyond_free, on_cards)), None)
    refusal = refusal or next(filter(None, map(beyond_room, on_cards)), None)
    if not on_cards and deployment.engine == "llama.cpp":
        refusal = _weights_alone(question, deployment)
    return Worked(found, memory, lows, middles, highs, each, refusal)


def _memory(
    question: Question, deployment: Deployment, found: CachePlan
) -> tuple[MemoryBudget, ...]:
    weights = weights_of(
        question.model,
        deployment,
        found,
        total_bytes=question.weights_bytes,
        quantization=question.quantization,
    )
    free = free_for_one(deployment, question.free_bytes, question.instances)
    return budgets(question.model, deployment, found, weights, free)


def _weights_alone(question: Question, deployment: Deployment) -> Refusal | None:
    """Return why the weights cannot be on the cards while llama.cpp's cache is the host's."""
    from kvcalc.engines.llamacpp.settings import resolve  # only its questions need it

    placing = resolve(question.model, deployment, []).placing
    layers, count = question.model.num_hidden_layers, placing.n_gpu_layers
    on_cards = layers if count is None else min(count - 1, layers)  # the output counts as one
    gpu = deployment.gpu
    if on_cards < 0 or not isinstance(gpu, GpuSpec):
        return None
    least = least_without_cache(
        question.model,
        on_cards,
        quantization=question.quantization,
        total_bytes=question.weights_bytes,
    )
    seen = left_free(gpu, question.free_bytes).high_bytes * len(placing.shares)
    if least <= seen:
        return None
    return Refusal(
        f"the weights of {format_count(on_cards)} layers and the output take at least"
        f" {format_bytes(least)} of the {format_bytes(seen)} of {gpu.name}",
        least - seen,
    )


def _beside(question: Question, found: CachePlan, given: int) -> Refusal | None:
    """Return why a cache that is given cannot be on the card that is named, with the weights."""
    deployment = question.deployment
    if not isinstance(deployment.gpu, GpuSpec):
        return None
    alone = msgspec.structs.replace(deployment, kv_cache_memory_bytes=None)
    memory: tuple[MemoryBudget, ...] = ()
    if shares_out(deployment.engine):
        try:
            memory = _memory(question, alone, found)
        except KvcalcError:
            memory = ()  # nothing tells the weights, and the cache was all that was asked about
    on_cards = [one for one, rank in zip(memory, found.ranks, strict=False) if not rank.on_host]
    refused = next(filter(None, map(beyond_free, on_cards)), None)
    return refused or beyond_card(
        deployment.gpu, question.free_bytes, given, on_cards, question.instances
    )
