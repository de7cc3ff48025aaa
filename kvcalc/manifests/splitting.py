"""A command line parted into words, with a shell's quotes but none of its variables."""

from __future__ import annotations

import re

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.shell.quoting import MAX_SCRIPT
from kvcalc.manifests.templates import MARK, Templates

__all__ = ["split_words"]

_MARKED = re.compile(f"{MARK}[0-9]+\ue001")
_ESCAPED = ('"', "\\", "$", "`")  # by a backslash between double quotes


def split_words(text: str, lines: Lines, marks: Templates) -> list[Word]:
    """Split a command line at its blanks.

    What follows a quote that nothing closes is one word.

    Args:
        text: with marks for its variables.
        lines: the file's lines that it stands on.
        marks: what they stand for: a value with blanks, unquoted, is several words.

    Raises:
        InputError: it is too long.
    """
    if len(text) > MAX_SCRIPT:
        message = f"a command longer than {MAX_SCRIPT // 2**10} KiB"
        raise InputError(message, hint="is it a deployment?")
    return _Splitter(text, lines, marks).run()


class _Splitter:
    def __init__(self, text: str, lines: Lines, marks: Templates) -> None:
        self.text = text
        self.lines = lines
        self.marks = marks
        self.at = 0
        self.breaks = 0
        self.words: list[Word] = []

    def run(self) -> list[Word]:
        text = self.text
        while self.at < len(text):
            if text[self.at].isspace():
                self.breaks += text[self.at] == "\n"
                self.at += 1
            elif text.startswith("\\\n", self.at):
                self.breaks += 1
                self.at += 2
            else:
                self.word()
        return self.words

    def word(self) -> None:
        """Take the word that begins here."""
        start, first = self.at, self.breaks
        pieces: list[str] = []
        quoted_marks, begun = False, False
        while self.at < len(self.text) and not (char := self.text[self.at]).isspace():
            if char in "'\"":
                inside = self.quoted(char)
                quoted_marks |= MARK in inside
                pieces.append(inside)
                begun = True
            elif char == "\\":
                pieces.append(self.escaped())
            else:
                pieces.append(char)
                self.at += 1
        found = "".join(pieces)
        if found or begun:
            line = self.lines.at(start, first)
            self.words += _parted(found, line, self.marks, whole=not quoted_marks)

    def quoted(self, quote: str) -> str:
        """Return what stands between quotes, standing at the first of them."""
        pieces: list[str] = []
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == quote:
                break
            if char == "\\" and quote == '"' and self.text[self.at : self.at + 1] in _ESCAPED:
                char = self.text[self.at]
                self.at += 1
            self.breaks += char == "\n"
            pieces.append(char)
        return "".join(pieces)

    def escaped(self) -> str:
        """Return what stands behind a backslash: nothing of a line's end."""
        after = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        self.breaks += after == "\n"
        return "" if after == "\n" else after


def _parted(text: str, line: int, marks: Templates, *, whole: bool) -> list[Word]:
    """Return a word, or several where it is one mark of a value with blanks."""
    if whole and _MARKED.fullmatch(text):
        piece = marks.pieces[int(text[1:-1])] if int(text[1:-1]) < len(marks.pieces) else None
        if piece is not None and piece.value is not None:
            return [Word(part, line, (piece.name,)) for part in piece.value.split()]
    return [Word(text, line)]
