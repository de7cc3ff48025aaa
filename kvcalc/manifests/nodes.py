"""A value of a document: what it holds, where it stands, what it says when asked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvcalc.manifests.lines import Lines
from kvcalc.manifests.templates import Templates

__all__ = ["Node", "Shared"]

_NULLS = ("", "~", "null", "Null", "NULL")
_TRUE = ("true", "True", "TRUE", "yes", "on")
_FALSE = ("false", "False", "FALSE", "no", "off")
_TYPED = re.compile(
    r"[-+]?(?:0|[1-9][0-9]{0,18}|0x[0-9a-fA-F]{1,16}|[0-9]{1,18}\.[0-9]{0,18})"
    r"|[-+]?[0-9]{1,18}(?:\.[0-9]{0,18})?[eE][-+]?[0-9]{1,3}|[tT]rue|TRUE|[fF]alse|FALSE"
)


class Node:
    """A value of a document and where it stands.

    Attributes:
        value: a mapping, a list, or a scalar's text as it was written.
        line: where it begins, from 1.
        end: where it ends.
        style: of a scalar: "" plain, "'", '"', "|", ">".
        key_lines: of a mapping: the lines of its keys.
    """

    __slots__ = ("_file", "end", "height", "key_lines", "line", "size", "style", "value")

    def __init__(
        self,
        value: dict[str, Node] | list[Node] | str,
        line: int,
        file: Shared,
        style: str = "",
    ) -> None:
        self.value = value
        self.line = line
        self.end = line
        self.style = style
        self.key_lines: dict[str, int] = {}
        self.size = 1
        self.height = 0
        self._file = file

    def get(self, *path: str) -> Node:
        """Return what stands under the keys; a null where anything of them is missing."""
        node = self
        for key in path:
            found = node.value.get(key) if isinstance(node.value, dict) else None
            if found is None:
                return Node("", node.line, self._file)
            node = found
        return node

    def __contains__(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return isinstance(self.value, list)

    @property
    def is_text(self) -> bool:
        """Whether it is a scalar with something in it."""
        return isinstance(self.value, str) and not self.is_null

    @property
    def is_null(self) -> bool:
        """Whether nothing is there."""
        return isinstance(self.value, str) and self.style == "" and self.value in _NULLS

    @property
    def is_typed(self) -> bool:
        """Whether YAML reads it as a number or a truth, not as the text that it is."""
        plain = isinstance(self.value, str) and not self.style
        return plain and _TYPED.fullmatch(str(self.value)) is not None

    @property
    def items(self) -> Sequence[Node]:
        """The values of a list; none of anything else."""
        return self.value if isinstance(self.value, list) else ()

    @property
    def fields(self) -> dict[str, Node]:
        """The values of a mapping; none of anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def raw(self) -> str:
        """A scalar's text, with templates as marks (see `templates`); "" for anything else."""
        return self.value if isinstance(self.value, str) and not self.is_null else ""

    @property
    def text(self) -> str:
        """A scalar's text; templates without a value as they were written."""
        return self._file.templates.restored(self.raw)

    @property
    def is_true(self) -> bool:
        """Whether it says yes."""
        return self.text in _TRUE

    @property
    def is_false(self) -> bool:
        """Whether it says no."""
        return self.text in _FALSE

    @property
    def number(self) -> int | None:
        """The whole number that it is, if it is one."""
        text = self.text.strip()
        return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None

    def lines(self, text: str | None = None) -> Lines:
        """Return which line each place of a scalar's text comes from.

        Args:
            text: the scalar's, after something was put into it.
        """
        if self.style == "|":
            return Lines(self.line + 1)
        if self.end == self.line:
            return Lines(self.line, step=0)
        first = self._file.first
        source = self._file.source_lines[self.line - first : self.end - first + 1]
        return Lines.located(self.raw if text is None else text, source, self.line)

    @property
    def duplicates(self) -> Sequence[tuple[str, int, int]]:
        """Keys of its file that stand twice: each with its line, and the first one's."""
        return self._file.duplicates

    @property
    def file(self) -> Shared:
        """What the nodes of its file share: for a node that is built from others."""
        return self._file

    def plain(self) -> object:
        """Return it as the dicts, lists, numbers, booleans and texts that YAML would give."""
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        text = self.text
        if self.style:
            return text
        if self.is_null:
            return None
        if text in _TRUE[:3] or text in _FALSE[:3]:
            return text in _TRUE
        if re.fullmatch(r"[-+]?(0|[1-9][0-9]{0,17})", text):
            return int(text)
        if re.fullmatch(r"[-+]?[0-9]{1,17}(\.[0-9]{0,17})?([eE][-+]?[0-9]{1,2})?", text):
            return float(text)
        return text


class Shared:
    """What the nodes of a file share.

    Args:
        source: the file's text.
        templates: what its marks stand for.
        first: the line that it begins on.
        name: of the file, as messages name it.
    """

    __slots__ = ("_lines", "duplicates", "first", "name", "source", "templates")

    def __init__(self, source: str, templates: Templates, first: int, name: str) -> None:
        self.first = first
        self.name = name
        self.duplicates: list[tuple[str, int, int]] = []  # key, its line, the first one's
        self.source = source
        self.templates = templates
        self._lines: list[str] | None = None

    @property
    def source_lines(self) -> list[str]:
        if self._lines is None:
            self._lines = self.source.splitlines()
        return self._lines
