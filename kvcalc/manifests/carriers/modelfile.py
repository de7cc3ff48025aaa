"""Ollama's Modelfile: FROM and PARAMETER."""

from __future__ import annotations

import re

from kvcalc.manifests.found import Invocation, Word
from kvcalc.manifests.launches import Place

__all__ = ["is_modelfile", "of_modelfile"]

_FROM = re.compile(r"^\s*FROM\s+(\S+)", re.IGNORECASE)
_PARAMETER = re.compile(r"^\s*PARAMETER\s+(\w+)\s+(.+?)\s*$", re.IGNORECASE)
_OWN = re.compile(r"^\s*(PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE|LICENSE)\s", re.I | re.M)


def is_modelfile(text: str) -> bool:
    """Whether a text is a Modelfile, not a Dockerfile."""
    return bool(_OWN.search(text)) and bool(re.search(r"(?im)^\s*FROM\s+\S", text))


def of_modelfile(text: str, place: Place) -> list[Invocation]:
    """Return the model that a Modelfile makes, as `ollama create` of it with its parameters."""
    words: list[Word] = []
    parameters: list[Word] = []
    line = 1
    for number, row in enumerate(text.split("\n"), 1):
        if found := _FROM.match(row):
            line = number
            words = [Word("ollama", number), Word("create", number), Word(found[1], number)]
        elif found := _PARAMETER.match(row):
            parameters += [Word(f"--{found[1]}", number), Word(found[2].strip("\"'"), number)]
    if not words:
        return []
    return [
        Invocation(
            name=words[-1].text,
            carrier="Modelfile",
            file=place.file,
            line=line,
            words=(*words, *parameters),
            engine="ollama",
        )
    ]
