"""Markdown: what stands between its fences, each block as its own language says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Block", "blocks"]

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([\w+.-]*)[^\n]*$", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*[$#] (?=\S)", re.MULTILINE)
_MOST = 2_000


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        language: as its fence says; "" without.
        text: of it, indented as the fence is no longer.
        line: where it begins.
    """

    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown text."""
    at, row, counted = 0, 1, 0
    for _ in range(_MOST):
        opening = _FENCE.search(text, at)
        if opening is None:
            return
        row += text.count("\n", counted, opening.start())
        counted = opening.start()
        start = opening.end() + 1
        end, after = len(text), len(text)
        for closing in _FENCE.finditer(text, start):
            if closing[1].startswith(opening[1]) and not closing[2]:
                end, after = closing.start(), closing.end()
                break
        inside = text[start:end]
        indent = re.match(r"[ \t]*", text[opening.start() : opening.end()])
        if indent is not None and indent[0]:
            inside = re.sub(f"(?m)^{indent[0]}", "", inside)
        language = opening[2].lower()
        if language in ("console", "shell-session", "terminal") or (
            language in ("", "bash", "sh", "shell") and _PROMPT.match(inside)
        ):
            inside = re.sub(r"(?m)^[ \t]*\$ ", "", inside)
        yield Block(language, inside, row + 1)
        at = after
