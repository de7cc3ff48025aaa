"""What is known while a script is followed: values of variables, in pieces that know their source.

A value is kept in segments, so that a list of flags in one variable, split at its blanks, still
knows which flag holds a variable that nobody gave a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvcalc.manifests.found import Word

__all__ = ["Segment", "State", "Value", "as_value", "as_word", "flat", "unknown"]

_BLANK = "\ue002"  # a blank inside something unresolved, which does not split a word
_LINE = "\ue003"
_MOST_SHOWN = 80


class Segment(NamedTuple):
    """A piece of a value.

    Attributes:
        text: of it.
        variables: the variable that it came out of.
        unresolved: variables without a value, which it holds as they were written.
        line: where it stands, if that is not where it is used: an element of an array.
    """

    text: str
    variables: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    line: int = 0


Value = tuple[Segment, ...]


def _nothing(_text: str) -> Value | None:
    return None


class State:
    """What is known where a command stands.

    Attributes:
        values: of variables.
        lines: where they were set.
        arrays: of arrays.
        exported: the names that started programs see.
        arguments: `$1`, `$2`, ...; None where nobody knows them.
        substitute: what `$(command)` gives; None where it is not known.
        zero: `$0`; None where nobody knows it.
        closed: nothing but what is known can have set a variable, as in a container.
        ended: the script, or the function, ends here (`exec`, `exit`, `return`).
    """

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.lines: dict[str, int] = {}
        self.arrays: dict[str, tuple[Value, ...]] = {}
        self.exported: set[str] = set()
        self.arguments: tuple[Value, ...] | None = ()
        self.substitute: Callable[[str], Value | None] = _nothing
        self.zero: Value | None = None
        self.closed = False
        self.ended = ""

    def forget(self, names: Iterable[str]) -> None:
        """Forget what variables hold."""
        for name in names:
            self.values.pop(name, None)
            self.arrays.pop(name, None)

    def copy(self) -> State:
        """Return one that can be changed alone."""
        other = State()
        other.values = dict(self.values)
        other.lines = dict(self.lines)
        other.arrays = dict(self.arrays)
        other.exported = set(self.exported)
        other.arguments = self.arguments
        other.substitute = self.substitute
        other.zero = self.zero
        other.closed = self.closed
        other.ended = self.ended
        return other


def as_value(word: Word) -> Value:
    """Return a word as a value, of which what is not known is a piece of its own.

    >>> [segment.unresolved for segment in as_value(Word("--a 1 --b $X", unresolved=("X",)))]
    [(), ('X',)]
    """
    if not word.unresolved:
        return (Segment(word.text, word.variables),)
    names = "|".join(map(re.escape, word.unresolved))
    written = rf"(\$\((?:{names})\)|\$\{{(?:{names})[^}}]*\}}|\$(?:{names})\b|{names})"
    pieces = re.split(written, word.text)
    if len(pieces) == 1:  # it is not to be seen which part of it
        return (Segment(word.text, word.variables, word.unresolved),)
    return tuple(
        unknown(piece, next(name for name in word.unresolved if name in piece))
        if number % 2
        else Segment(piece, word.variables)
        for number, piece in enumerate(pieces)
        if piece
    )


def as_word(value: Value, line: int, file: str = "") -> Word:
    """Return a value as a word that stands on a line, if not its own says otherwise."""
    return Word(
        "".join(s.text for s in value).replace(_BLANK, " ").replace(_LINE, "\n"),
        next((s.line for s in value if s.line), line),
        _united(s.variables for s in value),
        _united(s.unresolved for s in value),
        file,
    )


def flat(value: Value) -> str | None:
    """Return a value's text; None where a part of it is not known."""
    if any(segment.unresolved for segment in value):
        return None
    return "".join(segment.text for segment in value)


def unknown(written: str, name: str) -> Segment:
    """Return a variable without a value, as it is written."""
    text = written.replace(" ", _BLANK).replace("\t", _BLANK).replace("\n", _LINE)
    return Segment(text, (), (" ".join(name.split())[:_MOST_SHOWN],))


def _united(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in names for name in each))
