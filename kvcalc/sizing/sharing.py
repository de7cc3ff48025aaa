"""A card that is not a server's alone: several servers on it, memory that others hold, too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, NotModelledError
from kvcalc.core.memory import End, MemoryBudget, Term, summed
from kvcalc.core.units import format_bytes
from kvcalc.engines import engine_of

if TYPE_CHECKING:
    from kvcalc.sizing.question import Question
    from kvcalc.sizing.worked import Worked

__all__ = [
    "Refusal",
    "check_shares",
    "largest_share",
    "notes_on_sharing",
    "one_of_several",
    "refused",
    "with_free",
]

_STEPS = 1000
_OF_THE_CARD = "gpu_memory_utilization"


class Refusal(NamedTuple):
    """Why a server cannot run: in words, and what a GPU lacks for it."""

    why: str
    missing_bytes: int


def one_of_several(question: Question) -> tuple[Question, tuple[str, ...]]:
    """Return the question of one of the servers on a card, and what to know of the others.

    vLLM's share is one of the whole card, whatever others hold of it: v1/worker/utils.py,
    request_memory. Servers that share a card divide it.

    Raises:
        InvalidValueError: the shares come to more than the card.
        UnsupportedError: an engine whose share is one of what is free when it starts.
    """
    count = question.instances
    if count == 1:
        return question, ()
    deployment = question.deployment
    engine = engine_of(deployment.engine)
    if engine.share != _OF_THE_CARD:
        raise NotModelledError(
            f"several servers on one card are not modelled for {deployment.engine}, whose share is"
            " not one of the whole card",
            hint="ask for one with --gpu-free, what the others leave of the card",
        )
    check_shares(deployment, count)
    share = deployment.gpu_memory_utilization
    if share is None:
        share = (
            max(1, int(engine.default_share(deployment.engine_version) * _STEPS / count)) / _STEPS
        )
    settings = msgspec.structs.replace(deployment, gpu_memory_utilization=share)
    each = f"each of {count} servers has gpu_memory_utilization {share:g}"
    order = (
        "start them one after another: each checks that its own share is free, and takes what"
        " another allocates in the meantime for its own"
    )
    notes = (f"{each}: a share of the whole card, not of what is free", order)
    return question._replace(deployment=settings), notes


def check_shares(deployment: Deployment, count: int) -> None:
    """Check that servers on one card have no more of it than there is.

    Raises:
        InvalidValueError: they have.
    """
    if count > _STEPS:
        raise InvalidValueError(
            f"{count} servers on one card", hint=f"shares are told in thousandths: {_STEPS} at most"
        )
    share = deployment.gpu_memory_utilization
    if share is not None and round(share * _STEPS) * count > _STEPS:
        raise InvalidValueError(
            f"{count} servers with gpu_memory_utilization {share:g} each take"
            f" {share * count:g} of the card",
            hint=f"give each less than {int(_STEPS / count) / _STEPS:g}: the driver's context of"
            " each server lies outside its share",
        )


def with_free(deployment: Deployment, free_bytes: int | None) -> Deployment:
    """Return a deployment with what is free of a card, for an engine that plans by it.

    llama.cpp's fit measures free memory and puts layers by it (device_memory).

    Raises:
        InvalidValueError: more is free than there is.
    """
    gpu = deployment.gpu
    if free_bytes is None or not isinstance(gpu, GpuSpec):
        return deployment
    if free_bytes > gpu.memory_bytes:
        raise InvalidValueError(
            f"{format_bytes(free_bytes)} free of {format_bytes(gpu.memory_bytes)}",
            hint="give what the driver calls free",
        )
    setting = engine_of(deployment.engine).free_setting
    if setting is None or setting in deployment.engine_args:
        return deployment
    args = {**deployment.engine_args, setting: f"{free_bytes} B"}
    return msgspec.structs.replace(deployment, engine_args=args)


def largest_share(memory: MemoryBudget) -> float:
    """Return the largest share of a card that surely starts; 0 where none does.

    In thousandths, rounded down; vLLM compares ceil(total x share) with what is free when its
    process has its context. Everything takes its most.
    """
    room, seen = memory.room_bytes, memory.seen_bytes
    if room is None or seen is None:
        return 1.0
    before, beside = summed(memory.before, "low"), summed(memory.outside, "low")
    if memory.given_bytes is None:
        left = [there // memory.servers - before - beside for there in room]
    else:
        each = summed(memory.terms, "low") + memory.given_bytes + before + beside
        left = [there - each * (memory.servers - 1) - before for there in room]
    if not min(seen):  # the driver keeps all of so small a card
        return 0.0
    steps = (most * _STEPS // total for most, total in zip(left, seen, strict=True))
    return max(0, min(_STEPS, *steps)) / _STEPS


def refused(memory: MemoryBudget, gpu: GpuSpec, end: End) -> Refusal | None:
    """Return why a card has no room at an end for all that is taken of it; None where it has.

    Args:
        memory: of the card.
        gpu: the card.
        end: `low` where everything takes its most, `high` where it takes its least.
    """
    lack = memory.shortfall(end)
    if lack <= 0:
        return None
    bound = "up to" if end == "low" else "at least"
    if memory.given_bytes is not None and not _share_lacks(memory, end):
        return Refusal(_given(memory, gpu, bound, end), lack)
    if memory.free_bytes is not None and _alone(memory).shortfall(end) <= 0:
        return Refusal(_held_by_others(memory, lack, end), lack)
    servers = f" by each of {memory.servers} servers" if memory.servers > 1 else ""
    beside = (*memory.before, *memory.outside)
    taken = format_bytes(summed(beside, end))
    room = max(0, _share_leaves(memory, end))
    return Refusal(
        f"the share leaves {format_bytes(room)} of the card, and {bound} {taken} are taken beside"
        f" it{servers} ({_named(beside)})",
        lack,
    )


def _share_lacks(memory: MemoryBudget, end: End) -> bool:
    """Whether the share itself is not free, whatever the cache takes."""
    return memory.checks_share and msgspec.structs.replace(memory, terms=(), outside=(),
        given_bytes=0).shortfall(end) > 0  # fmt: skip


def _alone(memory: MemoryBudget) -> MemoryBudget:
    """Return the memory of a card of which others hold nothing."""
    return msgspec.structs.replace(memory, free_bytes=None)


def _share_leaves(memory: MemoryBudget, end: End) -> int:
    """Return what of the card the shares and caches leave, before what is taken beside them."""
    bare = msgspec.structs.replace(memory, before=(), outside=())
    return -bare.shortfall(end)


def _named(terms: Sequence[Term]) -> str:
    return ", ".join(dict.fromkeys(term.label or term.name for term in terms))


def _given(memory: MemoryBudget, gpu: GpuSpec, bound: str, end: End) -> str:
    size, count = memory.given_bytes or 0, memory.servers
    there = max(memory.room_bytes or (0, 0)) if end == "high" else min(memory.room_bytes or (0, 0))
    beside = summed((*memory.terms, *memory.before, *memory.outside), end)
    alone = size * count > there
    what = f"a cache of {format_bytes(size)}"
    if not alone:
        what += f" and {bound} {format_bytes(beside)} of weights and buffers beside it"
    if count > 1:
        what += f", {count} times,"
    verb = "is" if alone and count == 1 else "are"
    return f"{what} {verb} more than the {format_bytes(there)} of {gpu.name}"


def _held_by_others(memory: MemoryBudget, lack: int, end: End) -> str:
    free = memory.free_bytes or 0
    others = format_bytes(max(0, memory.total_bytes - free))
    bound = "up to" if end == "low" else "at least"
    why = (
        f"others hold {others} of the card: {bound} {format_bytes(free + lack)} are wanted,"
        f" {format_bytes(free)} are free"
    )
    if not memory.checks_share:  # a part of what it takes to be free, which is not
        return f"{why}, and it runs out of memory as it starts"
    largest = largest_share(memory)
    told = f"the largest share that surely does is {largest:g}" if largest else "no share does"
    return f"{why}, and it does not start; {told}"


def notes_on_sharing(question: Question, worked: Worked) -> tuple[str, ...]:
    """Return what to know of memory that others hold, and of a start that may fail."""
    lines = []
    free, gpu = question.free_bytes, question.deployment.gpu
    if free is not None and isinstance(gpu, GpuSpec):
        line = f"others hold {format_bytes(gpu.memory_bytes - free)} of the card"
        memory = next((one for one in worked.cards if one.checks_share), None)
        if memory is None:
            line += ": what is free decides"
        elif largest := largest_share(memory):
            line += f"; shares up to {largest:g} surely start"
        else:
            line += "; no share surely starts"
        lines.append(line)
    if isinstance(gpu, GpuSpec) and worked.runs("high") and not worked.runs("low"):
        tight = next(filter(None, (refused(one, gpu, "low") for one in worked.cards)), None)
        if tight is not None:
            lines.append(f"{tight.why}: a start may run out of memory")
    return tuple(lines)
