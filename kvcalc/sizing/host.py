"""Host memory of a server: everything it takes there, against the container's or the host's."""

from __future__ import annotations

import msgspec

from kvcalc.core.capacity import Budgets
from kvcalc.core.deployment import GpuSpec
from kvcalc.core.memory import End, HostBudget, HostPart, MemoryBudget, summed
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import cdiv, format_bytes
from kvcalc.sizing.sharing import Refusal

__all__ = [
    "growing",
    "host_budget",
    "host_cure",
    "host_refusal",
    "host_warning",
    "within_limit",
]


def host_budget(
    plan: CachePlan,
    memory: tuple[MemoryBudget, ...],
    budgets: tuple[Budgets, Budgets],
    gpu: GpuSpec | None,
    *,
    limit_bytes: int | None,
    servers: int = 1,
) -> HostBudget:
    """Return the host memory of all servers of a plan on one host.

    Args:
        plan: of one server.
        memory: the budget of each of its GPUs; empty where none is named.
        budgets: bytes of its GPUs' caches, low and high.
        gpu: the GPU.
        limit_bytes: what is given; None: the memory that a GPU shares with its host, if it does.
        servers: on the host.
    """
    cache = [_on_gpus(plan, each) for each in budgets]
    parts = [part.with_cache(*cache) for part in plan.host]
    source = "given"
    if gpu is not None and gpu.memory_kind == "unified":
        if limit_bytes is None:
            limit_bytes = gpu.host_memory_bytes or gpu.memory_bytes
            source = f"the memory that {gpu.name} shares with its host"
        parts.extend(_shared(memory))
    if servers > 1:
        parts = [_times(part, servers) for part in parts]
    return HostBudget(
        parts=tuple(parts),
        limit_bytes=limit_bytes,
        limit_source=source if limit_bytes is not None else "",
    )


def _on_gpus(plan: CachePlan, budgets: Budgets) -> int:
    """Return the bytes of the caches on all GPUs of a plan."""
    each = budgets if isinstance(budgets, tuple) else (budgets,) * len(plan.ranks)
    pairs = zip(each, plan.ranks, strict=True)
    return sum((size or 0) * rank.multiplicity for size, rank in pairs if not rank.on_host)


def _shared(memory: tuple[MemoryBudget, ...]) -> list[HostPart]:
    """Return what the GPU takes of the memory that it shares with its host."""
    found = []
    for one in memory:
        low, high = sorted((_taken(one, "high"), _taken(one, "low")))
        found.append(
            HostPart(
                name="GPU memory",
                low_bytes=low,
                high_bytes=high,
                source="weights, KV cache, buffers: the GPU's share of the common memory",
            )
        )
    return found


def _taken(one: MemoryBudget, end: End) -> int:
    share = one.share_bytes[0] if end == "low" else one.share_bytes[1]
    outside = summed(one.before, end) + summed(one.outside, end)
    return max(0, one.taken(end, share)) + outside


def _times(part: HostPart, servers: int) -> HostPart:
    return msgspec.structs.replace(
        part,
        low_bytes=part.low_bytes * servers,
        high_bytes=None if part.high_bytes is None else part.high_bytes * servers,
        source=f"{servers} servers, each: {part.source}",
        unit_bytes=part.unit_bytes * servers,
    )


def host_refusal(budget: HostBudget) -> Refusal | None:
    """Return why a server cannot run in its host memory at all; None where it can."""
    limit = budget.limit_bytes
    if limit is None or budget.may_fit:
        return None
    largest = max((part for part in budget.parts if part.pinned), key=lambda p: p.low_bytes)
    return Refusal(
        f"at least {format_bytes(budget.low_bytes)} of host memory are taken, and"
        f" {format_bytes(limit)} is what there is ({largest.name}"
        f" {format_bytes(largest.low_bytes)})",
        budget.low_bytes - limit,
    )


def host_warning(budget: HostBudget) -> str:
    """Say that host memory may run out as the server's caches fill; "" where it surely does not."""
    limit = budget.limit_bytes
    if limit is None or budget.fits or not budget.may_fit:
        return ""
    bounded = budget.bounded_bytes
    most = "without a limit" if bounded is None else f"to {format_bytes(bounded)}"
    part = growing(budget)
    what = ""
    if part is not None:
        size = "no limit" if part.high_bytes is None else f"up to {format_bytes(part.high_bytes)}"
        default = ", the default" if part.is_default else ""
        what = f": {part.name} {size} ({part.setting}{default})"
    return f"host memory may grow {most}, and {format_bytes(limit)} is what there is{what}"


def growing(budget: HostBudget) -> HostPart | None:
    """Return the part that may grow the most, of those that a setting bounds; None: none is."""
    bounded = [part for part in budget.parts if part.pinned and part.setting]
    return max(
        bounded, key=lambda part: (part.high_bytes is None, part.high_bytes or 0), default=None
    )


def within_limit(budget: HostBudget) -> tuple[str, int] | None:
    """Return the setting of the part that grows the most, and the most that has room; None: none.

    In units of the setting, beside all other parts at their bounds.
    """
    part, limit = growing(budget), budget.limit_bytes
    if part is None:
        return None
    others = msgspec.structs.replace(
        budget, parts=tuple(each for each in budget.parts if each is not part)
    ).bounded_bytes
    if limit is None or others is None or others > limit:
        return None
    return part.setting, (limit - others) // part.unit_bytes


def host_cure(budget: HostBudget) -> str:
    """Return what to change so that it has room: the setting of what grows most, or the limit."""
    found, bounded = within_limit(budget), budget.bounded_bytes
    cures = []
    if found is not None:
        setting, most = found
        cures.append(f"{setting}={most}" if setting.isupper() else f"{setting} {most}")
    if bounded is not None:
        cures.append(f"a limit of {cdiv(bounded, 2**30)}Gi")
    part = growing(budget)
    return ", or ".join(cures) or ("" if part is None else f"bound it: {part.setting}")
