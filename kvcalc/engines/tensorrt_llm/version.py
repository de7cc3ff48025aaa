"""TensorRT-LLM's releases: the lines of its PyTorch backend, whose rules these are."""

from __future__ import annotations

import re

from kvcalc.core.errors import UnknownReleaseError, UnsupportedError

__all__ = ["NEWEST", "release"]

NEWEST = "1.2"
_OLDEST, _LAST = (0, 13), (1, 3)
_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.?(?:post|rc|dev)\d*)*(?:\+\S*)?", re.ASCII)


def release(text: str | None) -> str:
    """Return the release of that spelling; the newest known line for None.

    Raises:
        UnsupportedError: no version number, or one out of the known range.

    >>> release("v1.1.0rc2")
    '1.1.0'
    """
    if text is None:
        return NEWEST
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None:
        raise UnsupportedError(
            f"{text!r:.40} is no TensorRT-LLM version", hint=f"give one such as {NEWEST}"
        )
    line = int(match[1]), int(match[2])
    if not _OLDEST <= line <= _LAST:
        raise UnknownReleaseError(
            f"TensorRT-LLM {line[0]}.{line[1]} is not known:"
            f" {'.'.join(map(str, _OLDEST))} to {'.'.join(map(str, _LAST))} are",
            hint=f"give a version of that range, such as {NEWEST}",
        )
    return ".".join(part for part in match.groups() if part is not None)
