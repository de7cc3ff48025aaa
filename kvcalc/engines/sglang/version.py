"""SGLang's releases: which of them the rules here were read in, and what the older did otherwise.

Read in 0.5.10, 0.5.15 and 0.5.23; a release between two of them is taken to follow the later.
"""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.engines.releases import Releases

__all__ = ["NEWEST", "OLDEST", "RELEASES", "Release", "release"]


class Release(NamedTuple):
    """A release: 0.5.23."""

    major: int
    minor: int
    patch: int

    @property
    def charges_padding(self) -> bool:
        """Whether the budget pays for the padding slot of states."""
        return self > _MIDDLE

    @property
    def pads_table(self) -> bool:
        """Whether the request table has a row more than requests."""
        return self > OLDEST

    @property
    def many_four_bits(self) -> bool:
        """Whether it tells nvfp4 from fp4_mx_block16, and has mxfp8."""
        return self > _MIDDLE

    @property
    def has_cutlass(self) -> bool:
        """Whether it still has the cutlass_mla backend."""
        return self <= _MIDDLE

    @property
    def newest(self) -> bool:
        """Whether it is the newest release whose rules were read."""
        return self == NEWEST

    @property
    def first_read(self) -> bool:
        """Whether it is the oldest release whose rules were read."""
        return self == OLDEST

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


NEWEST = Release(0, 5, 23)
OLDEST = Release(0, 5, 10)
RELEASES = Releases("SGLang", (*OLDEST,), (*NEWEST,))

_MIDDLE = Release(0, 5, 15)
"""The release read between the two."""


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None, and for newer ones.

    Raises:
        UnknownReleaseError: no release, or one older than those that are known.

    >>> str(release("v0.5.18.post1"))
    '0.5.18'
    """
    return Release(*RELEASES.read(text).number)
