"""Words and operators of a POSIX shell script (and the arrays, `[[ ]]` and here-strings of bash).

It is read, never run. What is not understood is passed over a character at a time: only quotes and
braces that nothing closes are refused.
"""

from __future__ import annotations

import re

from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.quoting import MAX_SCRIPT, Quoting
from kvcalc.manifests.shell.tree import Heredoc, Literal, Part, Raw

__all__ = ["MAX_SCRIPT", "Lexer", "Operator"]

_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|&>>|&>|[;&|()\n]")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-|<<|<>|<&|>>|>\||>&|<|>)")
_IN_BODY = re.compile(r"[^\\$`]+")


class Operator(str):
    """`;`, `&&`, a line break, `>`, ... as it stands."""

    __slots__ = ()


class Lexer(Quoting):
    """The words and operators of a script, one after the other.

    Args:
        text: the script.
        lines: the lines of the file that it stands in.
        where: how errors name the file.
        depth: how many scripts this one stands in.
    """

    def __init__(self, text: str, lines: Lines, where: str, depth: int = 0) -> None:
        super().__init__(text, lines, where, depth)
        self._pending: list[tuple[str, bool, bool, list[Heredoc]]] = []

    def next(self) -> Raw | Operator | None:
        """Return the next word or operator; None at the end."""
        self._skip()
        if self.at >= len(self.text):
            return None
        if (found := _OPERATOR.match(self.text, self.at)) is not None:
            self.at = found.end()
            if found[0] == "\n":
                self._bodies()
            return Operator(found[0])
        redirect = _REDIRECT.match(self.text, self.at)
        if redirect is not None and self.text[redirect.end() : redirect.end() + 1] != "(":
            self.at = redirect.end()
            return Operator(redirect[2])
        return self.word()

    def expect(self, delimiter: Raw, *, tabs: bool) -> list[Heredoc]:
        """Note that a here-document begins after this line; it is put into the list that is given.

        Args:
            delimiter: the word that ends it.
            tabs: whether leading tabs are dropped (`<<-`).
        """
        quoted = any(isinstance(p, Literal) and p.quoted for p in delimiter.parts)
        end = "".join(p.text if isinstance(p, Literal) else p.written for p in delimiter.parts)
        found: list[Heredoc] = []
        self._pending.append((end, quoted, tabs, found))
        return found

    def word(self) -> Raw:
        """Return the word that begins here."""
        start = self.at
        parts: list[Part] = []
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if text.startswith("\\\n", self.at):
                self.at += 2
                if self.at >= len(text) or text[self.at].isspace():
                    break
            elif char in "<>" and not parts:
                self.at += 1
                if text.startswith("(", self.at):  # next() takes the others
                    parts.append(self._command(start, quoted=True))
            elif (more := self._piece(char)) is not None:
                parts += more
            else:
                break
        if self.at == start:
            self.at += 1
        return Raw(tuple(parts), self.line(start), start)

    def body(self, text: str, line: int) -> Raw:
        """Return the parts of a here-document's text, or of other text where `$` counts."""
        inner = Lexer(text, Lines(line), self.where, self.depth + 1)
        return Raw(tuple(inner.quoted_parts(_IN_BODY, "")), line)

    def _bodies(self) -> None:
        """Read the here-documents that were announced on the line that ends here."""
        for end, quoted, tabs, found in self._pending:
            start = self.at
            rows: list[str] = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                row = self.text[self.at : stop].rstrip("\r")
                self.at = min(stop + 1, len(self.text))
                row = row.lstrip("\t") if tabs else row
                if row == end:
                    break
                rows.append(row + "\n")
            found.append(Heredoc("".join(rows), self.line(start), quoted))
        self._pending.clear()
