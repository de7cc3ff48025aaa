"""llama.cpp's builds: how one is spelled, and which rules it keeps its cache by.

The rules were measured with wheels of known dates (0.1.10 to 0.2.12 of `xllamacpp`) and with builds
b11434 and b11549. Between two measurements lies a stretch in which a rule changed; a build in such
a stretch is planned by the rule that takes more, and what the other gives is said beside it.
"""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError
from kvcalc.engines.releases import AHEAD, LATEST, newer

__all__ = [
    "NEWEST",
    "RELEASES",
    "Build",
    "Change",
    "Rules",
    "build",
    "checkpoints_by_default",
    "open_changes",
    "rules_of",
]


class Build(NamedTuple):
    """A build: its number, or the day it was made where only that was told.

    Attributes:
        number: counts commits; from a day it is read off the table, so about right.
        text: as it is told to readers.
    """

    number: int
    text: str


NEWEST = Build(11549, "b11549")

_OLDEST = 4880
_DAYS = (
    ("2025-03-14", 4880),
    ("2025-06-15", 5670),
    ("2025-07-20", 5944),
    ("2025-08-28", 6305),
    ("2025-09-13", 6465),
    ("2025-10-14", 6760),
    ("2025-11-01", 6907),
    ("2025-11-19", 7100),
    ("2026-01-27", 7850),
    ("2026-02-27", 8170),
    ("2026-07-28", 10107),
    ("2026-08-21", 10488),
    ("2026-10-31", 11549),
)
"""Day -> about the build of that day. The first and the last of each pair below are days on which
the rules were measured."""

_NUMBER = re.compile(r"b?(\d{4,9})", re.ASCII)
_DAY = re.compile(r"20\d\d-[01]\d-[0-3]\d", re.ASCII)


class Rules(NamedTuple):
    """What differs by build.

    Attributes:
        streams: sequences can have streams of their own; before, one pool served all.
        pad: cells are rounded up to a multiple of this, with flash attention.
        pad_plain: and without.
        pads_first: the whole context is rounded up before it is shared out as well.
        latent_v: a V of kv_lora_rank is kept beside an MLA latent.
        windows: sliding layers have a cache of their own size.
        window_pad: the cells of that cache are rounded up to this, whatever `pad` is; None where it
            is as `pad`.
        states: recurrent states are kept as they are now.
        auto_flash: flash attention is on unless it is switched off.
        server_slots: llama-server takes four slots that share one cache where nobody says.
        one_is_four: and where one slot is asked for, without a draft or a pool that is shared.
        fits: fit runs unless it is switched off.
    """

    streams: bool
    pad: int
    pad_plain: int
    pads_first: bool
    latent_v: bool
    windows: bool
    window_pad: int | None
    states: bool
    auto_flash: bool
    server_slots: bool
    one_is_four: bool
    fits: bool


def build(text: str | None) -> Build:
    """Return the build of that spelling (`b11434`, `11434`, `2025-11-19`).

    The newest known one for None, and for newer ones.

    Raises:
        UnknownReleaseError: no build, or one older than those that are known.

    >>> build("b11434").number, build("2025-11-19").number
    (11434, 7100)
    """
    found = _read(text)
    return found if found.number <= NEWEST.number else NEWEST


def _read(text: str | None) -> Build:
    """Return the build of that spelling, with a number above the newest's where it is newer."""
    asked = "" if text is None else text.strip().lower()
    if text is None or asked in LATEST:
        return NEWEST
    if re.fullmatch(AHEAD, asked):
        return Build(NEWEST.number + 1, asked)
    if _DAY.fullmatch(asked):
        found = Build(_by_day(asked), asked)
    elif match := _NUMBER.fullmatch(asked):
        found = Build(int(match[1]), f"b{int(match[1])}")
    else:
        raise UnknownReleaseError(
            f"{asked!r:.40} is no llama.cpp build",
            hint=f"give its number or day, such as {NEWEST.text} or 2025-11-19",
        )
    if found.number < _OLDEST:
        raise UnknownReleaseError(
            f"llama.cpp {found.text} is not known: b{_OLDEST} (2025-03-14) to {NEWEST.text} are",
            hint=f"give a build of that range, such as {NEWEST.text}",
        )
    return found


class _Builds:
    """The builds whose rules are known, as releases.Releases has those of other engines."""

    @staticmethod
    def warning(text: str | None) -> str:
        """Say that a build is newer than those whose rules are known; "" where it is not.

        Raises:
            UnknownReleaseError: no build, or one older than those that are known.
        """
        found = _read(text)
        return newer("llama.cpp", found.text, NEWEST.text) if found.number > NEWEST.number else ""


RELEASES = _Builds()


def _by_day(day: str) -> int:
    """Return about the build of a day: in proportion between the days of the table."""
    asked = _ordinal(day)
    days = [(_ordinal(known), number) for known, number in _DAYS]
    for (first, low), (last, high) in pairwise(days):
        if first <= asked <= last:
            return low + (high - low) * (asked - first) // (last - first)
    return 0 if asked < days[0][0] else NEWEST.number + 1


def _ordinal(day: str) -> int:
    try:
        return date.fromisoformat(day).toordinal()
    except ValueError:
        raise UnknownReleaseError(f"{day} is no day", hint="give one such as 2025-11-19") from None


class Change(NamedTuple):
    """A rule that changed between two builds that are known.

    Attributes:
        before, after: the last build that is known without, and the first with it.
        what: what changed, as a clause.
        later: of a build between the two the newer rule is taken, which takes no less memory.
    """

    before: int
    after: int
    what: str
    later: bool = True


_CHANGES = {
    "windows": Change(4880, 5670, "sliding layers got caches of their own", later=False),
    "streams": Change(5944, 6305, "sequences got streams of their own"),
    "auto_flash": Change(6305, 6465, "flash attention became the default"),
    "exact": Change(6760, 6907, "cells were no longer rounded up", later=False),
    "rounded": Change(6907, 7100, "cells were rounded up to 256 again"),
    "slots": Change(6907, 7079, "llama-server took four slots where one is asked for or none"),
    "auto_slots": Change(7342, 7430, "one slot that is asked for became one slot", later=False),
    "fit": Change(7342, 7430, "fit became the default", later=False),
    "latents": Change(7850, 8170, "the V beside MLA latents went away", later=False),
}
"""Measured with wheels, or read off logs (n_parallel = 4 at b7079 and b7342; pull requests 16653,
16736, 17046 and 17997 of llama.cpp)."""

_STATES_KNOWN = 6465


def rules_of(found: Build, flipped: str = "") -> Rules:
    """Return the rules of a build: llama_context, llama_kv_cache and create_memory of its day.

    Args:
        found: the build.
        flipped: a change that is taken the other way, where the build lies between two known ones.
    """

    def since(name: str) -> bool:
        change = _CHANGES[name]
        if change.before < found.number < change.after:
            return change.later is not (name == flipped)
        return found.number >= change.after

    again = since("rounded")
    exact = since("exact") and not again
    return Rules(
        streams=since("streams"),
        pad=1 if exact else 256,
        pad_plain=256 if again else 1 if exact else 32,
        pads_first=again,
        latent_v=not since("latents"),
        windows=since("windows"),
        window_pad=256 if again else None,
        states=found.number >= _STATES_KNOWN,
        auto_flash=since("auto_flash"),
        server_slots=since("slots"),
        one_is_four=since("slots") and not since("auto_slots"),
        fits=since("fit"),
    )


def open_changes(found: Build) -> dict[str, Change]:
    """Return the changes of which nobody knows on which side of them a build is, by name."""
    return {
        name: change
        for name, change in _CHANGES.items()
        if change.before < found.number < change.after
    }


_CHECKPOINTS = ((6140, 0), (6700, 3), (7950, 8))
"""First build that has more -> checkpoints a slot before it; 32 now. They came in August 2025 (pull
requests 15293, 16453), and nobody looked up in which build of February 2026 8 became 32."""

_MOST_CHECKPOINTS = 32


def checkpoints_by_default(build: int) -> int:
    """Return how many checkpoints a slot keeps where nobody says."""
    return next((count for first, count in _CHECKPOINTS if build < first), _MOST_CHECKPOINTS)
