"""Releases of engines that a file itself installs: `pip install vllm==0.8.5`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvcalc.manifests.found import Word

__all__ = ["installed_by", "installed_in", "pinned"]

_PINNED = re.compile(
    r"[\"']?(vllm|sglang|lmdeploy|tensorrt[-_]llm)(?:\[[\w,. -]{0,100}\])?={2,3}"
    r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?(?:\.?(?:post|rc|dev)\d{1,9})*)[^,;\s]*",
    re.ASCII | re.IGNORECASE,
)
_INSTALLS = {"install", "--with", "--from", "add"}


def installed_by(words: Iterable[Word]) -> dict[str, str]:
    """Return the packages that a command pins -> their releases.

    >>> installed_by([Word(t) for t in ("uv", "pip", "install", "vllm[flashinfer]==0.9.2")])
    {'vllm': '0.9.2'}
    """
    texts = [word.text for word in words]
    return pinned(texts) if _INSTALLS.intersection(texts) else {}


def installed_in(text: str) -> dict[str, str]:
    """Return the packages that a script's text pins, read without following it (`RUN`)."""
    return pinned(text.split()) if "install" in text else {}


def pinned(texts: Iterable[str]) -> dict[str, str]:
    """Return the packages that requirements pin -> their releases."""
    found: dict[str, str] = {}
    for text in texts:
        match = _PINNED.fullmatch(text.strip("\"'"))
        if match is not None:
            found[match[1].lower().replace("_", "-")] = match[2]
    return found
