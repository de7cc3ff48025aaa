"""vLLM's releases: how a version is spelled, and which of its two engines it starts."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError, UnsupportedError

__all__ = ["LAST_V0", "NEWEST", "Release", "release"]


class Release(NamedTuple):
    """A release: 0.33.0."""

    major: int
    minor: int
    patch: int = 0
    patch_given: bool = True
    engine: str | None = None

    @property
    def number(self) -> tuple[int, int, int]:
        """What releases are compared by."""
        return self.major, self.minor, self.patch

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor alone."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (
            f"+{self.engine}" if self.engine else ""
        )


NEWEST = Release(0, 33, 0)
_OLDEST = (0, 2, 0)
LAST_V0 = (0, 10)
"""The last line of releases that has V0."""
_FIRST_V1 = (0, 7)

_VERSION = re.compile(
    r"v?(\d+)\.(\d+)(?:\.(\d+)(?:\.\d+)?)?(?:\.?(?:post|rc|dev)\d*)*(?:\+(?P<local>\S*))?",
    re.ASCII,
)


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None. 0.10.1.1 is a 0.10.1.

    `+v0` and `+v1` name the engine of a release that has both (0.7 to 0.10).

    Raises:
        UnsupportedError: no version number, one out of the known range, or an engine that the
            release has not.

    >>> str(release("v0.19.1")), str(release("0.9.2+V0"))
    ('0.19.1', '0.9.2+v0')
    """
    if text is None:
        return NEWEST
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None:
        raise UnsupportedError(
            f"{text!r:.40} is no vLLM version", hint=f"give one such as {NEWEST}"
        )
    local = match["local"]
    found = Release(
        int(match[1]),
        int(match[2]),
        int(match[3] or 0),
        match[3] is not None,
        local if local in ("v0", "v1") else None,
    )
    if found.number < _OLDEST or found.line > NEWEST.line:
        oldest = ".".join(map(str, _OLDEST))
        raise UnknownReleaseError(
            f"vLLM {found} is not known: {oldest} to {NEWEST} are",
            hint=f"give a version of that range, such as {NEWEST}",
        )
    if (found.engine == "v0" and found.line > LAST_V0) or (
        found.engine == "v1" and found.line < _FIRST_V1
    ):
        raise UnsupportedError(
            f"vLLM {found.major}.{found.minor} has no {found.engine.upper()} engine",
            hint="leave +v0 or +v1 out",
        )
    return found
