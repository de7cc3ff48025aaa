"""llama.cpp's builds: how one is spelled, and which rules it keeps its cache by.

The rules were measured with wheels of known dates (0.1.10 to 0.2.12 of `xllamacpp`) and with builds
b11434 and b11549. Between two measurements lies a stretch in which a rule changed; a build in such
a stretch is refused where the rule decides, as nobody measured on which side it is.
"""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError
from kvcalc.engines.releases import AHEAD, LATEST, newer

__all__ = ["NEWEST", "RELEASES", "Build", "Rules", "build", "rules_of"]


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
    """What differs by build; None where it changed somewhere about this one.

    Attributes:
        streams: sequences can have streams of their own; before, one pool served all.
        pad: cells are rounded up to a multiple of this, with flash attention.
        pad_plain: and without.
        pads_first: the whole context is rounded up before it is shared out as well.
        latent_v: a V of kv_lora_rank is kept beside an MLA latent.
        windows: sliding layers have a cache of their own size.
        window_pad: the cells of that cache are rounded up to this, whatever `pad` is.
        states: recurrent states are kept as they are now.
        auto_flash: flash attention is on unless it is switched off.
        server_slots: llama-server takes four slots that share one cache.
    """

    streams: bool | None
    pad: int | None
    pad_plain: int | None
    pads_first: bool
    latent_v: bool | None
    windows: bool | None
    window_pad: int | None
    states: bool
    auto_flash: bool | None
    server_slots: bool


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
    if AHEAD.fullmatch(asked):
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


_STREAMS = (5944, 6305)
_AUTO_FLASH = (6305, 6465)
_WINDOWS = (4880, 5670)
_NO_LATENT_V = (7850, 8170)
"""Last build without, and first with it; between the two nobody measured."""

_ROUNDED_LAST, _EXACT, _ROUNDED_AGAIN = 6760, 6907, 7100
"""Cells are rounded up to 256 (32 without flash attention) until about October 2025, then not at
all, and from November 2025 on (PR 17046) always to 256."""
_STATES_KNOWN = 6465


def rules_of(found: Build) -> Rules:
    """Return the rules of a build: llama_context, llama_kv_cache and create_memory of its day."""
    number = found.number
    latent = _since(number, *_NO_LATENT_V)
    again = number >= _ROUNDED_AGAIN
    return Rules(
        streams=_since(number, *_STREAMS),
        pad=_pad(number, 256),
        pad_plain=_pad(number, 32),
        pads_first=again,
        latent_v=None if latent is None else not latent,
        windows=_since(number, *_WINDOWS),
        window_pad=256 if again else None,
        states=number >= _STATES_KNOWN,
        auto_flash=_since(number, *_AUTO_FLASH),
        server_slots=again,
    )


def _since(number: int, last_without: int, first_with: int) -> bool | None:
    if number <= last_without:
        return False
    return True if number >= first_with else None


def _pad(number: int, before: int) -> int | None:
    if number <= _ROUNDED_LAST:
        return before
    if number >= _ROUNDED_AGAIN:
        return 256
    return 1 if number == _EXACT else None
