"""Servers of one file on one GPU: what they take of it together, and in which order they start.

An engine measures at its start what is free of the GPU: vLLM from before it loads until it has
profiled (v1/worker/gpu_worker.py, determine_available_memory: "Here we assume that the other
processes using the same GPU did not change their memory usage"; worker/worker.py before), SGLang,
LMDeploy, TGI and TensorRT-LLM after they have loaded. What another server takes in between is
counted as the engine's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations

import msgspec

from kvcalc.checks.gpu_findings import share_of
from kvcalc.checks.shares_of_cards import left_by, shares_over_card, shares_told
from kvcalc.checks.sized import Sized
from kvcalc.checks.targets import Target
from kvcalc.checks.words import setting
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes
from kvcalc.engines import engine_asked
from kvcalc.manifests.found import Finding, Invocation, Level, apart
from kvcalc.sizing.sizes import sizes_asked

__all__ = ["on_shared_cards"]

_HOSTS = ("compose", "shell", "command", "systemd", "quadlet", "supervisord")
"""Carriers whose servers see the host's devices, the first of them where none is named."""

_SCRIPTS = ("shell", "command")
_MOST = 64  # servers of one device
_MOST_COPIES = 8
_IN_TURN = {
    "compose": "let one wait until the other is ready: depends_on with condition: service_healthy,"
    " and a healthcheck",
    "systemd": "let one unit wait until the other is ready: After=, and an ExecStartPost= that"
    " waits for its port",
    "quadlet": "let one unit wait until the other is ready: After=, and Notify=healthy",
}
_WAIT = (
    "wait until one answers before the next is started:"
    " until curl -sf localhost:PORT/health; do sleep 5; done"
)
"""How servers are started one after another, by their carrier; in a script otherwise."""


def on_shared_cards(targets: Sequence[Target]) -> Iterator[tuple[Target, Finding]]:
    """Yield findings on servers of one file that run on the same device of the same machine."""
    by_device: dict[tuple[object, ...], list[Target]] = {}
    for target in targets:
        for place in _places(target):
            by_device.setdefault(place, []).append(target)
    told: set[tuple[str, ...]] = set()
    for (*_, device), placed in by_device.items():
        for sharing in _together(placed[:_MOST]):
            names = tuple(t.name for t in sharing)
            if len(sharing) < 2 or names in told:  # noqa: PLR2004 - one alone shares nothing
                continue
            told.add(names)
            found = _sharing(str(device), sharing)
            if found is not None:
                yield sharing[-1], found


def _places(target: Target) -> Iterator[tuple[object, ...]]:
    """Yield the devices that a server runs on, with the machine or container that counts them."""
    server = target.server
    if server is None or target.engine is None:
        return
    invocation, gpu = server.invocation, server.invocation.gpu
    host = invocation.carrier in _HOSTS
    machine: tuple[object, ...] = (target.file,)
    if not host:  # devices are counted anew in each container, and in each pod that is shown all
        shown = (gpu.resource or "").endswith("VISIBLE_DEVICES")
        machine = (
            *machine,
            *([_pod(invocation)] if shown else [_pod(invocation), invocation.line]),
        )
    elif gpu.visible is None:
        if gpu.devices is None and not gpu.every and invocation.carrier not in _SCRIPTS:
            return
        if gpu.resource is not None and "/" in gpu.resource:
            return  # a scheduler gives each its own
    ranks = 1 if target.question is None else sizes_asked(target.question.deployment).num_gpus
    devices = gpu.visible if gpu.visible is not None else [str(n) for n in range(ranks)]
    copies = invocation.replicas or 1 if invocation.carrier == "compose" else 1
    for _ in range(min(copies, _MOST_COPIES)):
        yield from ((*machine, device) for device in devices)


def _together(placed: Sequence[Target]) -> Iterator[list[Target]]:
    """Yield the largest groups of servers of which each two can run at the same time."""
    seen: list[set[int]] = []
    for number in range(len(placed)):
        group = [number]
        for other in range(len(placed)):
            if other != number and all(_both(placed, *sorted((other, n))) for n in group):
                group.append(other)
        if not any(seen_before >= set(group) for seen_before in seen):
            seen.append(set(group))
            yield [placed[n] for n in sorted(group)]


def _both(placed: Sequence[Target], first: int, then: int) -> bool:
    """Whether a server still runs when one further down its file is started."""
    one, two = _invocation(placed[first]), _invocation(placed[then])
    if one is two:
        return True
    in_script = one.carrier in _SCRIPTS or (one.line == two.line and _pod(one) == _pod(two))
    return not apart(one.branch, two.branch) and (one.background or not in_script)


def _pod(invocation: Invocation) -> str:
    """Return what a server's container is part of: several of one script are numbered."""
    return invocation.name.rpartition("/")[0] or invocation.name


def _invocation(target: Target) -> Invocation:
    assert target.server is not None  # noqa: S101 - who has no server has no place
    return target.server.invocation


def _in_turn(sharing: Sequence[Target]) -> bool:
    """Whether of each two servers one is ready before the other starts."""
    return all(
        _is_after(one, two) or _is_after(two, one)
        for one, two in combinations(map(_invocation, sharing), 2)
    )


def _is_after(late: Invocation, early: Invocation) -> bool:
    lines = {early.line, *(word.line for word in early.words[:1])}
    return late is not early and bool(lines.intersection(late.after))


def _measures(target: Target) -> bool:
    """Whether a server sizes its cache by what it finds free."""
    question = target.question
    if engine_asked(target.engine).settings_fix_cache:
        return False
    return question is None or question.deployment.kv_cache_memory_bytes is None


def _sharing(device: str, sharing: list[Target]) -> Finding | None:
    last = sharing[-1]
    carrier, line = _invocation(last).carrier, _invocation(last).gpu.line or last.line
    compose = carrier == "compose"
    level: Level = "error" if compose else "warning"  # a script may start one of them
    others = ", ".join(dict.fromkeys(t.name for t in sharing[:-1]))
    place = f"on device {device}" if device.isascii() and device.isdigit() else "on one device"
    beside = f"{place} with {others}"
    if last.name == others:
        beside = f"{len(sharing)} copies {place}"
    of_card = [t for t in sharing if engine_asked(t.engine).divides_gpu]
    shares = [share_of(t) for t in of_card]
    known = [share for share in shares if share is not None]
    total = sum((Fraction(str(share)) for share in known), Fraction(0))
    over = None
    if len(known) == len(sharing):
        over = shares_over_card(beside, sharing, known, level, line)
    elif len(of_card) == len(sharing):
        over = _in_bytes(beside, sharing, total, level, line)
    elif total and not left_by(of_card, known):
        named = ", ".join(t.name for t in sharing if t not in of_card)
        over = Finding(
            "shares-over-card",
            level,
            f"{beside}: {shares_told(known)} of the card, and nothing is left for {named}",
            "smaller shares, or another device",
            line,
            amount=float(total),
        )
    return over or _in_order(beside, sharing, line)


def _in_order(beside: str, sharing: Sequence[Target], line: int) -> Finding | None:
    """Return what hangs on the order of the starts of servers that there is room for."""
    of_card = all(engine_asked(t.engine).divides_gpu for t in sharing)
    carrier = _invocation(sharing[-1]).carrier
    if _in_turn(sharing):
        if of_card:
            return None
        message = "each takes its share of what those before it leave free"
        return Finding("shared-card", "note", f"{beside}: {message}", "mind the order", line)
    if any(map(_measures, sharing)):
        cure = _IN_TURN.get(carrier, _WAIT)
        if len({t.name for t in sharing}) == 1:
            cure = "a service of its own for each device"
        return Finding(
            "shared-card",
            "warning",
            f"{beside}: nothing orders their starts, and each counts as its own what the others"
            " take of the GPU while it loads",
            f"{cure}; or another device",
            line,
        )
    if of_card:
        return None
    sized = all(setting(t, engine_asked(t.engine).share or "") is not None for t in sharing)
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
    if all(_invocation(t).background for t in sharing):
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
