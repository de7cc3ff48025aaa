"""A card that is not a server's alone: several servers on it, or memory that others hold."""

from __future__ import annotations

import msgspec

from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.memory import MemoryBudget
from kvcalc.core.units import format_bytes
from kvcalc.sizing.changes import SHARES
from kvcalc.sizing.question import Question

__all__ = ["held_by_others", "largest_share", "one_of_several"]

_STEPS = 1000
_OF_THE_CARD = "gpu_memory_utilization"
_DEFAULT = 0.92


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
            hint="ask for one with --gpu-memory, its part of the card",
        )
    share = deployment.gpu_memory_utilization
    if share is None:
        share = int(_DEFAULT * _STEPS / count) / _STEPS
    elif share * count > 1:
        raise InvalidValueError(
            f"{count} servers with gpu_memory_utilization {share:g} each take"
            f" {share * count:g} of the card",
            hint=f"{int(_STEPS / count) / _STEPS:g} each is all of it",
        )
    settings = msgspec.structs.replace(deployment, gpu_memory_utilization=share)
    each = f"each of {count} servers has gpu_memory_utilization {share:g}"
    order = (
        "start them one after another: each checks that its own share is free, and takes what"
        " another allocates in the meantime for its own"
    )
    notes = (f"{each}: a share of the whole card, not of what is free", order)
    return question._replace(deployment=settings), notes


def largest_share(memory: MemoryBudget, free_bytes: int) -> float:
    """Return the largest share of a card that starts while only so much of it is free.

    In thousandths, rounded down; vLLM compares ceil(total x share) with what is free.
    """
    return free_bytes * _STEPS // memory.total_bytes / _STEPS


def held_by_others(memory: MemoryBudget, free_bytes: int) -> tuple[bool, str]:
    """Return whether a server can start beside what others hold, and why.

    Raises:
        InvalidValueError: more is free than there is.
    """
    others = memory.total_bytes - free_bytes
    if others < 0:
        raise InvalidValueError(
            f"{format_bytes(free_bytes)} free of {format_bytes(memory.total_bytes)}",
            hint="give what the driver calls free",
        )
    most = largest_share(memory, free_bytes)
    wanted = memory.share_bytes[1]
    if wanted <= free_bytes:
        return True, f"others hold {format_bytes(others)} of the card; shares up to {most:g} start"
    return False, (
        f"others hold {format_bytes(others)} of the card: {format_bytes(wanted)} are wanted,"
        f" {format_bytes(free_bytes)} are free, and it does not start; the largest share that does"
        f" is {most:g}"
    )
