"""Which LMDeploy is meant, and what its releases do otherwise."""

from __future__ import annotations

from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError
from kvcalc.engines.releases import Releases

__all__ = ["RELEASES", "Release", "release"]

_OLDEST_PYTORCH = (0, 16, 0)
_ONE_PYTORCH = "0.16 to 0.18 are; of TurboMind older ones too"
RELEASES = Releases("LMDeploy", (0, 0, 0), (0, 18, 0))


class Release(NamedTuple):
    """A release of LMDeploy: as it was named, and its number."""

    text: str
    number: tuple[int, int, int]

    @property
    def shortens_sessions(self) -> bool:
        """Whether TurboMind lowers session_len to what its blocks hold.

        To 0.14 it does (turbomind/engine/engine.cc, "truncated ... due to limited KV cache
        memory"; LlamaBatch.cc before). From 0.15 on a request that finds no room fails by itself
        (engine.cc, FailStalledHeadOfLine).
        """
        return self.number < (0, 15, 0)

    @property
    def prefers_bfloat16(self) -> bool:
        """Whether TurboMind takes bfloat16 for a dtype that it does not run, not float16."""
        return self.number >= (0, 10, 1)


def release(text: str | None, backend: str) -> Release:
    """Return the release that is asked for; the newest known one where none is, and for newer ones.

    Raises:
        UnknownReleaseError: no release, or one whose rules are not known.
    """
    asked = RELEASES.read(text)
    if backend == "pytorch" and asked.number < _OLDEST_PYTORCH:
        raise UnknownReleaseError(
            f"the {backend} engine of LMDeploy {RELEASES.spelled(asked.number)} is not modelled",
            hint=_ONE_PYTORCH,
        )
    return Release(RELEASES.spelled(asked.number), asked.number)
