"""What a word of a script is made of: quotes, variables, and commands put in."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import NoReturn

from kvcalc.core.errors import InputError, printable
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.tree import Literal, Part, Raw, Substitution, Variable

__all__ = ["MAX_SCRIPT", "Quoting"]

MAX_SCRIPT = 2**18
"""Characters of a script: the largest public ones have some 100,000."""

_MAX_DEPTH = 24  # quotes, braces and substitutions inside one another
_BLANK = re.compile(r"(?:[ \t\r\f\v]|\\\n|\\\r\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_PLAIN = re.compile(r"""[^\s\\'"$`;&|<>()]+""")
_IN_DOUBLE = re.compile(r'[^"\\$`]+')
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = re.compile(r"[0-9@*#?$!-]")
_BRACED = re.compile(
    r"(!?#?)([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(?:\[([^\]\n]*)\])?"
    r"(:-|:=|:\?|:\+|[-=?+]|##|#|%%|%|//|/|\^\^|\^|,,|,|:|@)?"
)
_IN_ARGUMENT = re.compile(r"""[^\\'"$`}]+""")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class Quoting:
    """A place in a script, and what may stand inside a word there.

    Args:
        text: the script.
        lines: the lines of the file that it stands in.
        where: how errors name the file.
        depth: how many scripts this one stands in.

    Raises:
        InputError: it is too large.
    """

    def __init__(self, text: str, lines: Lines, where: str, depth: int = 0) -> None:
        self.text = text
        self.where = where
        self.at = 0
        self.depth = depth
        self._lines = lines
        if len(text) > MAX_SCRIPT:
            message = f"a script larger than {MAX_SCRIPT // 2**10} KiB"
            hint = "give the part that starts the server"
            raise InputError(message, hint=hint, where=printable(where))
        self._breaks = [found.start() for found in re.finditer("\n", text)]

    def line(self, offset: int | None = None) -> int:
        """Return the line of a place, of where the lexer stands if none is given."""
        offset = self.at if offset is None else offset
        return self._lines.at(offset, bisect_left(self._breaks, offset))

    def quoted_parts(self, plain: re.Pattern[str], end: str) -> list[Part]:
        """Return the parts up to a closing character, as within double quotes."""
        parts: list[Part] = []
        start = self.at
        text = self.text
        while self.at < len(text):
            if (found := plain.match(text, self.at)) is not None:
                parts.append(Literal(found[0], quoted=True))
                self.at = found.end()
                continue
            char = text[self.at]
            if end and char == end:
                self.at += 1
                return parts or [Literal("", quoted=True)]
            if char == "\\":
                after = text[self.at + 1 : self.at + 2]
                if after != "\n":
                    kept = after if after in '"\\$`' else "\\" + after
                    parts.append(Literal(kept, quoted=True))
                self.at += 2
            elif char in "$`":
                parts.append(self._dollar(quoted=True))
            else:
                parts.append(Literal(char, quoted=True))
                self.at += 1
        if end:
            self._refuse(f"nothing closes this quote ({end})", start - 1)
        return parts

    def _piece(self, char: str) -> list[Part] | None:
        """Return the next parts of a word; None where it ends.

        Args:
            char: that they begin with.
        """
        text = self.text
        if (found := _PLAIN.match(text, self.at)) is not None:
            self.at = found.end()
            return [Literal(found[0], quoted=False)]
        if char == "\\":
            self.at += 2
            return [Literal(text[self.at - 1 : self.at] or "\\", quoted=True)]
        if char == "'":
            return [Literal(self._single(), quoted=True)]
        if char == '"':
            return self._double()
        return [self._dollar(quoted=False)] if char in "$`" else None

    def _skip(self) -> None:
        while True:
            at = self.at
            if (found := _BLANK.match(self.text, self.at)) is not None:
                self.at = found.end()
            if (found := _COMMENT.match(self.text, self.at)) is not None:
                self.at = found.end()
            if self.at == at:
                return

    def _single(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._refuse("nothing closes this quote (')", self.at)
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _double(self) -> list[Part]:
        self.at += 1
        return self.quoted_parts(_IN_DOUBLE, '"')

    def _dollar(self, *, quoted: bool) -> Part:
        """Return what a `$` or a backquote begins."""
        start, text = self.at, self.text
        if text[start] == "`":
            end = start + 1
            while (end := text.find("`", end)) >= 0 and text[end - 1] == "\\":
                end += 1
            if end < 0:
                self._refuse("nothing closes this quote (`)", start)
            self.at = end + 1
            written = text[start : end + 1]
            return Substitution("command", written[1:-1], quoted, written)
        after = text[start + 1 : start + 2]
        if text.startswith("((", start + 1):
            return self._arithmetic(start, quoted=quoted)
        if after == "(":
            self.at += 1
            return self._command(start, quoted=quoted)
        if after == "{":
            return self._braced(start, quoted=quoted)
        if after == "'" and not quoted:
            return Literal(self._ansi(), quoted=True)
        if after == '"' and not quoted:
            self.at += 1
            inner = self._double()
            return inner[0] if len(inner) == 1 else Literal(text[start + 2 : self.at - 1], True)
        name = _NAME.match(text, start + 1) or _SPECIAL.match(text, start + 1)
        if name is None:
            self.at += 1
            return Literal("$", quoted)
        self.at = name.end()
        return Variable(name[0], "", None, "", quoted, text[start : self.at])

    def _braced(self, start: int, *, quoted: bool) -> Part:
        text = self.text
        found = _BRACED.match(text, start + 2)
        if found is None:
            return self._odd_braces(start, quoted=quoted)
        self.at = found.end()
        prefix, name, index, operator = found[1], found[2], found[3] or "", found[4] or ""
        if prefix:
            operator = prefix + operator
        argument = self._argument(start) if text[self.at : self.at + 1] != "}" else None
        if argument is None:
            self.at += 1
        if argument is not None and not operator:
            operator = "?!"  # a form that is not read
        return Variable(name, operator, argument, index, quoted, text[start : self.at])

    def _argument(self, start: int) -> Raw:
        """Return what follows the operator in `${X:-...}`, up to the brace that closes it."""
        self._deeper(start)
        parts: list[Part] = []
        text, first = self.text, self.at
        while self.at < len(text):
            if (found := _IN_ARGUMENT.match(text, self.at)) is not None:
                parts.append(Literal(found[0], quoted=False))
                self.at = found.end()
                continue
            char = text[self.at]
            if char == "}":
                self.at += 1
                self.depth -= 1
                return Raw(tuple(parts), self.line(first), first)
            if char == "\\":
                parts.append(Literal(text[self.at + 1 : self.at + 2], quoted=True))
                self.at += 2
            elif char == "'":
                parts.append(Literal(self._single(), quoted=True))
            elif char == '"':
                parts += self._double()
            else:
                parts.append(self._dollar(quoted=False))
        return self._refuse("nothing closes ${", start)

    def _odd_braces(self, start: int, *, quoted: bool) -> Part:
        end = self.text.find("}", start)
        if end < 0:
            self._refuse("nothing closes ${", start)
        self.at = end + 1
        written = self.text[start : self.at]
        return Substitution("command", "", quoted, written)

    def _command(self, start: int, *, quoted: bool) -> Substitution:
        """Return `$( ... )`, standing at its parenthesis."""
        self._deeper(start)
        self.at += 1
        first, level = self.at, 1
        while level and self.at < len(self.text):
            char = self.text[self.at]
            if char == "'":
                self._single()
            elif char == '"':
                self._double()
            elif char == "\\":
                self.at += 2
            elif char == "#" and self.text[self.at - 1].isspace():
                self._skip()
            else:
                level += (char == "(") - (char == ")")
                self.at += 1
        if level:
            self._refuse("nothing closes $(", start)
        self.depth -= 1
        inside = self.text[first : self.at - 1]
        return Substitution("command", inside, quoted, self.text[start : self.at])

    def _arithmetic(self, start: int, *, quoted: bool) -> Substitution:
        level, at = 0, start + 1
        while at < len(self.text):
            level += (self.text[at] == "(") - (self.text[at] == ")")
            at += 1
            if level == 0:
                break
        if level:
            self._refuse("nothing closes $((", start)
        self.at = at
        inside = self.text[start + 3 : at - 2]
        return Substitution("arithmetic", inside, quoted, self.text[start:at])

    def _ansi(self) -> str:
        """Return the text of $'...', standing at its dollar."""
        start = self.at
        self.at += 2
        pieces: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == "'":
                return "".join(pieces)
            if char == "\\":
                after = self.text[self.at : self.at + 1]
                pieces.append(_ANSI.get(after, "\\" + after))
                self.at += 1
            else:
                pieces.append(char)
        return self._refuse("nothing closes this quote ($')", start)

    def _deeper(self, start: int) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self._refuse(f"more than {_MAX_DEPTH} levels of braces and quotes", start)

    def _refuse(self, message: str, offset: int) -> NoReturn:
        hint = "check the quotes of this command"
        raise InputError(message, hint=hint, where=f"{printable(self.where)}:{self.line(offset)}")
