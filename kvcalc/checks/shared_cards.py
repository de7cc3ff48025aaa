"""Cards that several servers of one file share: what they take of it together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import msgspec

from kvcalc.checks.gpu_findings import share_of
from kvcalc.checks.shares_of_cards import left_by, shares_over_card, shares_told
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import setting
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes
from kvcalc.manifests.found import Finding, Level
from kvcalc.sizing.shares import SHARES
from kvcalc.sizing.sizes import sizes_of

__all__ = ["on_shared_cards"]

_HOSTS = ("compose", "shell", "command", "systemd", "quadlet")
"""Carriers whose servers see the host's devices, the first of them where none is named."""

_OF_THE_CARD = ("vllm", "vllm-ascend")


def on_shared_cards(targets: Sequence[Target]) -> Iterator[tuple[Target, Finding]]:
    """Yield findings on servers of one file that run on the same device of the same machine."""
    by_device: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        for device in _devices(target):
            by_device.setdefault((target.file, device), []).append(target)
    told: set[tuple[str, ...]] = set()
    for (_, device), sharing in by_device.items():
        names = tuple(t.name for t in sharing)
        if len(sharing) < 2 or names in told:  # noqa: PLR2004 - one alone shares nothing
            continue
        told.add(names)
        found = _sharing(device, sharing)
        if found is not None:
            yield sharing[-1], found


def _devices(target: Target) -> Iterable[str]:
    server = target.server
    if server is None or target.engine is None:
        return ()
    gpu = server.invocation.gpu
    if server.invocation.carrier not in _HOSTS:
        return ()  # devices are counted anew in each pod
    if gpu.visible is not None:
        return gpu.visible
    if gpu.devices is None and not gpu.every and not server.invocation.background:
        return ()  # in front, it ends before the next begins
    if gpu.resource is not None and "/" in gpu.resource:
        return ()  # a scheduler gives each its own
    ranks = 1 if target.question is None else sizes_of(target.question.deployment).num_gpus
    return [str(n) for n in range(ranks)]


def _sharing(device: str, sharing: list[Target]) -> Finding | None:
    last = sharing[-1]
    at = last.server.invocation.gpu.line if last.server is not None else 0
    line = at or last.line
    compose = last.server is not None and last.server.invocation.carrier == "compose"
    level: Level = "error" if compose else "warning"  # a script may start one of them
    others = ", ".join(t.name for t in sharing[:-1])
    place = f"on device {device}" if device.isascii() and device.isdigit() else "on one device"
    beside = f"{place} beside {others}"
    of_card = [t for t in sharing if t.engine in _OF_THE_CARD]
    shares = [share_of(t) for t in of_card]
    known = [share for share in shares if share is not None]
    total = sum((Fraction(str(share)) for share in known), Fraction(0))
    if len(known) == len(sharing):
        return shares_over_card(beside, sharing, known, level, line)
    if len(of_card) == len(sharing):
        return _in_bytes(beside, sharing, total, level, line)
    if total and not left_by(of_card, known):
        named = ", ".join(t.name for t in sharing if t not in of_card)
        return Finding(
            "shares-over-card",
            level,
            f"{beside}: {shares_told(known)} of the card, and nothing is left for {named}",
            "smaller shares, or another device",
            line,
            amount=float(total),
        )
    sized = all(setting(t, SHARES.get(str(t.engine), "")) is not None for t in sharing)
    return Finding(
        "shared-card",
        "note" if sized else "warning",  # who gives each its share has thought of the other
        f"{beside}: what each gets hangs on which starts first, as its share is one of what is"
        " free then",
        "give each a size of its own, or another device",
        line,
    )


def _in_bytes(
    beside: str, sharing: list[Target], total: Fraction, level: Level, line: int
) -> Finding | None:
    """Add up what servers take of which some are given the bytes of their cache."""
    card = next((t.gpu for t in sharing if t.gpu is not None), None)
    if card is None:
        return None
    taken = [_least(t) for t in sharing]
    whole = sum(size for size in taken if size is not None) + int(total * card.memory_bytes)
    if whole <= card.memory_bytes:
        return None
    if all(t.server is not None and t.server.invocation.background for t in sharing):
        level = "error"  # left running beside each other, they never fit
    return Finding(
        "shares-over-card",
        level,
        f"{beside}: caches of the bytes that are set, what is beside them and shares of the card"
        f" come to at least {format_bytes(whole)} of the {format_bytes(card.memory_bytes)} of"
        f" {card.name}",
        "smaller caches, or another device",
        line,
        amount=whole,
    )


def _least(target: Target) -> int | None:
    """Return what a server takes at least whose cache is given; None where a share sizes it."""
    question = target.question
    if question is None or question.deployment.kv_cache_memory_bytes is None:
        return None
    given = question.deployment.kv_cache_memory_bytes
    alone = msgspec.structs.replace(question.deployment, kv_cache_memory_bytes=None)
    try:
        memory = Sized(question._replace(deployment=alone)).worked.memory
    except KvcalcError:
        return given  # nothing tells the weights
    return given + min((sum(t.low_bytes for t in one.terms) for one in memory), default=0)
