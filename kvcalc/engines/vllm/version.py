"""vLLM's releases: how a version is spelled, and which of its two engines it starts."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.releases import Releases

__all__ = ["LAST_V0", "NEWEST", "RELEASES", "Release", "release"]


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
RELEASES = Releases("vLLM", (0, 2, 0), NEWEST.number)
LAST_V0 = (0, 10)
"""The last line of releases that has V0."""
_FIRST_V1 = (0, 7)


@lru_cache(maxsize=256)  # every rule by release asks for its own
def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None, and for newer ones.

    `+v0` and `+v1` name the engine of a release that has both (0.7 to 0.10).

    Raises:
        UnknownReleaseError: no release, or one older than those that are known.
        UnsupportedError: an engine that the release has not.

    >>> str(release("v0.19.1")), str(release("0.9.2+V0"))
    ('0.19.1', '0.9.2+v0')
    """
    asked = RELEASES.read(text)
    engine = asked.local if asked.local in ("v0", "v1") else None
    found = Release(*asked.number, asked.patch_given, engine)
    if (found.engine == "v0" and found.line > LAST_V0) or (
        found.engine == "v1" and found.line < _FIRST_V1
    ):
        raise UnsupportedError(
            f"vLLM {found.major}.{found.minor} has no {found.engine.upper()} engine",
            hint="leave +v0 or +v1 out",
        )
    return found
