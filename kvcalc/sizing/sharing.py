"""A card that is not a server's alone: several servers on it, memory that others hold, too much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.memory import MemoryBudget
from kvcalc.core.units import format_bytes
from kvcalc.core.visible import left_free, visible
from kvcalc.sizing.shares import SHARES

if TYPE_CHECKING:
    from kvcalc.sizing.question import Question, Worked

__all__ = [
    "Refusal",
    "beyond_card",
    "beyond_free",
    "beyond_room",
    "check_shares",
    "free_for_one",
    "largest_share",
    "notes_on_sharing",
    "one_of_several",
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
    if SHARES.get(deployment.engine) != _OF_THE_CARD:
        raise UnsupportedError(
            f"several servers on one card are not modelled for {deployment.engine}, whose share is"
            " not one of the whole card",
            hint="ask for one with --gpu-free, what the others leave of the card",
        )
    check_shares(deployment, count)
    share = deployment.gpu_memory_utilization
    if share is None:
        share = int(_default_share(deployment) * _STEPS / count) / _STEPS
    settings = msgspec.structs.replace(deployment, gpu_memory_utilization=share)
    each = f"each of {count} servers has gpu_memory_utilization {share:g}"
    order = (
        "start them one after another: each checks that its own share is free, and takes what"
        " another allocates in the meantime for its own"
    )
    notes = (f"{each}: a share of the whole card, not of what is free", order)
    return question._replace(deployment=settings), notes


def _default_share(deployment: Deployment) -> float:
    """Return the share that the release takes unasked."""
    from kvcalc.engines.vllm.rules import rules_of  # only several servers ask for it
    from kvcalc.engines.vllm.version import release

    version = deployment.engine_version if deployment.engine == "vllm" else None
    return rules_of(release(version)).gpu_memory_utilization


def check_shares(deployment: Deployment, count: int) -> None:
    """Check that servers on one card have no more of it than there is.

    Raises:
        InvalidValueError: they have.
    """
    share = deployment.gpu_memory_utilization
    if share is not None and round(share * _STEPS) * count > _STEPS:
        raise InvalidValueError(
            f"{count} servers with gpu_memory_utilization {share:g} each take"
            f" {share * count:g} of the card",
            hint=f"{int(_STEPS / count) / _STEPS:g} each is all of it",
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
    if deployment.engine != "llama.cpp" or "device_memory" in deployment.engine_args:
        return deployment
    args = {**deployment.engine_args, "device_memory": f"{free_bytes} B"}
    return msgspec.structs.replace(deployment, engine_args=args)


def free_for_one(deployment: Deployment, free_bytes: int | None, count: int) -> int | None:
    """Return what is free for the last of several servers, when the others have their shares."""
    share, gpu = deployment.gpu_memory_utilization, deployment.gpu
    if free_bytes is None or count == 1 or share is None or not isinstance(gpu, GpuSpec):
        return free_bytes
    return max(0, free_bytes - (count - 1) * int(visible(gpu).high_bytes * share))


def largest_share(memory: MemoryBudget, free_bytes: int) -> float:
    """Return the largest share of a card that starts while only so much of it is free.

    In thousandths, rounded down; vLLM compares ceil(total x share) with what is free. Of what the
    runtime sees at most, so that it surely starts.
    """
    total = memory.total_bytes if memory.seen_bytes is None else memory.seen_bytes[1]
    return min(_STEPS, free_bytes * _STEPS // total) / _STEPS


def beyond_free(memory: MemoryBudget) -> Refusal | None:
    """Return why a server cannot take what it wants while others hold the rest; None: it can."""
    free, (least, most) = memory.free_bytes, memory.taken_bytes
    if free is None or least <= free:
        return None
    others = memory.total_bytes - free
    why = (
        f"others hold {format_bytes(others)} of the card: {format_bytes(least)} are wanted,"
        f" {format_bytes(free)} are free"
    )
    if memory.cache_part != (1, 1):  # a part of what it takes to be free, which is not
        return Refusal(f"{why}, and it runs out of memory as it starts", most - free)
    return Refusal(
        f"{why}, and it does not start; the largest share that does is"
        f" {largest_share(memory, free):g}",
        most - free,
    )


def beyond_room(memory: MemoryBudget) -> Refusal | None:
    """Return why what lies beside a share has no room, even at its least; None: it may have."""
    if memory.leaves_room(sure=False):
        return None
    least = sum(term.low_bytes for term in memory.outside)
    room = max(memory.room_bytes or (0, 0))
    return Refusal(
        f"the share leaves {format_bytes(max(0, room))} of the card, and at least"
        f" {format_bytes(least)} are taken beside it ({_named(memory)})",
        least - room,
    )


def _named(memory: MemoryBudget) -> str:
    return ", ".join(dict.fromkeys(term.name for term in memory.outside))


def beyond_card(
    gpu: GpuSpec,
    free_bytes: int | None,
    cache_bytes: int,
    memory: Sequence[MemoryBudget],
    count: int = 1,
) -> Refusal | None:
    """Return why a cache of given bytes cannot be on a card; None where it can.

    Args:
        gpu: the card.
        free_bytes: what others leave of it; None where the servers are alone.
        cache_bytes: of the cache.
        memory: what the engine takes beside it on each kind of GPU; empty where nothing tells.
        count: servers of the kind on each card.
    """
    seen = left_free(gpu, free_bytes).high_bytes
    least = max(
        (sum(term.low_bytes for term in (*one.terms, *one.outside)) for one in memory), default=0
    )
    wanted = (cache_bytes + least) * count
    if wanted <= seen:
        return None
    what = f"a cache of {format_bytes(cache_bytes)}"
    if cache_bytes * count <= seen:
        what += f" and at least {format_bytes(least)} of weights and buffers beside it"
    if count > 1:
        what += f", {count} times,"
    verb = "is" if cache_bytes * count > seen and count == 1 else "are"
    return Refusal(f"{what} {verb} more than the {format_bytes(seen)} of {gpu.name}", wanted - seen)


def notes_on_sharing(question: Question, worked: Worked) -> tuple[str, ...]:
    """Return what to know of memory that others hold, and of what lies beside the share."""
    lines = []
    free, gpu = question.free_bytes, question.deployment.gpu
    if free is not None and isinstance(gpu, GpuSpec):
        line = f"others hold {format_bytes(gpu.memory_bytes - free)} of the card"
        memory = next((one for one in worked.memory if one.free_bytes is not None), None)
        if memory is None:
            line += ": what is free decides"
        elif SHARES.get(question.deployment.engine) == _OF_THE_CARD:
            line += f"; shares up to {largest_share(memory, memory.free_bytes or 0):g} start"
        lines.append(line)
    tight = next((one for one in worked.memory if not one.leaves_room(sure=True)), None)
    if tight is not None and worked.refusal is None:
        most = sum(term.high_bytes for term in tight.outside)
        room = min(tight.room_bytes or (0, 0))
        lines.append(
            f"{format_bytes(max(0, room))} stay free beside the cache, and up to"
            f" {format_bytes(most)} are taken there ({_named(tight)}): a start may run out of"
            " memory"
        )
    return tuple(lines)
