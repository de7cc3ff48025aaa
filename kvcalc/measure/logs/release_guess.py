"""Which release printed a log that does not say so.

The line of the source file that a message comes from moves with nearly every release. The table
(vllm_lines.tsv, made by tests/tools/vllm_source_lines.py from the releases' sources) has those of
the start-up lines: a release that prints each of a log's lines where the log says so is likely its
own. A fork may move some, so that the release with the most is taken; a prediction that rests on
it says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from kvcalc.core.tables import read_table
from kvcalc.engines.refusals import by_code
from kvcalc.engines.vllm.version import NEWEST
from kvcalc.measure.logs.starts import Start

__all__ = ["OTHER_RELEASES", "Dated", "no_older", "release_of"]


class Dated(NamedTuple):
    """A release, and how it is known.

    Attributes:
        version: as kvcalc's engines read it; None where nothing tells.
        source: `the log`, or the hint.
        told: the log says it itself, or several of its source lines stand where this release (and
            none of other rules) has them.
        others: vLLM's releases, one for each set of rules, that its lines do not rule out.
    """

    version: str | None
    source: str
    told: bool
    others: tuple[str, ...] = ()


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

_SURE = 2
"""Source lines that date a log as surely as its own word: one may stand still over releases."""
_NEAR = 12
"""Source lines between two builds of neighbouring releases, at most."""

_VLLM = re.compile(r"v?(\d+\.\d+(?:\.\d+)?)\S*")
_OLDEST_BUILD, _NEWEST_BUILD = 4880, 99_999
"""Builds of llama.cpp whose number means something to its engine."""

_SINGLE_LINE = "0.28.0"
"""The first that prints tokens and concurrency in one line (kv_cache_utils.py)."""


def release_of(start: Start, facts: Mapping[str, object]) -> Dated:
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


def _vllm(start: Start, facts: Mapping[str, object], logged: str | None) -> Dated:
    v0 = "v0" in start.flags or "initial_memory" in facts
    if (
        logged
        and (match := _VLLM.match(logged))
        and not match[1].startswith("0.1.")
        and match[1] != "0.1"
    ):
        both = match[1].startswith(("0.7", "0.8", "0.9", "0.10"))
        return Dated(match[1] + ("+v0" if v0 and both else ""), "the log", told=True)
    found = _by_lines(start, v0=v0)
    if found is not None:
        return found
    if v0:
        return _v0(facts)
    worded = _by_words(start)
    if worded is not None:
        return worded
    refused = _by_refusal(start)
    if refused is not None:
        return refused
    return _by_figures(start, facts)


def _by_figures(start: Start, facts: Mapping[str, object]) -> Dated:
    if (
        "num_gpu_blocks" in facts
        and "kv_cache_tokens" not in facts
        and "available_kv_cache" not in facts
    ):
        return Dated("0.7.0+v1", "blocks are logged, and no tokens", told=False)
    if "too_long_v0" in start.flags:
        return Dated("0.5.4", "the refusal of V0", told=False)
    return Dated(None, "", told=False, others=OTHER_RELEASES)


def _by_refusal(start: Start) -> Dated | None:
    """Return the last release that refuses what the start was refused for; None for all do."""
    code = start.refused[0] if start.refused is not None else ""
    found = by_code("vllm").get(code)
    if not found:
        return None
    first, last = found[0].since, found[-1].until
    told = f"{code} is refused from {first} to {last or 'the newest'}"
    return Dated(last or str(NEWEST), told, told=False)


def _v0(facts: Mapping[str, object]) -> Dated:
    if "initial_memory" in facts:
        return Dated("0.6.4", "the line of the memory profile", told=False)
    if "activation_memory" in facts:
        return Dated("0.8.5+v0", "the line of the memory profile", told=False)
    return Dated("0.5.4", "GPU and CPU blocks in one line", told=False)


# ------------------------------------------------------------------- source lines


@cache
def _table() -> dict[str, tuple[tuple[str, dict[int, tuple[str, ...]]], ...]]:
    """Return source file -> texts, each with line -> the releases that print it there."""
    found: dict[str, list[tuple[str, dict[int, tuple[str, ...]]]]] = {}
    for file, message, told in read_table("kvcalc.measure.logs", "vllm_lines.tsv")[1:]:
        lines = {}
        for entry in told.split(";"):
            number, _, releases = entry.partition("=")
            lines[int(number)] = tuple(releases.split(","))
        found.setdefault(file, []).append((message, lines))
    return {file: tuple(of) for file, of in found.items()}


def _seen(start: Start) -> Iterator[tuple[str, dict[int, tuple[str, ...]]]]:
    """Yield each source line of a start that the table knows: `file:number`, and where it was."""
    for (file, number), text in start.sources.items():
        for message, lines in _table().get(file, ()):
            if message in text:
                yield f"{file}:{number}", lines


def _by_lines(start: Start, *, v0: bool) -> Dated | None:
    """Return the release that has the most source lines where a start's stand."""
    votes: Counter[str] = Counter()
    exact, near = [], []
    for place, lines in _seen(start):
        number = int(place.rpartition(":")[2])
        if number in lines:
            votes.update(dict.fromkeys(lines[number], 1))
            exact.append(place)
        else:
            near.append((place, number, lines))
    if votes:
        most = max(votes.values())
        best = [release for release in votes if votes[release] == most]
        release, newest = min(best, key=_order), max(best, key=_order)
        told = most >= _SURE and most == len(exact)
        shown = ", ".join(exact[:3])
        span = release if len(best) == 1 else f"{release} to {newest}"
        source = f"{shown} {'is' if len(exact) == 1 else 'are'} {span}'s"
        others = () if told else _between(release, newest)
        return Dated(_spelled(release, v0=v0), source, told=told, others=others)
    if not near:
        return None
    place, number, lines = near[0]
    line = min(lines, key=lambda one: (abs(one - number), one))
    release = lines[line][-1]
    if start.one_line:
        release = max(release, _SINGLE_LINE, key=_order)
    away = "near" if abs(line - number) <= _NEAR else "nearest to"
    source = f"{place} is {away} {line} of {release}"
    return Dated(_spelled(release, v0=v0), source, told=False, others=OTHER_RELEASES)


def _by_words(start: Start) -> Dated | None:
    """Return the newest release that words things as a start does; None where no word tells."""
    since = [flag[6:] for flag in start.flags if flag.startswith("since ")]
    until = [flag[6:] for flag in start.flags if flag.startswith("until ")]
    first, last = max(since, key=_order, default=""), min(until, key=_order, default="")
    if not first and not last:
        return None
    if last and (not first or _order(first) <= _order(last)):
        told = f"its wording is that of {first or 'older releases'} to {last}"
        return Dated(_spelled(last, v0=False), told, told=False, others=_between(first, last))
    told = f"its wording is that of {first} and newer"
    return Dated(OTHER_RELEASES[-1], told, told=False, others=_between(first, ""))


def _between(first: str, last: str) -> tuple[str, ...]:
    """Return the releases of OTHER_RELEASES that are no older than one and no newer than another.

    The next older one stands for a release between two of them.
    """
    low = _order(first) if first else ()
    older = [one for one in OTHER_RELEASES if _order(one) <= low]
    return tuple(
        one
        for one in OTHER_RELEASES
        if (_order(one) >= low or one == older[-1]) and (not last or _order(one) <= _order(last))
    )


def no_older(version: str | None, than: str) -> bool:
    """Whether a release is as new as another; the newest, where none is known, is."""
    return version is None or _order(version.partition("+")[0]) >= _order(than)


def _order(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


def _spelled(release: str, *, v0: bool) -> str:
    """Return a release with the engine that it started, where it had two."""
    if v0:
        both = (0, 7) <= _order(release)[:2] <= (0, 10)
        return f"{release}+v0" if both else release
    return f"{release}+v1" if (0, 7) <= _order(release)[:2] < (0, 8) else release
