"""What came out of variables is told by their names: nobody knows which of them hold secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from kvcalc.core.checks import Check
from kvcalc.manifests.found import Server

__all__ = ["hide"]


def hide(server: Server | None) -> Callable[[Check], Check]:
    """Return what puts variables' names into a result in place of texts that they hold."""
    texts = dict(_texts(server)) if server is not None else {}
    if not texts:
        return lambda check: check
    longest_first = sorted(texts, key=len, reverse=True)
    words = "|".join(re.escape(text) for text in longest_first)
    held = re.compile(rf"(?<!\w)(?:{words})(?!\w)")

    def told(text: str) -> str:
        return held.sub(lambda match: texts[match[0]], text)

    def hidden(check: Check) -> Check:
        return msgspec.structs.replace(
            check, message=told(check.message), detail=told(check.detail), hint=told(check.hint)
        )

    return hidden


def _texts(server: Server) -> Iterator[tuple[str, str]]:
    """Yield each text that a variable held, and how it is told."""
    for setting in (server.model, *server.settings):
        if setting is not None and setting.variables and isinstance(setting.value, str):
            yield setting.value, str(setting.shown)
    gpu = server.invocation.gpu
    for word in (gpu.product, *gpu.choices):
        if word is not None and word.variables and word.text:
            yield word.text, word.shown
