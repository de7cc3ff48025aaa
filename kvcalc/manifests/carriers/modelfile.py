"""Ollama's Modelfile: FROM and PARAMETER."""

from __future__ import annotations

import re

from kvcalc.manifests.found import Attached, Invocation, Word
from kvcalc.manifests.launches import Place

__all__ = ["is_modelfile", "of_modelfile"]

_FROM = re.compile(r"^\s*FROM\s+(\S+)", re.IGNORECASE)
_OWN = re.compile(
    r"^[ \t]*(PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE|LICENSE)\s", re.IGNORECASE | re.MULTILINE
)


def is_modelfile(text: str) -> bool:
    """Whether a text is a Modelfile, not a Dockerfile."""
    return bool(_OWN.search(text)) and bool(re.search(r"(?im)^[ \t]*FROM[ \t]+\S", text))


def of_modelfile(text: str, place: Place) -> list[Invocation]:
    """Return the model that a Modelfile makes, as `ollama create` of it."""
    for number, row in enumerate(text.split("\n"), 1):
        if found := _FROM.match(row):
            words = ("ollama", "create", "model", "-f", "Modelfile")
            return [
                Invocation(
                    name=found[1],
                    carrier="Modelfile",
                    file=place.file,
                    line=number,
                    words=tuple(Word(word, number) for word in words),
                    attached={"Modelfile": Attached(place.file, 1, text)},
                    engine="ollama",
                )
            ]
    return []
