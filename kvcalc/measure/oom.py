"""Out-of-memory texts of every era: which figures they print, and what those are.

PyTorch's text changed with 1.4, 1.10, 2.1, 2.2 and 2.9, and each back end (HIP, NPU, XPU, MPS) has
its own; vLLM, llama.cpp, XLA and TensorFlow print others. A text is found by what it asks for and
read up to the next one. Nothing is inferred that it does not print, but for sums of its figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from kvcalc.core.errors import InputError, printable
from kvcalc.core.oom import judge
from kvcalc.core.oom_values import OomText, OutOfMemory
from kvcalc.core.units import UnitSystem
from kvcalc.measure.feed import file_name, read_small
from kvcalc.measure.oom_others import ggml, hbm, plain, tensorflow, vllm_kv, vllm_start, xla
from kvcalc.measure.oom_pytorch import headroom, mps, pytorch

__all__ = ["MAX_TEXTS", "MAX_TEXT_BYTES", "read_oom", "read_oom_file", "read_oom_texts"]

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
    """Return the verdicts on all different out-of-memory texts of a file, or of stdin for `-`.

    Raises:
        InputError: missing, unreadable, larger than 64 MiB, or without such a text.
    """
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
