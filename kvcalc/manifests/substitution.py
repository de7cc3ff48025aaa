"""Variables that something other than a shell puts in: the kubelet, Compose, systemd, Docker.

`$(VAR)` in a container's command and args is the kubelet's, from the container's own environment;
`${VAR:-word}` in a Compose file is Compose's, from the file `.env` beside it, and `$$` is a dollar;
`${VAR}` in a unit is systemd's, from `Environment=`. What has a value becomes it, or a mark of it
(see `templates`) where the value must stay known as a variable's; what has none stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvcalc.manifests.found import Finding, Word
from kvcalc.manifests.shell.state import as_value
from kvcalc.manifests.templates import MARK, Piece, Templates

__all__ = [
    "interpolated",
    "kubelet",
    "kubelet_script",
    "read_env_file",
    "unexpanded",
]

_KUBELET = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_PLAIN = re.compile(r"[^\s'\"`$\\;&|<>(){}#]+")  # to a shell
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELLS = re.compile(
    r"(?P<flag>--?[A-Za-z][\w-]*=)?\$(?P<brace>\{)?(?P<name>[A-Z_][A-Z0-9_]*)(?(brace)\})", re.ASCII
)
_OPERATOR = re.compile(r":-|:\+|:\?|-|\+|\?")
_ENV_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)")
_MAX_DEPTH = 12  # braces inside one another
_MAX_VARIABLES = 20_000  # of one file
_MAX_VALUE = 10_000  # characters: a file that doubles a variable forty times says nothing


def kubelet(word: Word, env: Mapping[str, Word]) -> Word:
    """Return a word of a container with `$(VAR)` put in, as the kubelet does.

    Args:
        word: as it stands, of the command, its args or the value of a variable.
        env: the container's environment: a name that it does not have stays as written.
    """
    if "$" not in word.text:
        return word
    variables, unresolved = list(word.variables), list(word.unresolved)

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "$"
        value = env.get(name)
        if value is None or value.unresolved:
            unresolved.append(name)
            return found[0]
        variables.append(name)
        return value.text

    text = _KUBELET.sub(put, word.text)
    return word._replace(
        text=text,
        variables=tuple(dict.fromkeys(variables)),
        unresolved=tuple(dict.fromkeys(unresolved)),
    )


def unexpanded(word: Word, findings: list[Finding], form: str) -> Word:
    """Tell a shell's variable where no shell stands, and read it as it was meant.

    Args:
        word: of a command in exec form.
        findings: takes what is wrong with it.
        form: how the variable is written instead, `{}` for its name; "" where nothing puts it in.

    Returns:
        The word with the kubelet's `$(NAME)` in place of `$NAME` and `${NAME}`.
    """
    found = _SHELLS.fullmatch(word.text)
    if found is None:
        return word
    name = found["name"]
    cure = f"write {form.format(name)}" if form else "let a shell start it: sh -c, or shell form"
    findings.append(
        Finding(
            "not-expanded",
            "error",
            f"${name} stays as it is written: no shell stands before it",
            cure,
            word.line,
            word.file,
        )
    )
    return word._replace(text=f"{found['flag'] or ''}$({name})")


def kubelet_script(text: str, env: Mapping[str, Word], marks: Templates) -> str:
    """Return a script with marks for what `$(VAR)` of a known VAR holds; the rest is the shell's.

    The kubelet puts a value in before the shell reads the script, which splits it at its blanks and
    reads its quotes; so only what the shell takes as it stands becomes a mark.
    """

    def put(found: re.Match[str]) -> str:
        value = env.get(found[1] or "")
        if value is None:
            return "$" if found[1] is None else found[0]
        name = str(found[1])

        def marked(run: re.Match[str]) -> str:
            return run[0] if MARK in run[0] else marks.mark(Piece(found[0], name, run[0]))

        return "".join(
            marks.mark(Piece(marks.restored(part.text), part.unresolved[0], None))
            if part.unresolved
            else _PLAIN.sub(marked, marks.with_known(part.text))
            for part in as_value(value)
        )

    return _KUBELET.sub(put, text) if "$" in text else text


class _Style(NamedTuple):
    """How a kind of file writes variables."""

    doubled: bool  # `$$` is a dollar
    bare: bool  # `$X` as well as `${X}`
    backslash: bool  # `\\$` is a dollar
    empty: bool  # what has no value is empty


_STYLES = {
    "compose": _Style(doubled=True, bare=True, backslash=False, empty=False),
    "dockerfile": _Style(doubled=False, bare=True, backslash=True, empty=False),
    "systemd": _Style(doubled=True, bare=True, backslash=False, empty=False),
    "braces": _Style(doubled=False, bare=False, backslash=False, empty=False),
}


def interpolated(
    text: str, lookup: Callable[[str], str | None], marks: Templates, style: str = "compose"
) -> str:
    """Return a text with its variables put in.

    A value of `lookup` and a variable without a value become marks; a default (`${X:-word}`) is
    put in as it stands, for it is the file's own text.

    Args:
        text: as it stands.
        lookup: the values that are known.
        marks: takes what the marks stand for.
        style: `compose`, `dockerfile`, `systemd`, or `braces` (`${X}` alone).
    """
    return _Interpolation(lookup, marks, _STYLES[style]).of(text, 0) if "$" in text else text


class _Interpolation:
    def __init__(
        self, lookup: Callable[[str], str | None], marks: Templates, style: _Style
    ) -> None:
        self.lookup = lookup
        self.marks = marks
        self.style = style

    def of(self, text: str, depth: int) -> str:
        pieces: list[str] = []
        at = 0
        closings = _closings(text)
        while (dollar := text.find("$", at)) >= 0 and len(self.marks.pieces) < _MAX_VARIABLES:
            pieces.append(text[at:dollar])
            after = text[dollar + 1 : dollar + 2]
            if self.style.backslash and pieces[-1].endswith("\\"):
                pieces[-1] = pieces[-1][:-1]
                pieces.append("$")
                at = dollar + 1
            elif after == "$" and self.style.doubled:
                pieces.append("$")
                at = dollar + 2
            elif after == "{" and (end := closings.get(dollar + 1)) is not None:
                pieces.append(self.braced(text[dollar : end + 1], depth))
                at = end + 1
            elif self.style.bare and (name := _NAME.match(text, dollar + 1)) is not None:
                pieces.append(self.value(name[0], text[dollar : name.end()]))
                at = name.end()
            else:
                pieces.append("$")
                at = dollar + 1
        pieces.append(text[at:])
        return "".join(pieces)

    def value(self, name: str, written: str) -> str:
        return self.marks.mark(Piece(written, name, self.lookup(name)))

    def braced(self, written: str, depth: int) -> str:
        inner = written[2:-1]
        name = _NAME.match(inner)
        if name is None or depth > _MAX_DEPTH:
            return self.marks.mark(Piece(written, inner[:60] or "{}", None))
        rest = inner[name.end() :]
        found = _OPERATOR.match(rest)
        if not rest or found is None:
            return (
                self.marks.mark(Piece(written, inner[:60] if rest else name[0], None))
                if (rest)
                else self.value(name[0], written)
            )
        word, value = rest[found.end() :], self.lookup(name[0])
        given = value is not None and (bool(value) or not found[0].startswith(":"))
        if found[0] in (":+", "+"):
            return self.of(word, depth + 1) if given else ""
        if given or found[0] in (":?", "?"):
            return self.value(name[0], written)
        return self.of(word, depth + 1)


def _closings(text: str) -> dict[int, int]:
    """Return where each brace that opens is closed."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for found in re.finditer("[{}]", text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            closed[opened.pop()] = found.start()
    return closed


def read_env_file(text: str, lookup: Callable[[str], str | None] | None = None) -> dict[str, str]:
    """Return the variables of a `.env` file.

    Args:
        text: of it.
        lookup: values beside it; where given, Compose reads the file, which puts in the variables
            of its values, but of those in single quotes. What has no value stays as written.
    """
    values: dict[str, str] = {}

    def known(name: str) -> str | None:
        given = None if lookup is None else lookup(name)
        return values.get(name) if given is None else given

    for row in text.splitlines()[:_MAX_VARIABLES]:
        found = _ENV_LINE.fullmatch(row)
        if found is None:
            continue
        value = found[2].strip()
        literal = value[:1] == "'" or lookup is None
        if value[:1] in ("'", '"'):
            end = value.find(value[0], 1)
            value = value[1:end] if end > 0 else value[1:]
        else:
            value = re.split(r"\s+#", value, maxsplit=1)[0].strip()
        if not literal and "$" in value:
            marks = Templates()
            value = marks.restored(interpolated(value, known, marks))[:_MAX_VALUE]
        values[found[1]] = value
    return values
