"""Out-of-memory texts of every era: which figures they print, and what those are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from math import prod
from typing import BinaryIO

from kvcalc.allocator.oom import judge
from kvcalc.allocator.oom_values import Amount, OomText, OutOfMemory, ProcessMemory
from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import UnitSystem, cdiv
from kvcalc.measure.feed import file_name, read_small

__all__ = [
    "MAX_TEXTS",
    "MAX_TEXT_BYTES",
    "SIZE",
    "add",
    "amount",
    "exact",
    "found",
    "ggml",
    "hbm",
    "headroom",
    "minus",
    "mps",
    "plain",
    "pytorch",
    "read_oom",
    "read_oom_file",
    "read_oom_texts",
    "tensorflow",
    "vllm_kv",
    "vllm_start",
    "xla",
]

SIZE = r"\d{1,20}(?:\.\d{1,6}|,\d{1,2}(?!\d))?\s?(?:bytes|[KMGT]i?B?|B)\b"
"""A figure with its unit, for use inside a pattern.

Some locales print a decimal comma; before three digits it could part thousands, and is not read.
"""

_PARTS = re.compile(r"(?P<whole>\d+)(?:[.,](?P<decimals>\d+))?\s?(?P<unit>\w+)")
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def amount(text: str) -> Amount:
    """Read a figure; every unit is a power of 1024, as all these programs print them.

    >>> amount("1.00 KiB").high
    1029
    """
    match = _PARTS.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    unit = 1024 ** _POWERS.get(match["unit"][0], 0)
    decimals = match["decimals"] or ""
    value = Fraction(int(match["whole"] + decimals), 10 ** len(decimals)) * unit
    # Nothing prints a fraction of a byte: the last digit is half a step off at most.
    half = Fraction(unit, 2 * 10 ** len(decimals)) if unit > 1 else Fraction(0)
    low = max(Fraction(0), value - half)
    return Amount(
        text=" ".join(text.split()),
        bytes=int(value + Fraction(1, 2)),
        low=cdiv(low.numerator, low.denominator),
        high=int(value + half),
    )


def exact(value: int) -> Amount:
    """Return an amount that is told to the byte."""
    return Amount(text=f"{value} bytes", bytes=value, low=value, high=value)


def found(pattern: str, text: str) -> Amount | None:
    """Return the amount in the first group of a pattern, where it is in a text."""
    match = re.search(pattern.replace("<U>", f"({SIZE})"), text)
    return None if match is None else amount(match[1])


def minus(whole: Amount | None, part: Amount | None) -> Amount | None:
    """Return what is left, with the range of both; never below zero."""
    if whole is None or part is None:
        return None
    return Amount(
        text=f"{whole.text} - {part.text.replace(' + ', ' - ')}",
        bytes=max(0, whole.bytes - part.bytes),
        low=max(0, whole.low - part.high),
        high=max(0, whole.high - part.low),
    )


def add(one: Amount, other: Amount) -> Amount:
    """Return the sum, with the range of both."""
    return Amount(
        text=f"{one.text} + {other.text}",
        bytes=one.bytes + other.bytes,
        low=one.low + other.low,
        high=one.high + other.high,
    )


# --------------------------------------------------------------------- other programs

_ELEMENT = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element, by TensorFlow's names."""

_MOST_DIMENSIONS = 32


def vllm_kv(before: str, behind: str) -> OomText | None:
    """vLLM, V1: one sequence of the maximum does not fit into the cache's memory."""
    asked = found(r"\(?<U>\s*$", before)
    free = found(r"available KV cache memory \(<U>\)", behind)
    if asked is None or free is None:
        return None
    return OomText(
        wording="vllm-kv",
        backend="vllm",
        what="the KV cache of one sequence of max_model_len",
        asked=asked,
        free=free,
    )


def vllm_start(before: str, behind: str) -> OomText | None:
    """vLLM, V1: less is free at start than the share that it is to use."""
    del before
    match = re.search(
        r"on device (?:\S{1,20} )?\((\d{1,9}(?:\.\d{1,4})?)/(\d{1,9}(?:\.\d{1,4})?) GiB\)", behind
    )
    asked = found(r"utilization \([\d.]{1,10}, <U>\)", behind)
    if match is None or asked is None:
        return None
    free, capacity = amount(f"{match[1]} GiB"), amount(f"{match[2]} GiB")
    return OomText(
        wording="vllm-start",
        backend="vllm",
        what="the share of the device that --gpu-memory-utilization names",
        asked=asked,
        capacity=capacity,
        free=free,
        process=exact(0),  # it has taken nothing yet
    )


def ggml(before: str, behind: str) -> OomText | None:
    """llama.cpp and what is built on it: one buffer of a device.

    What is free is told at the start only, before the weights: it counts where it is too little
    even so.
    """
    asked = found(r"allocating <U> on device", behind) or found(r"size ?= ?<U>", behind)
    if asked is None:
        size = re.search(r"of size (\d{1,20})", behind)
        if size is None:
            return None
        asked = exact(int(size[1]))
    device = re.search(r"on device (\d{1,4})|allocate (\S{1,40}) buffer", behind)
    name = (device[1] or device[2]) if device else None
    at_start = None
    if name:
        number = re.search(r"\d{1,4}$", name)
        label = rf"\w*{number[0]}\b" if number else re.escape(name)
        at_start = found(rf"using device {label}[^\n]{{0,120}}? - <U> free", before)
    lowered = (before[-200:] + " " + behind).lower()
    backends = {"hip": "hip", "rocm": "hip", "vulkan": "vulkan", "metal": "metal", "sycl": "sycl"}
    backend = next((to for word, to in backends.items() if word in lowered), "cuda")
    return OomText(
        wording="ggml",
        backend=backend,
        device=name,
        what=_buffer(before, behind),
        asked=asked,
        free=at_start if at_start is not None and at_start.high < asked.low else None,
    )


def _buffer(before: str, behind: str) -> str | None:
    """Say which buffer it was: what follows names it, or what was allocated before leaves it."""
    if re.search(r"compute (?:\w{1,10} )?buffers?|graph_reserve", behind) or re.search(
        r"gallocr_reserve\w{0,8}:? ?$", before
    ):
        return "a compute buffer, which is not the KV cache"
    if re.search(r"kv[ _]?cache|for (?:the )?kv", behind, re.IGNORECASE):
        return "the KV cache"
    if re.search(r"unable to (?:allocate|load)|error loading model", behind):
        return "the weights"
    if re.search(r"KV self size|KV buffer size", before):
        return "a compute buffer, which is not the KV cache: that was allocated before"
    return None


def xla(before: str, behind: str) -> OomText | None:
    """XLA, as JAX prints it under RESOURCE_EXHAUSTED."""
    del before
    asked = found(r"allocat(?:e|ing) <U>", behind) or found(
        r"Attempting to (?:reserve|allocate) <U>", behind
    )
    if asked is None:
        return None
    return OomText(
        wording="xla",
        backend="tpu" if "hbm" in behind or "Attempting to" in behind else "xla",
        asked=asked,
        # Free in its own allocator, whose holes matter: not what the driver has free.
        unallocated=found(r"There (?:are|is) <U> free", behind),
        largest=found(r"largest contiguous region of free memory is <U>", behind),
    )


def hbm(before: str, behind: str) -> OomText | None:
    """XLA on a TPU: the compiled program needs more than the chip has."""
    del before
    asked, capacity = found(r"Used <U> of", behind), found(r"Used \S{1,20} of <U> \w", behind)
    if asked is None or capacity is None:
        return None
    return OomText(
        wording="xla-hbm",
        backend="tpu",
        what="the compiled program with its arguments",
        asked=asked,
        capacity=capacity,
        free=capacity,
    )


def tensorflow(before: str, behind: str) -> OomText | None:
    """TensorFlow's and XLA's BFC allocator; its statistics follow in the log."""
    if "not a failure" in behind:  # it tries another way, with less memory
        return None
    asked = found(r"trying to allocate <U>", behind)
    rounded = re.search(r"rounded to (\d{1,20})\)", behind)
    if rounded:
        asked = exact(int(rounded[1]))
    if asked is None:
        shape = re.search(r"shape ?\[([\d,]{1,300})\] and type (\w{1,20})", behind)
        if shape is None or shape[2] not in _ELEMENT:
            return None
        sides = [int(side) for side in shape[1].split(",") if side][:_MOST_DIMENSIONS]
        if any(side >= 2**40 for side in sides):
            return None
        asked = exact(prod(sides) * _ELEMENT[shape[2]])
    limit, in_use = (
        re.search(rf"\b{name}: {{1,30}}(\d{{1,20}})", behind) for name in ("Limit", "InUse")
    )
    capacity = exact(int(limit[1])) if limit else None
    allocated = exact(int(in_use[1])) if in_use else None
    name = re.search(r"Allocator \((\S{1,60})\)\s*$", before) or re.search(
        r"by allocator (\S{1,60})", behind
    )
    return OomText(
        wording="bfc",
        backend="bfc",
        device=name[1] if name else None,
        asked=asked,
        capacity=capacity,
        allocated=allocated,
        unallocated=minus(capacity, allocated),
    )


def plain(before: str, behind: str) -> OomText | None:
    """Words of a driver or a framework without any figure."""
    del before
    lowered = behind[:40].lower()
    known = ("cuda", "hip", "npu", "xpu", "mps")
    backend = next((name for name in known if lowered.startswith(name)), None)
    if backend is None:
        backend = "vulkan" if "device_memory" in lowered or "outofdevice" in lowered else "unknown"
    return OomText(wording="driver", backend=backend)


# --------------------------------------------------------------------- PyTorch
#
# Up to 1.3 the text says "cached", which is what was reserved and not allocated; from 1.4 to 2.0 it
# says "reserved in total", of which the allocated is a part; since 2.1 both parts are told.

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


# --------------------------------------------------------------------- any text
#
# PyTorch's text changed with 1.4, 1.10, 2.1, 2.2 and 2.9, and each back end (HIP, NPU, XPU, MPS)
# has its own; vLLM, llama.cpp, XLA and TensorFlow print others. A text is found by what it asks for
# and read up to the next one. Nothing is inferred that it does not print, but for sums of its
# figures.

MAX_TEXT_BYTES = 2**26
"""Of a log that is searched."""

MAX_TEXTS = 100
"""Different texts of one log that are told; the first is the cause of most others."""

_MOST_READ = 2_000  # of one log, the same ones counted too
_NEXT_LINE = 250
_BEFORE, _BEHIND = 2_000, 4_000  # characters around the request that may belong to it

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]{0,20}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,500}(?:\x07|\x1b\\)?)"
)
"""Colours, movements of the cursor and titles of a terminal, which stand between figures too."""

_ASKED = re.compile(
    r"(?P<pytorch>Tried\s+to\s+allocate\s)"
    r"|(?P<vllm_kv>KV\s+cache\s+is\s+needed,\s+which\s+is\s+larger)"
    r"|(?P<vllm_start>Free\s+memory\s+on\s+device\s)"
    r"|(?P<ggml>\ballocating\s+[\d.,]+\s+MiB\s+on\s+device\b|failed\s+to\s+allocate\s+\S{1,40}"
    r"\s+buffer\s+of\s+size\s|failed\s+to\s+allocate\s+buffer,\s+size\s*=|memory\s+allocation\s+of"
    r"\s+size\s+\d+\s+failed)"
    r"|(?P<hbm>Ran\s+out\s+of\s+memory\s+in\s+memory\s+space\s)"
    r"|(?P<tensorflow>ran\s+out\s+of\s+memory\s+trying\s+to\s+allocate\s"
    r"|OOM\s+when\s+allocating\s+tensor)"
    r"|(?P<xla>Out\s+of\s+memory\s+(?:while\s+trying\s+to\s+allocate|allocating|trying\s+to"
    r"\s+allocate)\s|Attempting\s+to\s+(?:reserve|allocate)\s+[\d.]+\s*[KMGTB])"
    r"|(?P<headroom>\d\s{0,8}[KMG]i?B\s+asked\s+with\b)"
    r"|(?P<plain>(?:CUDA|HIP|NPU|XPU|MPS)\s+(?:backend\s+)?(?:error:\s+)?out\s+of\s+memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|hipErrorOutOfMemory|cudaErrorMemoryAllocation"
    r"|VK_ERROR_OUT_OF_DEVICE_MEMORY|ErrorOutOfDeviceMemory|RESOURCE_EXHAUSTED)",
    re.IGNORECASE,
)

_BLANKS = re.compile(r"\s{2,}|[^\S ]")
_NEEDLES = (
    *("tried to allocate ", "kv cache is needed, which", "free memory on device ", "mib on device"),
    *("failed to allocate ", "memory allocation of size ", "out of memory", "oom when allocating"),
    *("attempting to reserve ", "attempting to allocate ", "asked with", "_out_of_memory"),
    *("outofmemory", "errormemoryallocation", "out_of_device_memory", "outofdevicememory"),
    "resource_exhausted",
)
"""One of these, in small letters, is in all that _ASKED finds, near both of its ends."""
_NEAR = 80, 120
_MOST_PLACES = 4_000
"""Of one needle that are looked at: expressions cost a hundred times what needles do."""


def read_oom(text: str, *, units: UnitSystem = "binary") -> OutOfMemory | None:
    """Return the verdict on the first out-of-memory text in a log; None where there is none.

    Args:
        text: the message, or a log that holds it.
        units: how the verdict prints sizes.
    """
    found = next(_texts(text), None)
    return None if found is None else judge(found, units=units)


def read_oom_texts(text: str, *, units: UnitSystem = "binary") -> list[OutOfMemory]:
    """Return the verdicts on all different out-of-memory texts in a log, up to MAX_TEXTS."""
    found: dict[OomText, None] = {}
    for one in _texts(text):
        found[one] = None
        if len(found) == MAX_TEXTS:
            break
    return [judge(one, units=units) for one in found]


def read_oom_file(
    source: str, *, units: UnitSystem = "binary", stdin: BinaryIO | None = None
) -> list[OutOfMemory]:
    """Return the verdicts on all different out-of-memory texts of a file, or of stdin for `-`."""
    found = read_oom_texts(read_small(source, MAX_TEXT_BYTES, stdin), units=units)
    if not found:
        raise InputError(
            "no out-of-memory text is in it",
            hint="give the whole message, from 'out of memory' to its last figure",
            where=file_name(source),
        )
    return found


def _texts(text: str) -> Iterator[OomText]:
    """Yield what can be read; words without figures only where no figures stand beside them."""
    text = _BLANKS.sub(" ", _CONTROL.sub("", text))
    matches = list(islice(_asked(text), _MOST_READ))
    bare: OomText | None = None
    any_figures = False
    for number, match in enumerate(matches):
        kind = str(match.lastgroup)
        if kind == "ggml" and _told_again(matches[number : number + 2]):
            continue
        start = matches[number - 1].end() if number else 0
        end = matches[number + 1].start() if number + 1 < len(matches) else len(text)
        before = text[max(start, match.start() - _BEFORE) : match.start()]
        if number and matches[number - 1].lastgroup == "plain":  # "CUDA out of memory. Tried"
            before = text[max(0, matches[number - 1].start() - 1) : match.start()]
        if kind == "ggml":  # the lines before tell what was allocated already
            before = text[max(0, match.start() - _BEFORE) : match.start()]
        behind = text[match.start() : min(end, match.start() + _BEHIND)]
        read = _READERS[kind](_in_line(before), _in_line(behind))
        if read is None:
            continue
        if kind == "plain":
            bare = bare or read
            continue
        any_figures = True
        yield read
    if bare is not None and not any_figures:
        yield bare


def _asked(text: str) -> Iterator[re.Match[str]]:
    """Yield what _ASKED finds, where one of the needles is near."""
    small = text.lower()
    if len(small) != len(text):  # a letter that is two in small
        small = "".join(letter if len(letter.lower()) > 1 else letter.lower() for letter in text)
    places: list[int] = []
    for needle in _NEEDLES:
        at, left = small.find(needle), _MOST_PLACES
        while at >= 0 and left:
            places.append(at)
            at, left = small.find(needle, at + len(needle)), left - 1
    before, behind = _NEAR
    end = 0
    for place in sorted(places):
        for match in _ASKED.finditer(text, max(end, place - before), place + behind):
            end = match.end()
            yield match


def _in_line(text: str) -> str:
    """Return a text on one line; what would move a cursor is shown by its number."""
    return printable(" ".join(text.split()))


def _told_again(matches: list[re.Match[str]]) -> bool:
    """Whether the next line of llama.cpp tells the same failure, to the byte."""
    first, *rest = matches
    return any(
        second.lastgroup == "ggml"
        and second.start() - first.end() < _NEXT_LINE
        and first[0].startswith("allocating")
        and second[0].startswith("failed")
        for second in rest
    )


_READERS = {
    "pytorch": lambda before, behind: (mps if "MPS" in before else pytorch)(before, behind),
    "headroom": headroom,
    "vllm_kv": vllm_kv,
    "vllm_start": vllm_start,
    "ggml": ggml,
    "hbm": hbm,
    "tensorflow": tensorflow,
    "xla": xla,
    "plain": plain,
}
"""Reader of each kind of text: what stands before the request, and from it on."""
