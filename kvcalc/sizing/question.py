"""A capacity question, and the plan and memory that every answer to it is read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kvcalc.core.capacity import Budgets, holds, least_of, smallest_budget
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.explain import beyond
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import End, MemoryBudget
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.core.units import cdiv, format_bytes, format_count
from kvcalc.core.visible import left_free
from kvcalc.engines import budgets, plan, shares_out
from kvcalc.sizing.shares import LONGER, PLACES
from kvcalc.sizing.sharing import Refusal, check_shares, refused, with_free
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
        sequences: the goal: so many sequences of the maximum at once, on all servers together.
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
        """Sequences of the goal that every server (or group of ranks) must hold at once."""
        return cdiv(self.sequences, self.holders)

    @property
    def holders(self) -> int:
        """Replicas, groups of ranks, and servers on each card: all hold sequences of their own."""
        return sizes_of(self.deployment).holders * self.instances


class Worked(NamedTuple):
    """A question worked out as far as every answer needs it.

    Attributes:
        plan: what the engine makes of it.
        memory: of each rank of the plan; empty where the cache is given.
        low, middle, high: bytes of the cache of each rank.
        each: sequences of the goal that every server (or group of ranks) must hold at once.
        cards: the memory of each kind of GPU with all that is taken of it, the cache too where it
            is given; empty where no card is named.
        gpu: the card.
        barred: why it cannot run, whatever a card holds; None where it can.
        too_long: why the engine refuses its maximum; None where it does not.
        longest: the longest maximum that it does not refuse; None where it refuses none.
    """

    plan: CachePlan
    memory: tuple[MemoryBudget, ...]
    low: Budgets
    middle: Budgets
    high: Budgets
    each: int
    cards: tuple[MemoryBudget, ...] = ()
    gpu: GpuSpec | None = None
    barred: Refusal | None = None
    too_long: Refusal | None = None
    longest: int | None = None

    def budgets(self, end: End) -> Budgets:
        """Bytes of the cache of each rank: least, expected, or most."""
        return {"low": self.low, "middle": self.middle, "high": self.high}[end]

    def runs(self, end: End) -> bool:
        """Whether there is room at an end for all that is taken of the cards, whatever it holds.

        What is expected is told of a start that succeeds, wherever one may.
        """
        sure: End = "low" if end == "low" else "high"
        return self.barred is None and all(one.shortfall(sure) <= 0 for one in self.cards)

    def cache_holds(self, end: End) -> bool:
        """Whether the caches hold the goal at an end, whatever lies beside them."""
        return self.too_long is None and holds(self.plan, self.budgets(end), self.each)

    def meets(self, end: End) -> bool:
        """Whether the goal is met at an end: surely where everything takes its most (`low`)."""
        return self.runs(end) and self.cache_holds(end)

    def refusal(self, end: End = "high") -> Refusal | None:
        """Return why it does not start at an end; None where it does."""
        found = self.too_long or self.barred
        if found is not None or self.gpu is None:
            return found
        gpu = self.gpu
        sure: End = "low" if end == "low" else "high"
        return next(filter(None, (refused(one, gpu, sure) for one in self.cards)), None)

    @property
    def crowded(self) -> str | None:
        """Why the goal is not met whatever the memory; None where that is not so."""
        return too_many(self.plan, self.each)

    def missing(self) -> int:
        """Bytes that one GPU lacks for the goal at the low end; 0: no memory would do, or enough.

        What the cache lacks of what it must hold, and what the card lacks for all beside it.
        """
        wanted = None if self.too_long else smallest_budget(self.plan, self.each)
        if wanted is None:
            return 0
        if self.barred is not None:
            return self.barred.missing_bytes
        given = not self.memory
        lacks = [max(0, wanted - (least_of(self.low) or 0))] if given or not self.cards else []
        lacks += [max(0, wanted - one.cache_bytes[0]) for one in self.cards if not given]
        beside = [one.shortfall("low") for one in self.cards]
        if given:  # a larger cache takes its own from the card
            (cache,) = lacks
            grown = (
                lack + cache * one.servers for one, lack in zip(self.cards, beside, strict=True)
            )
            return max(cache, *grown, 0)
        return max(cache + max(0, lack) for cache, lack in zip(lacks, beside or (0,), strict=True))


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
    long = _too_long(question, found)
    own = None if long is None else question.model.max_position_embeddings
    each, gpu = question.each, deployment.gpu if isinstance(deployment.gpu, GpuSpec) else None
    given = deployment.kv_cache_memory_bytes
    if given is not None or (deployment.gpu is None and found.split == "fixed"):
        cards = () if given is None else _beside(question, found, given)
        return Worked(found, (), given, given, given, each, cards, gpu, too_long=long, longest=own)
    if deployment.gpu is None:
        raise UsageError(
            "capacity needs memory", hint="name the card (--gpu), its memory or the cache's"
        )
    memory = _memory(question, deployment, found)
    counted = _counted(found, memory)
    if found.check_fixed_units:  # else the start-up check goes by what the share leaves
        memory = counted
    lows = tuple(one.cache_bytes[0] for one in memory)
    highs = tuple(one.cache_bytes[1] for one in memory)
    middles = tuple((low + high) // 2 for low, high in zip(lows, highs, strict=True))
    cards = _on_cards(found, counted)
    barred = None
    if not cards and deployment.engine == "llama.cpp":
        barred = _weights_alone(question, deployment)
    return Worked(found, memory, lows, middles, highs, each, cards, gpu, barred, long, own)


def _on_cards(found: CachePlan, memory: tuple[MemoryBudget, ...]) -> tuple[MemoryBudget, ...]:
    pairs = zip(memory, found.ranks, strict=True)
    return tuple(one for one, rank in pairs if not rank.on_host)


def _too_long(question: Question, found: CachePlan) -> Refusal | None:
    """Return why an engine refuses a maximum that is more than the model was made for."""
    switch = LONGER.get(found.engine)
    allowed = question.deployment.engine_args.get(switch or "")
    lines = beyond(question.model, found.max_model_len)
    if switch is None or not lines or str(allowed).lower() in ("1", "true"):
        return None
    return Refusal(f"{lines[0]}, and {found.engine} refuses that unless {switch}=1 is set", 0)


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
    made = budgets(question.model, deployment, found, weights, question.free_bytes)
    return tuple(msgspec.structs.replace(one, servers=question.instances) for one in made)


def _counted(found: CachePlan, memory: tuple[MemoryBudget, ...]) -> tuple[MemoryBudget, ...]:
    """Return memory with the caches whose blocks the settings count: they are made all the same.

    vLLM's num_gpu_blocks_override and LMDeploy's num_gpu_blocks take the place of what the share
    would give, and no check of theirs compares them with the card.
    """
    if found.split != "one_pool":
        return memory
    return tuple(
        msgspec.structs.replace(
            one,
            given_bytes=_allocated(rank),
            share_source="the settings count its blocks, whatever is left of the share:"
            f" {one.share_source}",
        )
        if rank.pools and rank.units_are_set
        else one
        for one, rank in zip(memory, found.ranks, strict=True)
    )


def _allocated(rank: Rank) -> int:
    within = (pool for pool in rank.pools if not pool.beside)
    return rank.fixed_bytes + sum(pool.total_bytes(pool.units or 0) for pool in within)


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


def _beside(question: Question, found: CachePlan, given: int) -> tuple[MemoryBudget, ...]:
    """Return what a cache that is given, and all beside it, take of the card that is named."""
    deployment = question.deployment
    gpu = deployment.gpu
    if not isinstance(gpu, GpuSpec):
        return ()
    alone = msgspec.structs.replace(deployment, kv_cache_memory_bytes=None)
    cards: tuple[MemoryBudget, ...] = ()
    if shares_out(deployment.engine):
        try:
            cards = _on_cards(found, _counted(found, _memory(question, alone, found)))
        except KvcalcError:
            cards = ()  # nothing tells the weights, and the cache was all that was asked about
    if not cards:
        seen = left_free(gpu, question.free_bytes)
        bare = MemoryBudget(
            total_bytes=gpu.memory_bytes,
            share_bytes=(seen.low_bytes, seen.high_bytes),
            share_source=seen.what,
            terms=(),
            seen_bytes=(seen.low_bytes, seen.high_bytes),
            servers=question.instances,
        )
        cards = (bare,)
    return tuple(
        one if one.given_bytes is not None else msgspec.structs.replace(one, given_bytes=given)
        for one in cards
    )
