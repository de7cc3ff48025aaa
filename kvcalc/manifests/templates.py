"""`{{ }}` of Helm, Go, Jinja and Ansible: what a template still says without its engine.

Nothing is run. Lines that only steer (`if`, `range`, `end`, `include`) are emptied, so that both
branches of a condition stay; an expression becomes a mark: one character-like word that passes
through YAML and shell unharmed. At the end a mark is the value that the file beside it gives
(`.Values.x` of values.yaml, or the expression's own `default`), or the expression as written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvcalc.manifests.found import Word

__all__ = ["MARK", "MAX_TEMPLATES", "Lookup", "Piece", "Templates", "lookup_of", "marked"]


MARK = "\ue000"
"""The character that begins a mark."""
_OPEN, _CLOSE = MARK, "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
MAX_TEMPLATES = 20_000
"""Expressions of one file; what follows stays as it stands."""
_OPENERS = ("{{", "{%", "{#")
_ENDS = {"{{": "}}", "{%": "%}", "{#": "#}"}
_DIGITS = 10  # of a mark's number
_MAX_VALUE = 100_000  # characters: a file that doubles a variable forty times says nothing
_MOST_LINES = 60  # of one expression: a later `}}` belongs to something else
_STARTS = {"if", "range", "with", "define", "block", "for", "macro", "raw"}
_STEERS = {
    *_STARTS,
    *("else", "elif", "end", "endif", "endfor", "endmacro", "endraw", "set", "template"),
    *("import", "fail", "break", "continue"),
}
_WITH = re.compile(r"with\s+(\$?\.Values[\w.-]*|\.[A-Za-z_][\w.-]*)\s*$")
_TO_YAML = re.compile(r"toYaml\s+(\.|\$?\.[A-Za-z_][\w.-]*)\s*(?:\||$)")


class Piece(NamedTuple):
    """An expression of a template: as written, its name, and its value where one is known."""

    written: str
    name: str
    value: str | None


class Templates:
    """The expressions of a file, by the marks that stand for them."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def mark(self, piece: Piece) -> str:
        """Return a mark that stands for an expression."""
        if piece.value is not None and len(piece.value) > _MAX_VALUE:
            piece = piece._replace(value=None)
        self.pieces.append(piece)
        return f"{_OPEN}{len(self.pieces) - 1}{_CLOSE}"

    def restored(self, text: str) -> str:
        """Return a text with values, or the expressions as written, in place of its marks."""
        if _OPEN not in text:
            return text
        return _MARK.sub(self._text, text)

    def with_known(self, text: str) -> str:
        """Return a text with the values that are known in place of their marks."""

        def put(found: re.Match[str]) -> str:
            restored = self._text(found)
            known = restored != found[0] and self.pieces[int(found[1])].value is not None
            return restored if known else found[0]

        return _MARK.sub(put, text) if _OPEN in text else text

    def finished(self, word: Word) -> Word:
        """Return a word with its marks replaced and the names of what stood there."""
        if _OPEN not in word.text:
            return word
        found = [self.pieces[int(n)] for n in _MARK.findall(word.text) if int(n) < len(self.pieces)]
        known = [piece.name for piece in found if piece.value is not None]
        unknown = [piece.name for piece in found if piece.value is None]
        return word._replace(
            text=self.restored(word.text),
            variables=tuple(dict.fromkeys((*word.variables, *known))),
            unresolved=tuple(dict.fromkeys((*word.unresolved, *unknown))),
        )

    def _text(self, found: re.Match[str]) -> str:
        number = int(found[1]) if len(found[1]) < _DIGITS else len(self.pieces)
        if number >= len(self.pieces):
            return found[0]  # the file itself holds such characters
        piece = self.pieces[number]
        return piece.written if piece.value is None else piece.value


def marked(
    text: str, lookup: Lookup | None = None, templates: Templates | None = None
) -> tuple[str, Templates]:
    """Put marks in place of a text's expressions, keeping its lines.

    Args:
        text: the file.
        lookup: the values that are known.
        templates: takes what the marks stand for; one of its own where none is given.

    Returns:
        The text, and what stood there.
    """
    templates = Templates() if templates is None else templates
    if "{{" not in text and "{%" not in text:
        return text, templates
    spans = _spans(text)
    pieces: list[str] = []
    scopes: list[str] = []
    at = 0
    for number, (start, end) in enumerate(spans):
        if start < at:
            continue  # inside an `if ... end` that was taken as a whole
        pieces.append(text[at:start])
        inner, steering = _inner(text[start:end])
        breaks = "\n" * text.count("\n", start, end)
        _scoped(inner, scopes)
        if text.startswith("{#", start) or inner.startswith("/*"):
            pieces.append(breaks)
        elif steering and (close := _same_line(text, spans, number)):
            written = text[start:close]
            pieces.append(templates.mark(Piece(written, shortened(inner), None)))
            end = close  # noqa: PLW2901 - the span grows to the end of the condition
            del scopes[-1:]
        elif (tree := _as_json(inner, scopes, lookup, templates)) is not None:
            pieces.append(tree + breaks)
        elif steering or _alone(text, start, end):
            pieces.append(breaks)
        else:
            name, value = evaluated(_absolute(inner, scopes), lookup)
            pieces.append(templates.mark(Piece(text[start:end], name, value)) + breaks)
        at = end
    pieces.append(text[at:])
    return "".join(pieces), templates


def _scoped(inner: str, scopes: list[str]) -> None:
    """Follow `with .Values.x` and its `end`: what `.` means in between."""
    first = re.match(r"[A-Za-z]*", inner)
    word = first[0] if first else ""
    if word in _STARTS:
        given = _WITH.match(inner)
        scopes.append(_absolute(given[1], scopes) if given else "")
    elif word.startswith("end"):
        del scopes[-1:]


def _absolute(inner: str, scopes: list[str]) -> str:
    """Return an expression with the `.x` of a `with` written out."""
    scope = next((each for each in reversed(scopes) if each), "")
    if not scope or ".Values" in inner:
        return inner
    return re.sub(r"(?<![\w.$)])\.(?=[A-Za-z_])", scope + ".", inner)


def _as_json(
    inner: str, scopes: list[str], lookup: Lookup | None, templates: Templates
) -> str | None:
    """Return what `toYaml .Values.x` gives, as JSON; None where that is not known.

    Its texts become marks: they are values of variables, and are not to be shown.
    """
    found = _TO_YAML.match(inner)
    if found is None or lookup is None:
        return None
    name = next((each for each in reversed(scopes) if each), "") if found[1] == "." else found[1]
    path = _absolute(name, scopes)
    value = lookup(path)
    if not isinstance(value, dict | list):
        return None
    return json.dumps(_hidden(value, path, templates), ensure_ascii=False)


def _hidden(value: object, path: str, templates: Templates) -> object:
    """Return a tree of values with marks for its texts."""
    if isinstance(value, dict):
        return {key: _hidden(each, f"{path}.{key}", templates) for key, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, path, templates) for each in value]
    if not isinstance(value, str) or len(templates.pieces) >= MAX_TEMPLATES:
        return value
    return templates.mark(Piece(path, path, value))


def _spans(text: str) -> list[tuple[int, int]]:
    """Return where the expressions stand."""
    spans: list[tuple[int, int]] = []
    at = 0
    following = {opener: text.find(opener) for opener in _OPENERS}
    while True:
        opener, start = min(
            ((o, p) for o, p in following.items() if p >= 0),
            key=lambda found: found[1],
            default=("", -1),
        )
        if start < 0 or len(spans) > MAX_TEMPLATES:
            return spans
        comment = text[start + 2 : start + 8].lstrip("- \n").startswith("/*")
        end = text.find("*/" if comment else _ENDS[opener], start + 2)
        end = text.find("}}", end) if comment and end >= 0 else end
        if end < 0:
            following[opener] = -1  # nothing closes this one, so nothing closes later ones
            continue
        if comment or text.count("\n", start, end) <= _MOST_LINES:
            spans.append((start, end + 2))
            at = end + 2
        else:
            at = start + 2
        for each, place in following.items():
            if 0 <= place < at:
                following[each] = text.find(each, at)


def _inner(expression: str) -> tuple[str, bool]:
    """Return what stands between the braces, and whether it only steers."""
    inner = expression[2:-2].strip("-~ \t\r\n")
    first = re.match(r"[A-Za-z]+", inner)
    assigns = re.match(r"\$\w*\s*(,\s*\$\w+\s*)?:?=", inner) is not None
    return inner, assigns or (first is not None and first[0] in _STEERS)


def _same_line(text: str, spans: list[tuple[int, int]], number: int) -> int:
    """Return where a condition that begins here ends, if that is on its line; 0 otherwise."""
    start = spans[number][0]
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    depth = 0
    for at, end in spans[number : number + 40]:
        if at >= stop:
            return 0
        word = re.match(r"[A-Za-z]*", _inner(text[at:end])[0])
        first = word[0] if word else ""
        depth += (first in _STARTS) - first.startswith("end")
        if depth <= 0:
            return end if at > start else 0
    return 0


def _alone(text: str, start: int, end: int) -> bool:
    """Whether an expression has its lines for itself."""
    line = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    return not text[line:start].strip() and not text[end:stop].strip()


# What an expression of a template gives, as far as the values beside it and its defaults say.

Lookup = Callable[[str], object]
"""A value of a name such as `.Values.maxModelLen`: text, number, list or mapping; None for none."""
_KEEPS = {"quote", "squote", "toString", "int", "int64", "float64", "trim", "string", "float"}
_NAME = re.compile(r"\$?\.?[A-Za-z_][\w.-]*|\.[A-Za-z_][\w.-]*")
_LITERAL = re.compile(r"""^(?:"([^"]*)"|'([^']*)'|`([^`]*)`|([-+\w./:@]+))$""")
_CALLED = re.compile(r"^(default|d)\s*\((.*)\)$", re.DOTALL)
_DEFAULT = re.compile(r"""^default\s+("[^"]*"|'[^']*'|`[^`]*`|\S+)(?:\s+(\S+))?$""")
_MOST_SHOWN = 60


def lookup_of(values: Mapping[str, object]) -> Lookup:
    """Return a lookup of `.Values.a.b` in plain values."""

    def find(name: str) -> object:
        head, _, rest = name.removeprefix("$").removeprefix(".").partition(".")
        if head != "Values" or not rest:
            return None
        value: object = values
        for key in rest.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value

    return find


def evaluated(inner: str, lookup: Lookup | None) -> tuple[str, str | None]:
    """Return an expression's name, and its value where one is known."""
    base, *filters = [part.strip() for part in _piped(inner)]
    value, name = None, shortened(inner)
    if function := _DEFAULT.match(base):
        value, base = _literal(function[1]), function[2] or ""
    if base.startswith("required "):
        base = base.split()[-1]
    if _NAME.fullmatch(base):
        name = base
        known = _text(lookup(base)) if lookup else None
        value = value if known is None else known
    for each in filters:
        if (called := _CALLED.match(each)) is not None:
            given = _literal(called[2].split(",")[0].strip())
        elif (function := _DEFAULT.match(each)) is not None:
            given = _literal(function[1])
        elif each in _KEEPS:
            continue
        else:
            return name, None
        value = given if value in (None, "") else value
    return name, value


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _piped(inner: str) -> list[str]:
    """Split at the bars that are not quoted."""
    parts, quote, at = [], "", 0
    for place, char in enumerate(inner):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'`":
            quote = char
        elif char == "|":
            parts.append(inner[at:place])
            at = place + 1
    return [*parts, inner[at:]]


def _literal(text: str) -> str | None:
    found = _LITERAL.match(text)
    if found is None or text.startswith((".", "$")):
        return None
    return next((group for group in found.groups() if group is not None), None)


def shortened(inner: str) -> str:
    """Return an expression as messages may name it."""
    text = " ".join(inner.split())
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."
