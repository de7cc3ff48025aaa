"""A capacity question, and how it is worked out: its plan, and the memory that its cache gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from kvcalc.core.capacity import allocated
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.explain import beyond
from kvcalc.core.lengths import Lengths
from kvcalc.core.memory import MemoryBudget
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv, format_bytes
from kvcalc.core.visible import left_free
from kvcalc.engines import budgets, engine_of, plan, shares_out
from kvcalc.sizing.sharing import Refusal, check_shares, with_free
from kvcalc.sizing.sizes import sizes_of
from kvcalc.sizing.weights import as_weighed, weights_of
from kvcalc.sizing.worked import Worked

__all__ = ["Question", "listen", "work"]


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
        host_bytes: host memory that the servers on a host may have; None where nobody says.
        all_layouts: splits over GPUs that nobody deploys are solutions too.
        may_move: bytes of weights that the engine may move to the host to make room; None: any.
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
    host_bytes: int | None = None
    all_layouts: bool = False
    may_move: int | None = None

    @property
    def each(self) -> int:
        """Sequences of the goal that every server (or group of ranks) must hold at once."""
        return cdiv(self.sequences, self.holders)

    @property
    def holders(self) -> int:
        """Replicas, groups of ranks, and servers on each card: all hold sequences of their own."""
        return sizes_of(self.deployment).holders * self.instances


_listening: list[Callable[[], None]] = []


@contextmanager
def listen(heard: Callable[[], None]) -> Iterator[None]:
    """Call a function at every question that is worked out meanwhile: to show that one is."""
    _listening.append(heard)
    try:
        yield
    finally:
        _listening.remove(heard)


def work(question: Question) -> Worked:
    """Plan a question and say what is left for its cache, and what it takes of the host.

    Raises:
        UsageError: neither a card nor a cache is given.
        UnsupportedError: the engine refuses it, or kvcalc does not model it.
        InvalidValueError: more free than there is, or shares of more than the card.
    """
    for heard in _listening:
        heard()
    found = _worked(question)
    return found._replace(host_bytes=question.host_bytes, servers=question.instances)


def _worked(question: Question) -> Worked:
    if engine_of(question.deployment.engine).plans_by_weights:
        model = as_weighed(question.model, question.weights_bytes, question.quantization)
        question = question._replace(model=model, weights_bytes=None, quantization=None)
    deployment = with_free(question.deployment, question.free_bytes)
    check_shares(deployment, question.instances)
    found = plan(question.model, deployment)
    long = _too_long(question, found)
    own = None if long is None else question.model.longest
    each, gpu = question.each, deployment.gpu if isinstance(deployment.gpu, GpuSpec) else None
    given = deployment.kv_cache_memory_bytes
    if given is not None and found.split == "one_pool" and found.check_fixed_units:
        set_ = [allocated(rank) for rank in found.ranks if rank.pools and rank.units_are_set]
        asked, given = given, max(set_, default=given)  # the settings count its blocks
        if given > asked and gpu is None:  # and nothing says that there is room for so many
            return Worked(found, (), None, None, None, each, too_long=long, longest=own)
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
    barred = _moves_too_much(question, found)
    if not cards:
        barred = barred or _without_cache(question, deployment, found)
    return Worked(found, memory, lows, middles, highs, each, cards, gpu, barred, long, own)


def _on_cards(found: CachePlan, memory: tuple[MemoryBudget, ...]) -> tuple[MemoryBudget, ...]:
    pairs = zip(memory, found.ranks, strict=True)
    return tuple(one for one, rank in pairs if not rank.on_host)


def _too_long(question: Question, found: CachePlan) -> Refusal | None:
    """Return why an engine refuses a maximum that is more than the model was made for."""
    engine = engine_of(found.engine)
    switch = engine.longer
    allowed = question.deployment.engine_args.get(switch or "")
    lines = beyond(question.model, found.max_model_len, stretched=engine.counts_stretched)
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
            given_bytes=allocated(rank),
            share_source="the settings count its blocks, whatever is left of the share:"
            f" {one.share_source}",
        )
        if rank.pools and rank.units_are_set
        else one
        for one, rank in zip(memory, found.ranks, strict=True)
    )


def _moves_too_much(question: Question, found: CachePlan) -> Refusal | None:
    """Return that more weights leave the GPUs than a search allows; None where they do not."""
    if question.may_move is None or found.moved_bytes <= question.may_move:
        return None
    moved = format_bytes(found.moved_bytes)
    return Refusal(f"{found.engine} moves {moved} of the weights to the host", found.moved_bytes)


def _without_cache(question: Question, deployment: Deployment, found: CachePlan) -> Refusal | None:
    """Return why GPUs cannot be used on which the plan has no cache; None where they can."""
    gpu = deployment.gpu
    if not isinstance(gpu, GpuSpec):
        return None
    why = engine_of(deployment.engine).barred(
        question.model,
        deployment,
        found,
        left_free(gpu, question.free_bytes).high_bytes,
        quantization=question.quantization,
        total_bytes=question.weights_bytes,
    )
    return None if why is None else Refusal(*why)


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
