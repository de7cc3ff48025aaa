"""Prometheus' text format, read by hand: strictly, or keeping what can be read of a broken page.

Written after the format's description (exposition formats of Prometheus, text format 0.0.4, and
OpenMetrics 1.0): escapes in label values, timestamps, exemplars behind ` # `, quoted names inside
the braces (UTF-8 names of Prometheus 3). Everything is linear in the page's length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.core.errors import InputError, printable

__all__ = ["Fault", "Page", "Sample", "parse"]

_MOST_FAULTS = 20
_SHOWN = 60  # characters of a line that a message repeats

_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_LABEL = re.compile(
    r'[ \t]*([A-Za-z_][A-Za-z0-9_]*|"[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t]*'
    r'(?:=[ \t]*"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*)?([,}])'
)
"""Possessive, so that escapes are not kept for ways back: some 100 bytes each."""
_PAIRS = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="([^"\\]*)",?')
_OF_PAIRS = r'(?:[A-Za-z_][A-Za-z0-9_]*="[^"\\]*"(?:,|(?=\})))*'
_PLAIN = re.compile(rf"({_NAME.pattern})(?:\{{({_OF_PAIRS})\}})? ([^ \t#]+)")
"""A line as servers write them: nothing escaped or quoted but values, no time."""
_LONGEST_PLAIN = 65_536
_LONGEST_LABEL = 1_000
_MOST_LABELS = 1_000
_MOST_SAMPLES = 60_000
"""Of a page: some 300 of each of 200 engines."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_WORDS = {
    "nan": float("nan"),
    "inf": float("inf"),
    "+inf": float("inf"),
    "-inf": float("-inf"),
    "infinity": float("inf"),
    "+infinity": float("inf"),
    "-infinity": float("-inf"),
}
_CLOSED = re.compile(r"[ \t]*\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_TYPES = frozenset(
    (
        *("counter", "gauge", "histogram", "summary", "untyped"),
        *("unknown", "info", "stateset", "gaugehistogram"),  # OpenMetrics
    )
)


class Sample(NamedTuple):
    """One sample.

    Attributes:
        name: of the metric, with its suffix.
        labels: by name, unescaped.
        value: a float, which may be infinite or NaN.
        timestamp: as written, where one is.
        line: counted from 1.
    """

    name: str
    labels: dict[str, str]
    value: float
    timestamp: float | None
    line: int


class Fault(NamedTuple):
    """A line that is not in the format."""

    line: int
    message: str


class Page(NamedTuple):
    """A page.

    Attributes:
        samples: in the order of the page.
        types: declared type of each metric.
        faults: lines that could not be read, the first 20; `fault_count` counts all.
    """

    samples: tuple[Sample, ...]
    types: dict[str, str]
    faults: tuple[Fault, ...]
    fault_count: int


class _BadLineError(Exception):
    """A line that is not in the format."""


def parse(text: str, *, strict: bool = False, where: str = "") -> Page:
    """Read a page.

    Args:
        text: the page.
        strict: refuse a page with a line that is not in the format, a sample that stands twice, or
            an undeclared type; otherwise such lines are left out and told in `faults`.
        where: how errors name the page.

    Raises:
        InputError: with `strict`, the first fault.
    """
    samples: list[Sample] = []
    types: dict[str, str] = {}
    faults: list[Fault] = []
    count = 0
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for number, line in enumerate(_lines(text), start=1):
        if not line or line.isspace():
            continue
        try:
            if line.lstrip(" \t").startswith("#"):
                if _comment(line, types):
                    break
                continue
            sample = _sample(line, number)
            _once(sample, seen)
            samples.append(sample)
            if len(samples) > _MOST_SAMPLES:
                raise InputError(
                    f"more than {_MOST_SAMPLES:,} samples",
                    where=where,
                    hint="give the page of one server",
                )
        except _BadLineError as error:
            count += 1
            shown = f"{error}: {printable(line[:_SHOWN])!r}"
            if strict:
                raise InputError(
                    f"line {number}: {shown}",
                    where=where,
                    hint="give the page as the server sent it",
                ) from None
            if len(faults) < _MOST_FAULTS:
                faults.append(Fault(number, shown))
    return Page(tuple(samples), types, tuple(faults), count)


def _once(sample: Sample, seen: set[tuple[str, frozenset[tuple[str, str]]]]) -> None:
    key = (sample.name, frozenset(sample.labels.items()))
    if key in seen:
        raise _BadLineError("the same sample stands twice")
    seen.add(key)


def _lines(text: str) -> Iterator[str]:
    """Yield lines; a line feed alone ends one (str.splitlines knows a dozen more marks)."""
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        if end < 0:
            end = len(text)
        yield text[start:end].rstrip("\r")
        start = end + 1


def _comment(line: str, types: dict[str, str]) -> bool:
    """Read a comment: TYPE is noted; return whether it ends the page (OpenMetrics' EOF)."""
    words = line.split(None, 4)
    if words[0] != "#" or len(words) == 1:
        return False
    if words[1] == "EOF" and len(words) == 2:  # noqa: PLR2004 - `# EOF` and nothing else
        return True
    if words[1] != "TYPE":
        return False
    if len(words) != 4 or words[3] not in _TYPES:  # noqa: PLR2004 - `# TYPE name type`
        raise _BadLineError("no type of a metric")
    name = words[2].strip('"')
    if types.setdefault(name, words[3]) != words[3]:
        raise _BadLineError("a second type of a metric")
    return False


def _sample(line: str, number: int) -> Sample:
    plain = _PLAIN.fullmatch(line) if len(line) <= _LONGEST_PLAIN else None
    if plain is None:
        return _any_sample(line, number)
    name, told, value = plain.groups()
    pairs = _PAIRS.findall(told or "")
    labels = {key: text if len(text) <= _LONGEST_LABEL else _cut(text) for key, text in pairs}
    if len(labels) < len(pairs):
        raise _BadLineError("a label stands twice")
    return Sample(name, labels, _number(value), None, number)


def _cut(text: str) -> str:
    """Return a label as far as anybody reads it."""
    return text if len(text) <= _LONGEST_LABEL else f"{text[:_LONGEST_LABEL]}…"


def _any_sample(line: str, number: int) -> Sample:
    rest = line.lstrip(" \t")
    found = _NAME.match(rest)
    name = found.group() if found else ""
    rest = rest[len(name) :].lstrip(" \t")
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        quoted, rest = _labels(rest, labels)
        if name and quoted:
            raise _BadLineError("two names")
        name = name or quoted
    if not name:
        raise _BadLineError("no name")
    # An exemplar stands behind the value; it says nothing of the sample.
    plain, mark, _ = rest.partition(" # ")
    words = plain.split() if mark else rest.split()
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 - a value, and perhaps a time
        raise _BadLineError("no value" if not words else "more than a value and a time")
    value = _number(words[0])
    time = _number(words[1]) if len(words) > 1 else None
    return Sample(name, labels, value, time, number)


def _labels(text: str, into: dict[str, str]) -> tuple[str, str]:
    """Read labels in braces; return the quoted name among them, if any, and what follows."""
    quoted, at = "", 1
    if closed := _CLOSED.match(text, at):
        return "", text[closed.end() :]
    while True:
        found = _LABEL.match(text, at)
        if found is None:
            raise _BadLineError("labels that cannot be read")
        name, value, end = found.groups()
        if name.startswith('"'):
            name = _unescaped(name[1:-1])
        if value is None:
            if quoted or into or not found.group(1).startswith('"'):
                raise _BadLineError("a label without a value")
            quoted = name
        else:
            _put(into, name, value)
        at = found.end()
        if end == "}":
            return quoted, text[at:]
        if closed := _CLOSED.match(text, at):  # a comma may stand before the brace
            return quoted, text[closed.end() :]


def _put(into: dict[str, str], name: str, value: str) -> None:
    """Keep a label; what is cut off before escapes are undone is beyond what is kept."""
    if name in into:
        raise _BadLineError("a label stands twice")
    if len(into) == _MOST_LABELS:
        raise _BadLineError(f"more than {_MOST_LABELS:,} labels")
    into[name] = _cut(_unescaped(value[: 2 * _LONGEST_LABEL + 2]))


def _unescaped(text: str) -> str:
    """Undo the three escapes; another backslash stands for itself."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group()), text)


def _number(text: str) -> float:
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(text) is None:
        raise _BadLineError("no number")
    return float(text)
