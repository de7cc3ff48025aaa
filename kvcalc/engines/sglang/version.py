"""SGLang's releases: which of them the rules here were read in."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError

__all__ = ["NEWEST", "Release", "release"]


class Release(NamedTuple):
    """A release: 0.5.23."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


NEWEST = Release(0, 5, 23)
OLDEST = Release(0, 5, 0)

_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.?(?:post|rc|dev)\d*)*(?:\+\S*)?", re.ASCII)


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None.

    Raises:
        UnsupportedError: no version number, or one out of the known range.

    >>> str(release("v0.5.18.post1"))
    '0.5.18'
    """
    if text is None:
        return NEWEST
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None:
        raise UnsupportedError(
            f"{text!r:.40} is no SGLang version", hint=f"give one such as {NEWEST}"
        )
    found = Release(int(match[1]), int(match[2]), int(match[3]))
    if not OLDEST <= found <= NEWEST:
        raise UnsupportedError(
            f"SGLang {found} is not known: {OLDEST} to {NEWEST} are",
            hint=f"give a version of that range, such as {NEWEST}",
        )
    return found
