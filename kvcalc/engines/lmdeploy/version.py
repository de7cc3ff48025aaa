"""Which LMDeploy is meant, and what its releases do otherwise."""

from __future__ import annotations

import re
from typing import NamedTuple

from kvcalc.core.errors import UnknownReleaseError, UnsupportedError

__all__ = ["Release", "release"]

_NEWEST = (0, 18, 0)
_OLDEST_PYTORCH = (0, 16)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+|x))?(?:\.?(?:post|rc|dev)\d*)*", re.ASCII)


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
    """Return the release that is asked for; the newest known one where none is.

    Raises:
        UnsupportedError: no version, or one whose rules are not known.
    """
    if text is None:
        return Release(".".join(map(str, _NEWEST)), _NEWEST)
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None:
        raise UnsupportedError(f"{text!r:.40} is no LMDeploy version", hint="give one as 0.18.0")
    line = (int(match[1]), int(match[2]))
    if line > _NEWEST[:2] or (backend == "pytorch" and line < _OLDEST_PYTORCH):
        raise UnknownReleaseError(
            f"the {backend} engine of LMDeploy {text.strip()} is not modelled",
            hint="0.16 to 0.18 are; of TurboMind older ones too",
        )
    patch = match[3] or "0"
    return Release(text.strip(), (*line, 0 if patch == "x" else int(patch)))
