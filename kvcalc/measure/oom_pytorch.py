"""PyTorch's out-of-memory texts, of CUDA, HIP, NPU, XPU and MPS.

Up to 1.3 the text says "cached", which is what was reserved and not allocated; from 1.4 to 2.0 it
says "reserved in total", of which the allocated is a part; since 2.1 both parts are told.
"""

from __future__ import annotations

import re

from kvcalc.core.oom_values import Amount, OomText, ProcessMemory
from kvcalc.measure.oom_amounts import SIZE, add, amount, found, minus

__all__ = ["headroom", "mps", "pytorch"]

_BACKEND = re.compile(r"\b(?P<name>CUDA|HIP|NPU|XPU|MPS|PrivateUse1)\b[^.]{0,40}$")
_DEVICE = re.compile(r"\b(?P<kind>GPU|NPU|XPU|device)\s*:?\s?(?P<number>\d{1,4})?\b")
_PROCESS = re.compile(rf"\bProcess (?P<name>\S{{1,20}}) has (?P<size>{SIZE}) memory in use")


def pytorch(before: str, behind: str) -> OomText | None:
    """Read what stands from "Tried to allocate" on; None where no figure follows."""
    asked = found("Tried to allocate <U>", behind)
    if asked is None:
        return None
    backend = _BACKEND.search(before.rstrip(". "))
    device = _DEVICE.search(behind)
    allocated = found(r"<U> already allocated", behind) or found(
        r"<U> is allocated by PyTorch", behind
    )
    reserved = found(r"<U> reserved in total", behind)
    unallocated = found(r"<U> is reserved by PyTorch but unallocated", behind)
    if unallocated is None:
        unallocated = found(r"<U> cached", behind) or minus(reserved, allocated)
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = add(allocated, unallocated)
    own = found(r"this process has <U> memory in use", behind)
    name = backend["name"].lower() if backend else "cuda"
    if device is not None and backend is None and device["kind"] in ("NPU", "XPU"):
        name = device["kind"].lower()
    return OomText(
        wording=_wording(behind),
        backend=name,
        device=device["number"] if device else None,
        asked=asked,
        capacity=found(r"total capaci?ty of <U>", behind) or found(r"<U> total capacity", behind),
        free=found(r"of which <U> is free", behind) or found(r"[;(] ?<U> free\b", behind),
        allocated=allocated,
        reserved=reserved,
        unallocated=unallocated,
        private_pools=found(r"with <U> allocated in private pools", behind),
        allowed=found(r"<U> allowed;", behind),
        process=own,
        processes=_processes(behind, reserved, told=own is not None),
    )


def _wording(behind: str) -> str:
    """Name the text after the first version that prints it so."""
    if "PYTORCH_ALLOC_CONF" in behind:
        return "pytorch-2.9"
    if "total capacty" in behind:
        return "pytorch-2.1"
    if "total capacity of" in behind or "but unallocated" in behind:
        return "pytorch-2.2"
    if "reserved in total" in behind:
        return "pytorch-1.10" if "reserved memory is >>" in behind else "pytorch-1.4"
    return "pytorch-1.0" if re.search(r" cached\b", behind) else "pytorch"


def _processes(behind: str, reserved: Amount | None, *, told: bool) -> tuple[ProcessMemory, ...]:
    """Return the processes listed.

    In a container a process does not know its own number: where the text has no line for this
    process, the listed one that holds what was reserved, and least above it, is this one.
    """
    listed = [(m["name"], amount(m["size"])) for m in _PROCESS.finditer(behind)]
    own = None
    if not told and reserved is not None:
        holds = [(size.bytes, n) for n, (_, size) in enumerate(listed) if size.high >= reserved.low]
        own = min(holds, default=(0, None))[1]
    return tuple(
        ProcessMemory(name=name, memory=size, own=number == own)
        for number, (name, size) in enumerate(listed)
    )


def mps(before: str, behind: str) -> OomText | None:
    """Read Apple's text, whose figures stand before what was asked for.

    Its MB and GB were powers of two before it printed MiB and GiB.
    """
    asked = found("Tried to allocate <U>", behind)
    if asked is None:
        return None
    allocated = found("MPS allocated: <U>", before)
    others = found("other allocations: <U>", before)
    allowed = found("max allowed: <U>", before)
    taken = add(allocated, others) if allocated and others else allocated
    pool = re.search(r"on (private|shared) pool", behind)
    return OomText(
        wording="mps",
        backend="mps",
        device=f"{pool[1]} pool" if pool else None,
        asked=asked,
        free=minus(allowed, taken),
        allocated=allocated,
        allowed=allowed,
        other_allocations=others,
    )


def headroom(before: str, behind: str) -> OomText | None:
    """Read a server's own words: so much asked, so much split, so much free on the card."""
    figure = re.search(r"(\d{1,12}(?:\.\d{1,6})?)\s?$", before + behind[:1])
    unit = re.match(r"\d\s?([KMG]i?B)", behind)
    if figure is None or unit is None:
        return None
    free = re.search(r"\bcard free (\d{1,12}(?:\.\d{1,6})?)", behind)
    return OomText(
        wording="pytorch-headroom",
        backend="cuda",
        asked=amount(f"{figure[1]} {unit[1]}"),
        # It prints the unit once, with what was asked for.
        free=None if free is None else amount(f"{free[1]} {unit[1]}"),
        unallocated=found(r"<U> is reserved by PyTorch but unallocated", behind),
    )
