"""Which line of a file each place of a text comes from, when the text stood inside the file.

A script inside YAML keeps its lines in a literal block; a folded or quoted scalar loses them, and
is found again by looking for its words in the lines that it was read from.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["Lines"]

_WORD = re.compile(r"\S+")
_LEAST = 3  # characters by which a word is looked for: escapes and quotes differ at its end


class Lines:
    """The line of each place of a text.

    Args:
        first: the line of its first character.
        step: by how much a line break raises it; 0 where all stands on one line.
    """

    def __init__(self, first: int, step: int = 1) -> None:
        self.first = first
        self.step = step
        self._places: list[int] = []
        self._lines: list[int] = []

    @classmethod
    def located(cls, text: str, source: Sequence[str], first: int) -> Lines:
        """Find the words of a folded or quoted text in the lines that it was read from.

        Args:
            text: as the reader gave it.
            source: the lines of the file that hold it.
            first: the line number of the first of them.
        """
        lines = cls(first, step=0)
        row, column = 0, 0
        for word in _WORD.finditer(text):
            start = word[0][:12] if len(word[0]) > _LEAST else word[0]
            at, since = row, column
            while at < len(source):
                place = source[at].find(start, since)
                if place >= 0:
                    row, column = at, place + len(start)
                    break
                at, since = at + 1, 0
                if at - row > 40:  # noqa: PLR2004 - a word that was written otherwise (escapes)
                    break
            lines._places.append(word.start())
            lines._lines.append(first + row)
        return lines

    def at(self, offset: int, breaks: int) -> int:
        """Return the line of a place.

        Args:
            offset: characters before it.
            breaks: line breaks before it.
        """
        if self._places:
            found = bisect_right(self._places, offset) - 1
            return self._lines[max(found, 0)]
        return self.first + self.step * breaks
