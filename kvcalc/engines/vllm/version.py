"""vLLM's releases and the rules of each that change a printed number."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvcalc.core.errors import UnsupportedError

if TYPE_CHECKING:
    from kvcalc.engines.vllm.settings import Settings

__all__ = ["NEWEST", "Release", "Rules", "release", "rules_of"]


class Release(NamedTuple):
    """A release: 0.33.0."""

    major: int
    minor: int
    patch: int = 0

    @property
    def line(self) -> tuple[int, int]:
        """Major and minor alone."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


NEWEST = Release(0, 33, 0)
OLDEST = Release(0, 2, 0)

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:post|rc|dev)\d*)?(?:\+\S*)?", re.ASCII)


def release(text: str | None) -> Release:
    """Return the release of that spelling; the newest known one for None.

    Raises:
        UnsupportedError: no version number, or one out of the known range.

    >>> release("v0.19.1")
    Release(major=0, minor=19, patch=1)
    """
    if text is None:
        return NEWEST
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None:
        raise UnsupportedError(
            f"{text!r:.40} is no vLLM version", hint=f"give one such as {NEWEST}"
        )
    found = Release(int(match[1]), int(match[2]), int(match[3] or 0))
    if found < OLDEST or found.line > NEWEST.line:
        raise UnsupportedError(
            f"vLLM {found} is not known: {OLDEST} to {NEWEST} are",
            hint=f"give a version of that range, such as {NEWEST}",
        )
    return found


class Rules(NamedTuple):
    """What differs between releases.

    Attributes:
        report: how blocks become the logged tokens and concurrency (core.plan.Report).
        spares_null_block: the start-up check leaves the null block out.
        async_scheduling: on unless it is turned off.
        caches_hybrid_prefixes: hybrids cache prefixes unless told otherwise.
        mla_hybrid_alignment: blocks of MLA hybrids are multiples of 128 tokens.
        one_capacity_line: tokens and concurrency are logged in one line.
        mamba2_checkpoint, gdn_checkpoint: such layers keep a block for a checkpoint in a prefill.
    """

    report: Literal["concurrency", "even_groups", "tokens"] = "concurrency"
    spares_null_block: bool = True
    async_scheduling: bool = True
    caches_hybrid_prefixes: bool = True
    mla_hybrid_alignment: bool = True
    mamba2_checkpoint: bool = True
    gdn_checkpoint: bool = True
    one_capacity_line: bool = True

    def batches(self, pp: int, overlap: bool) -> int:
        """Steps in flight at once: config/vllm.py, max_concurrent_batches."""
        return pp + 1 if overlap else pp

    def flight_told(self, settings: Settings) -> str:
        """Say where the tokens in flight come from."""
        steps = settings.in_flight_tokens // settings.max_num_batched_tokens
        if steps == 1:
            return "max_num_batched_tokens"
        return f"{steps} steps of max_num_batched_tokens"

    def group_size(self, counts: list[int], windows: list[bool]) -> int:
        """Layers a group, where layers of several kinds share block ids."""
        del windows
        least, most = min(counts), max(counts)
        return most if most < least * 1.5 else least


_NEWEST_RULES = Rules()


def rules_of(wanted: Release) -> Rules:
    """Return the rules of a release."""
    del wanted
    return _NEWEST_RULES
