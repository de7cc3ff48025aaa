"""Which release printed a log that does not say so: what its lines look like, and where they stand.

The line of the source file that a message comes from moves with every release; the figures here
were read off public logs. They are a hint, and a prediction that rests on one says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.engines.refusals import by_code
from kvcalc.engines.vllm.version import NEWEST
from kvcalc.measure.logs.starts import Start

__all__ = ["OTHER_RELEASES", "Dated", "release_of"]


class Dated(NamedTuple):
    """A release, and how it is known.

    Attributes:
        version: as kvcalc's engines read it; None where nothing tells.
        source: `the log`, or the hint.
        told: the log says it itself.
    """

    version: str | None
    source: str
    told: bool


OTHER_RELEASES = (
    "0.9.2",
    "0.11.0",
    "0.12.0",
    "0.18.0",
    "0.20.0",
    "0.21.0",
    "0.24.0",
    "0.28.0",
    "0.33.0",
)
"""vLLM: releases on each side of every change of the lines and groups."""

_LINES = {
    "gpu_worker.py": (
        *((232, "0.9.2"), (298, "0.10.2"), (375, "0.13.0"), (440, "0.20.0"), (460, "0.21.0")),
        *((480, "0.22.0"), (508, "0.24.0"), (563, "0.27.0"), (642, "0.29.0")),
    ),
    "kv_cache_utils.py": (
        *((395, "0.7.0+v1"), (716, "0.9.2"), (864, "0.10.2"), (1087, "0.11.0"), (1291, "0.13.0")),
        *((1319, "0.19.0"), (1708, "0.20.1"), (1733, "0.22.0"), (2146, "0.24.0"), (2235, "0.27.0")),
    ),
}
"""Source file -> (line, release that printed it there)."""

_VLLM = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)\S*")
_OLDEST_BUILD, _NEWEST_BUILD = 4880, 99_999
"""Builds of llama.cpp whose number means something to its engine."""

_V0_MARKS = ("num_cpu_blocks", "initial_memory")
_SINGLE_LINE = "0.29.0"


def release_of(start: Start, facts: dict[str, object]) -> Dated:
    """Return the release that printed a start."""
    if start.engine == "llama.cpp":
        return _llamacpp(start)
    logged = start.version
    if start.engine == "vllm":
        return _vllm(start, facts, logged)
    return Dated(logged, "the log", told=True) if logged else Dated(None, "", told=False)


def _llamacpp(start: Start) -> Dated:
    number = start.build
    if number is not None and _OLDEST_BUILD <= number <= _NEWEST_BUILD:
        return Dated(f"b{number}", "the log", told=True)
    return Dated(None, "", told=False)


def _vllm(start: Start, facts: dict[str, object], logged: str | None) -> Dated:
    v0 = any(name in facts for name in _V0_MARKS)
    if (
        logged
        and (match := _VLLM.match(logged))
        and not match[1].startswith("0.1.")
        and match[1] != "0.1"
    ):
        both = match[1].startswith(("0.7", "0.8", "0.9", "0.10"))
        return Dated(match[1] + ("+v0" if v0 and both else ""), "the log", told=True)
    if v0:
        return _v0(facts)
    if start.one_line:
        return Dated(_SINGLE_LINE, "tokens and concurrency are in one line", told=False)
    for file in ("kv_cache_utils.py", "gpu_worker.py"):
        number = start.files.get(file)
        if number:
            line, release = min(_LINES[file], key=lambda pair: abs(pair[0] - number))
            return Dated(release, f"{file}:{number} is near {line} of {release}", told=False)
    refused = _by_refusal(start)
    if refused is not None:
        return refused
    if (
        "num_gpu_blocks" in facts
        and "kv_cache_tokens" not in facts
        and "available_kv_cache" not in facts
    ):
        return Dated("0.7.0+v1", "blocks are logged, and no tokens", told=False)
    if "too_long_v0" in start.flags:
        return Dated("0.5.4", "the refusal of V0", told=False)
    return Dated(None, "", told=False)


def _by_refusal(start: Start) -> Dated | None:
    """Return the last release that refuses what the start was refused for; None for all do."""
    code = start.refused[0] if start.refused is not None else ""
    found = by_code("vllm").get(code)
    if not found:
        return None
    first, last = found[0].since, found[-1].until
    told = f"{code} is refused from {first} to {last or 'the newest'}"
    return Dated(last or str(NEWEST), told, told=False)


def _v0(facts: dict[str, object]) -> Dated:
    if "initial_memory" in facts:
        return Dated("0.6.4", "the line of the memory profile", told=False)
    if "activation_memory" in facts:
        return Dated("0.8.5+v0", "the line of the memory profile", told=False)
    return Dated("0.5.4", "GPU and CPU blocks in one line", told=False)
