"""A strict YAML reader: plain values, the line of each, and no surprises.

What YAML 1.1 does and this reader does not: `no` and `on` are text, and so are `012`, `16:30`,
`0x1F`, `1_000` and dates; `1e9` is a number; a key that stands twice is refused, as are tags,
anchors, aliases, a second document, and keys that are not text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from kvcalc.models.text import MAX_BYTES, DocumentError, printable, shown

if TYPE_CHECKING:
    import yaml

__all__ = ["MAX_DEPTH", "MAX_NODES", "Document", "KeyPath", "Plain", "read_document"]

MAX_DEPTH = 20
"""Lists and mappings inside one another; presets need six."""

MAX_NODES = 50_000
"""Values in one document."""

_MAX_DIGITS = 20
"""Of a whole number: 2^64 has twenty. Python refuses to read thousands with an error of its own."""

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""

Plain = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None
"""What a document is made of."""

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
# The characters that YAML 1.1 allows in a file (section 5.1), for a message with a line; spelled as
# PyYAML spells it, so that `re` compiles it once for both (17 ms).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# An escape such as "\e" can still put these into text, and from there on a terminal.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Document:
    """A YAML document as plain values.

    Attributes:
        value: the top value.
        file: how errors name the file.
    """

    def __init__(self, value: Plain, file: str, lines: dict[KeyPath, int]) -> None:
        self.value = value
        self.file = file
        self._lines = lines

    def line(self, path: KeyPath = ()) -> int:
        """Return the line of a value; of what should hold it, where there is no such value."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]


class _Open:
    """A list or mapping whose end has not come yet."""

    def __init__(self, value: dict[str, Plain] | list[Plain], path: KeyPath) -> None:
        self.value = value
        self.path = path
        self.key: str | None = None  # of the mapping's next value, once it was read


def read_document(text: str, where: str) -> Document:
    """Read one YAML document.

    It is built from the parser's events, one at a time and without recursion, so that a limit
    is met before anything large or deep exists.

    Args:
        text: the document.
        where: how errors name the file.

    Raises:
        DocumentError: with the line, for whatever cannot be read as this module says.
    """
    return _Builder(text, where).build()


class _Builder:
    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.lines: dict[KeyPath, int] = {(): 1}
        self.open: list[_Open] = []
        self.top: Plain = None
        self.nodes = 0

    def build(self) -> Document:
        import yaml  # some 30 ms, and only this module needs it

        self._check_characters()
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    hint = "keep one preset in one file"
                    self._refuse("a second document begins here", _line(event), hint)
            elif isinstance(event, yaml.AliasEvent):
                self._refuse_shared(event.anchor or "", _line(event))
            elif isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._collection(event, [])
            elif isinstance(event, yaml.MappingStartEvent):
                self._collection(event, {})
            elif isinstance(event, yaml.CollectionEndEvent):
                self.open.pop()
        if not documents:
            self._refuse("the file is empty", 1, "see presets/README.md for what a preset holds")
        return Document(self.top, self.where, self.lines)

    def _check_characters(self) -> None:
        # A character takes up to four bytes; the limit need not be exact for text given as str.
        if len(self.text) > MAX_BYTES:
            self._refuse("larger than 1 MiB", 1, "a preset is a few KiB")
        if found := _FORBIDDEN.search(self.text):
            line = self.text.count("\n", 0, found.start()) + 1
            character = f"a character that YAML does not allow (U+{ord(found[0]):04X})"
            self._refuse(character, line, "remove it")

    def _events(self) -> Iterator[yaml.Event]:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            yield from yaml.parse(self.text, Loader=loader)
        except yaml.MarkedYAMLError as error:
            line = 1 if error.problem_mark is None else error.problem_mark.line + 1
            self._refuse_broken(error.problem or "", line)
        except (yaml.YAMLError, ValueError) as error:
            # The parser in Python lets chr() raise ValueError on an escape beyond Unicode.
            self._refuse(f"not valid YAML: {shown(str(error), 60)}", 1, "check the quotes")

    def _refuse_broken(self, problem: str, line: int) -> NoReturn:
        lines = self.text.splitlines() or [""]
        line = min(line, len(lines))  # the end of the file counts as a line of its own
        if "nesting depth" in problem:  # libyaml's own limit, met while it looks ahead
            self._refuse_deep(line)
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        if "\t" in indent:
            self._refuse("a tab indents this line", line, "YAML indents with spaces only")
        hint = "check indents, quotes and colons on this line and the one before"
        self._refuse(f"not valid YAML: {printable(problem)}", line, hint)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        line = _line(event)
        self._refuse_marked(event, line)
        text: str = event.value
        if found := _CONTROL.search(text):
            message = f"a control character in a text (U+{ord(found[0]):04X})"
            self._refuse(message, line, "remove the escape")
        plain = event.style in (None, "")  # without quotes, neither | nor >
        value = self._resolve(text, line) if plain else text
        holder = self.open[-1] if self.open else None
        if holder is not None and isinstance(holder.value, dict) and holder.key is None:
            self._key(holder, holder.value, value, line)
        else:
            self._place(value, line)

    def _key(self, holder: _Open, mapping: dict[str, Plain], key: Plain, line: int) -> None:
        self._count(line)
        if not isinstance(key, str):
            self._refuse(f"the key {shown(key)} is not text", line, "quote it")
        if key in mapping:
            first = self.lines[(*holder.path, key)]
            message = f"{shown(key)} stands twice, first on line {first}"
            self._refuse(message, line, "remove one of the two")
        holder.key = key
        self.lines[(*holder.path, key)] = line

    def _collection(
        self, event: yaml.CollectionStartEvent, value: dict[str, Plain] | list[Plain]
    ) -> None:
        line = _line(event)
        self._refuse_marked(event, line)
        holder = self.open[-1] if self.open else None
        if holder is not None and isinstance(holder.value, dict) and holder.key is None:
            self._refuse("a list or mapping is used as a key", line, "keys are text")
        if len(self.open) == MAX_DEPTH:
            self._refuse_deep(line)
        self.open.append(_Open(value, self._place(value, line)))

    def _place(self, value: Plain, line: int) -> KeyPath:
        """Put a value where it belongs and return its path."""
        self._count(line)
        if not self.open:
            self.top = value
            return ()
        holder = self.open[-1]
        if isinstance(holder.value, list):
            path: KeyPath = (*holder.path, len(holder.value))
            holder.value.append(value)
            self.lines[path] = line
            return path
        key, holder.key = holder.key or "", None
        holder.value[key] = value
        return (*holder.path, key)

    def _count(self, line: int) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES} values", line, "a preset has about a hundred")

    def _resolve(self, text: str, line: int) -> Plain:
        """Return what a scalar without quotes stands for."""
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            if len(text.lstrip("+-")) > _MAX_DIGITS:
                message = f"a whole number of more than {_MAX_DIGITS} digits"
                self._refuse(message, line, "quote it if it is text")
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                self._refuse(f"{shown(text)} is beyond any number", line, "quote it if it is text")
            return number
        return text

    def _refuse_deep(self, line: int) -> NoReturn:
        self._refuse(f"more than {MAX_DEPTH} levels deep", line, "presets need six")

    def _refuse_marked(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            self._refuse_shared(event.anchor, line)
        tag: str | None = getattr(event, "tag", None)
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            self._refuse(f"the tag {shown(short)} is not read", line, "write the value without it")

    def _refuse_shared(self, name: str, line: int) -> NoReturn:
        message = f"the anchor or alias {shown(name)} is not read"
        self._refuse(message, line, "write the value out; quote it if it is text")

    def _refuse(self, message: str, line: int, hint: str) -> NoReturn:
        raise DocumentError(message, file=self.where, line=line, hint=hint)


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else int(mark.line) + 1
