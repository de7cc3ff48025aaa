"""TensorRT-LLM's releases: the lines of its PyTorch backend, whose rules these are."""

from __future__ import annotations

from kvcalc.engines.releases import LATEST, Releases

__all__ = ["NEWEST", "RELEASES", "release"]

NEWEST = "1.2"
"""The line whose PyTorch backend was read."""
RELEASES = Releases("TensorRT-LLM", (0, 13, 0), (1, 3, 0), lines=True)


def release(text: str | None) -> str:
    """Return the release of that spelling; the line that was read for None, and for newer ones.

    Raises:
        UnknownReleaseError: no release, or one older than those that are known.

    >>> release("v1.1.0rc2")
    '1.1.0'
    """
    asked = RELEASES.read(text)
    if text is None or asked.newer or text.strip().lower() in LATEST:
        return NEWEST
    return RELEASES.spelled(asked.number if asked.patch_given else asked.number[:2])
