"""The verdict on an out-of-memory text in sentences: the sum, its rounding, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcalc.allocator.oom_values import (
    Amount,
    OomText,
    Verdict,
    free_at_most,
    own_pool,
    reserved_bytes,
)
from kvcalc.core.units import UnitSystem, format_bytes

__all__ = ["SETTINGS", "advice", "arithmetic", "summary"]

SETTINGS = {
    "cuda": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since 2.9)",
    "hip": "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True (PYTORCH_ALLOC_CONF since 2.9)",
    "npu": "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True",
}
"""How each back end of PyTorch that has expandable segments is told to use them."""

_Size = Callable[[int], str]

_CLOSE = 20  # ends that are within a twentieth are told as one figure

_TWO = 2 * 2**20
_TWENTY = 20 * 2**20

_MEANING: dict[Verdict, str] = {
    "fragmentation_possible": (
        "Fragmentation is possible: the allocator holds enough unused memory for the request, but"
        " in pieces none of which served it. A snapshot would prove it"
    ),
    "mixed": (
        "Mixed: neither the device's free memory nor the allocator's unused memory is enough, both"
        " together are, were they one piece"
    ),
    "shortage": "Shortage, not fragmentation: all that is free is too little",
    "other_process": (
        "Other processes hold what is missing: the request would fit if they gave it up"
    ),
    "fraction_limit": (
        "A limit on this process is reached, not the device's end: the process may not take so much"
    ),
    "impossible": "Impossible: the request is larger than the whole device",
    "shared_memory_spill": (
        "The process uses more than the device has: the driver (on Windows, most often) spills into"
        " the computer's memory, which is slow, and now that is used up too"
    ),
    "free_is_enough": (
        "The device has enough free as printed: figures are taken after the failure, so what held"
        " the memory may be gone again, or a limit outside this text applies"
    ),
    "unknown": "The text tells too little for a verdict",
}


def summary(
    text: OomText, verdict: Verdict, shortfall: tuple[int, int] | None, units: UnitSystem
) -> str:
    """Return the verdict in a sentence or two."""
    said = _MEANING[verdict]
    if text.largest is not None and verdict == "fragmentation_possible":
        said = (
            "Fragmentation: free memory is enough for the request, its largest hole is not, as the"
            " text itself says"
        )
    if text.what:
        said = f"What could not be had: {text.what}. {said}"
    if verdict == "other_process" and shortfall is None:
        return (
            f"{said}; as printed, after the failure, the device has enough free, so they may have"
            " let some of it go in between."
        )
    if shortfall is None or verdict not in ("shortage", "impossible", "other_process"):
        return f"{said}."
    missing = f"{_range(*shortfall, units)} is missing"
    if text.free is None and not own_pool(text):
        missing = f"at least {missing}, as the text does not tell what the device had free"
    if verdict == "other_process":
        return f"{said}; without that {missing}."
    joined = "even with every hole joined " if text.unallocated is not None else ""
    return f"{said}; {joined}{missing}."


def _range(least: int, most: int, units: UnitSystem) -> str:
    """Return two ends as a figure and its rounding, or both where they are far apart."""
    low, high = (format_bytes(value, units=units) for value in (least, most))
    if least == most:
        return low
    if (most - least) * _CLOSE > most:
        return f"{low} to {high}"
    middle, half = (least + most) // 2, (most - least + 1) // 2
    told = format_bytes(middle, units=units)
    mega, name = (2**20, "MiB") if units == "binary" else (10**6, "MB")
    if middle >= 1_000 * mega and half < mega:  # two decimals of a GiB would hide the rounding
        told = f"{middle / mega:,.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{told} (+-{format_bytes(half, units=units)})"


def arithmetic(
    text: OomText, others: int | None, *, certain: bool, units: UnitSystem
) -> Iterator[str]:
    """Yield the comparison, one line each, with the rounding of the printed figures."""

    def size(value: int) -> str:
        return format_bytes(value, units=units)

    if text.asked is None:
        return
    yield from _compared(text, text.asked, size, certain=certain)
    if text.largest is not None and text.largest.high < text.asked.low:
        yield f"the largest hole, {size(text.largest.bytes)}, is smaller: this is fragmentation"
    yield from _of_capacity(text, text.asked, size)
    if others and any(not process.own for process in text.processes):
        yield f"other processes listed hold {size(others)}"
    if text.allowed is not None:
        yield f"this process may take {size(text.allowed.bytes)}"
    if text.private_pools is not None:
        yield (
            f"{size(text.private_pools.bytes)} of the allocated is bound in private pools of CUDA"
            " graphs, free or not"
        )
    if text.wording.startswith("pytorch") and text.asked.bytes in (_TWO, _TWENTY):
        least, most = ("1 B", "1 MiB") if text.asked.bytes == _TWO else ("1 MiB", "10 MiB")
        yield (
            f"{size(text.asked.bytes)} is what PyTorch asks the device for, for any allocation of"
            f" {least} to {most}"
        )


def _compared(text: OomText, asked: Amount, size: _Size, *, certain: bool) -> Iterator[str]:
    """Compare what was asked for with all that was free or cached."""
    most = free_at_most(text)
    free = (text.free, "free") if most is None else (most, "free at most")
    named = (free, (text.unallocated, "cached, unused"))
    known = [(part, name) for part, name in named if part is not None]
    if not known:
        return
    if text.free is None and not own_pool(text):
        yield "what the device had free is not told" + (
            f": {most.text} = {size(most.bytes)} at most" if most is not None else ""
        )
    total = sum(part.bytes for part, _ in known)
    parts = " + ".join(f"{size(part.bytes)} {name}" for part, name in known)
    whole = f" = {size(total)}" if len(known) > 1 else ""
    sign, left = ("<", "short by") if total < asked.bytes else (">=", "to spare:")
    if most is not None:
        left = "short by at least" if total < asked.bytes else "to spare at most:"
    elif text.free is None and not own_pool(text):
        left = "short by at most" if total < asked.bytes else "to spare at least:"
    gap = size(abs(total - asked.bytes))
    yield f"{parts}{whole} {sign} {size(asked.bytes)} asked, {left} {gap}"
    rounding = asked.high - asked.bytes + sum(part.high - part.bytes for part, _ in known)
    if rounding:
        told = "the comparison is the same at either end" if certain else "enough to turn it"
        yield f"rounding: the figures are printed to +-{size(rounding)} together; {told}"


def _of_capacity(text: OomText, asked: Amount, size: _Size) -> Iterator[str]:
    """Compare with all of the device, and say what of it nothing accounts for."""
    if text.capacity is None:
        return
    capacity, reserved = text.capacity.bytes, reserved_bytes(text)
    if text.allocated is not None and text.allocated.bytes > capacity:
        yield f"{size(text.allocated.bytes)} allocated > {size(capacity)} capacity"
    elif asked.bytes > capacity:
        yield f"{size(asked.bytes)} asked > {size(capacity)} capacity"
    elif text.free is not None and reserved is not None:
        rest = capacity - text.free.bytes - reserved
        if rest > 0:
            yield (
                f"{size(capacity)} capacity - {size(text.free.bytes)} free - {size(reserved)}"
                f" reserved here = {size(rest)} of the driver's contexts and of other processes"
            )


def advice(text: OomText, verdict: Verdict, *, full: bool) -> Iterator[str]:
    """Yield what to change, the first thing first.

    Args:
        text: the figures.
        verdict: the cause that they point to.
        full: the device has next to nothing that is neither in use nor in small holes.
    """
    torch = text.wording.startswith("pytorch")
    if torch and text.backend in SETTINGS and verdict in _EXPANDABLE:
        yield _EXPANDABLE[verdict].format(setting=SETTINGS[text.backend])
    if verdict in ("fragmentation_possible", "mixed"):
        if full:
            yield (
                "but the device is full to 98 % or more: the holes are a small part of it, so free"
                " some memory as well (a smaller batch, context or KV cache)"
            )
        if torch:
            yield (
                "to prove it: torch.cuda.memory._dump_snapshot('snapshot.pickle'), then kvcalc frag"
                " --snapshot snapshot.pickle"
            )
        elif not torch:
            yield "allocate the largest first, and free whole phases of work before the next"
    if verdict in ("shortage", "impossible"):
        yield from _less(text, verdict)
    if verdict == "fraction_limit" and text.backend == "mps":
        yield (
            "ask for less; PYTORCH_MPS_HIGH_WATERMARK_RATIO raises the limit, and 0.0 takes it away"
            " at the risk of the whole computer"
        )
    elif verdict == "unknown" and text.wording in _ASK:
        yield _ASK[text.wording]
    elif verdict in _ADVICE:
        yield _ADVICE[verdict]


_NO = "expandable_segments: no, it cannot help: "
_YES = (
    "expandable_segments: yes, it can help: segments then grow in place, and free pages move to"
    " where they are needed; set {setting} before the first allocation"
)
_ONE_PIECE = _NO + "even one piece of all that is free and cached is too small"
_EXPANDABLE: dict[Verdict, str] = {
    "fragmentation_possible": _YES,
    "mixed": _YES,
    "shortage": _ONE_PIECE,
    "impossible": _ONE_PIECE,
    "other_process": _NO + "it is not this process's holes that are missing",
    "fraction_limit": _NO + "what is limited is what this process may take",
    "shared_memory_spill": _NO + "the device is used up beyond its end",
}
_ASK = {
    "ggml": (
        "give the whole log: the lines from the start on tell what each device had free, and what"
        " was allocated before"
    ),
    "xla": "ask device.memory_stats() before the step that fails: kvcalc frag --jax-stats FILE",
    "bfc": "give the allocator's dump that follows in the log: kvcalc frag --bfc-log FILE",
}
_ADVICE: dict[Verdict, str] = {
    "other_process": "end the other processes on this device, or give this one another device",
    "fraction_limit": (
        "raise the limit (torch.cuda.set_per_process_memory_fraction, or the framework's setting"
        " that calls it), or ask for less"
    ),
    "shared_memory_spill": (
        "take less memory than the card has; the driver's fall back to system memory can be"
        " switched off, so that it fails at once instead of slowing down"
    ),
    "free_is_enough": (
        "look at who else used the device at that moment (nvidia-smi, each second), and for limits:"
        " MIG, MPS, cgroup, ulimit -v, a fraction set by the framework"
    ),
    "unknown": "give the whole text: what was asked, what was free, what was reserved",
}


def _less(text: OomText, verdict: Verdict) -> Iterator[str]:
    if text.wording == "ggml":
        yield (
            "a compute buffer grows with -ub and the context, a KV buffer with -c: lower what"
            " failed, or move layers with -ngl"
        )
    elif text.wording == "vllm-kv":
        yield "lower --max-model-len, raise --gpu-memory-utilization, or use more GPUs"
    elif verdict == "impossible":
        yield "no setting helps: split the allocation (a shorter sequence, a smaller batch)"
    else:
        yield "ask for less: a smaller batch or chunk, a shorter context, a smaller KV cache"
        if text.wording.startswith("pytorch"):
            yield (
                "under vLLM or SGLang this is memory outside the KV cache: lower"
                " --gpu-memory-utilization or --mem-fraction-static, so that the cache leaves room"
            )
