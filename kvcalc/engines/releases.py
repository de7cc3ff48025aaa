"""Releases of engines: how one is spelled, and what is made of one whose rules are not known.

A release newer than the newest known is counted with the newest known rules, and a warning goes
with the figures; an older one, or none at all, is refused as not known.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError, printable

__all__ = ["AHEAD", "LATEST", "Asked", "Releases", "newer"]

_VERSION = (  # compiled where a release is asked for
    r"(?a)v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}|x)(?:\.\d{1,9})?)?(?:[.-]?(?:post|rc|dev|a|b)\d*)*"
    r"(?:[+_-](?P<local>\S*))?"
)
AHEAD = r"(?a)(?:nightly|main|master|head|edge|dev|devel|preview)(?:[-_.]\S*)?"
"""Words for what is newer than every release."""
LATEST = ("latest", "stable")
"""Words for the newest release, whichever that is by now."""

Number = tuple[int, int, int]


class Asked(NamedTuple):
    """A release that was asked for.

    Attributes:
        number: what releases are compared by; the newest known one's where `newer`.
        patch_given: the spelling has a third part.
        local: what stands behind a `+`.
        newer: it is newer than every release whose rules are known.
    """

    number: Number
    patch_given: bool = True
    local: str = ""
    newer: bool = False


class Releases(NamedTuple):
    """The releases of an engine whose rules are known.

    Attributes:
        product: what the engine is called.
        oldest, newest: the first and the last of them.
        lines: its rules are known by line: patches of the newest line are known, too.
        commits: spellings of the commit that was read, which is the newest.
        hint: what to do about an unknown one, beside naming a known one.
    """

    product: str
    oldest: Number
    newest: Number
    lines: bool = False
    commits: tuple[str, ...] = ()
    hint: str = ""

    def read(self, text: str | None) -> Asked:
        """Return the release of that spelling; the newest known one for None.

        Raises:
            UnknownReleaseError: no release, or one older than those that are known.

        >>> known = Releases("vLLM", (0, 2, 0), (0, 33, 0))
        >>> known.read("v0.19.1rc1").number, known.read("0.34.0rc1.dev2+g1").newer
        ((0, 19, 1), True)
        """
        asked = "" if text is None else text.strip().lower()
        if text is None or asked in LATEST or asked in self.commits:
            return Asked(self.newest)
        if re.fullmatch(AHEAD, asked):
            return Asked(self.newest, newer=True)
        match = re.fullmatch(_VERSION, asked)
        if match is None:
            raise UnknownReleaseError(
                f"{asked!r:.40} is no {self.product} release",
                hint=f"give one such as {self.spelled(self.newest)}",
            )
        patch = match[3] if match[3] not in (None, "x") else "0"
        number = (int(match[1]), int(match[2]), int(patch))
        if number[:2] < self.oldest[:2] or number < self.oldest:
            raise UnknownReleaseError(
                f"{self.product} {self.spelled(number)} is not known:"
                f" {self.spelled(self.oldest)} to {self.spelled(self.newest)} are",
                hint=self.hint
                or f"give a version of that range, such as {self.spelled(self.newest)}",
            )
        compared = 2 if self.lines else 3
        if number[:compared] > self.newest[:compared]:
            return Asked(self.newest, newer=True)
        return Asked(number, match[3] is not None, match["local"] or "")

    def warning(self, text: str | None) -> str:
        """Say that a release is newer than those whose rules are known; "" where it is not.

        Raises:
            UnknownReleaseError: no release, or one older than those that are known.
        """
        if not self.read(text).newer:
            return ""
        return newer(self.product, (text or "").strip(), self.spelled(self.newest))

    @staticmethod
    def spelled(number: tuple[int, ...]) -> str:
        """Return a release as it is written."""
        return ".".join(map(str, number))


def newer(product: str, asked: str, newest: str) -> str:
    """Say that a release is newer than those whose rules are known."""
    return (
        f"{product} {printable(asked)[:40]} is newer than {newest}, the newest whose rules are"
        f" known: counted with those of {newest}, without what changed since"
    )
