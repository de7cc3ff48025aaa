"""What becomes of an option: small pieces that each engine's table is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kvcalc.core.errors import nearest
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.reading import Kind, Reading

__all__ = [
    "Parse",
    "Rule",
    "each",
    "many",
    "model",
    "number",
    "one_of",
    "same",
    "switch",
    "text",
]

Rule = Callable[[Reading, Given], None]
Parse = Callable[[str], int | float]
_FEW = 3  # words that a message lists before it looks for the nearest


def number(
    name: str, kind: Kind, parse: Parse, low: float | None = None, high: float | None = None
) -> Rule:
    """Return the rule of a number between limits."""

    def rule(reading: Reading, given: Given) -> None:
        reading.number(name, kind, given, parse, low, high)

    return rule


def text(name: str, kind: Kind, spellings: Mapping[str, str] | None = None) -> Rule:
    """Return the rule of a text; `spellings` gives kvcalc's word for the engine's."""

    def rule(reading: Reading, given: Given) -> None:
        word = reading.text(name, kind, given)
        if spellings is not None and word is not None and word in spellings:
            reading.put(name, spellings[word], kind, given.written, given.word)

    return rule


def one_of(
    name: str, kind: Kind, spellings: Mapping[str, str], meant: Mapping[str, str] | None = None
) -> Rule:
    """Return the rule of a text that is one of some; another is told and left out.

    Args:
        name: of the setting.
        kind: of the setting.
        spellings: the engine's words -> kvcalc's.
        meant: what people write instead -> what to write.
    """

    def rule(reading: Reading, given: Given) -> None:
        word = reading.text(name, kind, given)
        if word is None:
            return
        if word in spellings:
            reading.put(name, spellings[word], kind, given.written, given.word)
        else:
            del reading.settings[name]
            reading.bad(given.written, given.word, f"write {_instead(word, spellings, meant)}")

    return rule


def _instead(word: str, known: Iterable[str], meant: Mapping[str, str] | None) -> str:
    """Return what to write for a word that is not known."""
    words = list(known)
    if len(words) <= _FEW:
        return " or ".join(words)
    near = (meant or {}).get(word.lower()) or next(iter(nearest(word, words, 1)), "")
    return near or f"one of {', '.join(words)}"


def same(words: Iterable[str]) -> dict[str, str]:
    """Return words that are called the same here: each -> itself."""
    return {word: word for word in words}


def switch(name: str, kind: Kind, *, inverted: bool = False) -> Rule:
    """Return the rule of a switch; an inverted one puts off what it is named after."""

    def rule(reading: Reading, given: Given) -> None:
        reading.put(name, given.on is not inverted, kind, given.written, given.word)

    return rule


def many(name: str, kind: Kind) -> Rule:
    """Return the rule of several values, which become one text."""

    def rule(reading: Reading, given: Given) -> None:
        if not any(word.unresolved for word in given.words):
            joined = ",".join(word.text.strip() for word in given.words)
            reading.put(name, joined, kind, given.written, given.word)

    return rule


def model(reading: Reading, given: Given) -> None:
    """Set the model."""
    reading.named(given.written, given.word)


def each(names: Iterable[str], make: Callable[[str], Rule]) -> dict[str, Rule]:
    """Return the rule that `make` makes of each name."""
    return {name: make(name) for name in names}
