"""YAML as people deploy it: many documents, each scalar as it is written, the line of everything.

More is taken than presets may hold (`models.documents`): anchors, aliases and merge keys, tags
(which are dropped), keys that are no text, JSON. Scalars stay the text that they were written as,
for a flag's value is text: `0.90` is not 0.9. Of a key that stands twice the last counts, and it
is noted: Helm takes such files, Compose and the API server do not. What would harm is refused with
its line: aliases that expand beyond a limit (a "YAML bomb"), an alias inside its own anchor, depth,
tabs, control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kvcalc.core.errors import InputError, printable
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.templates import Templates

if TYPE_CHECKING:
    import yaml

__all__ = ["MAX_DEPTH", "MAX_NODES", "Node", "read_documents"]


MAX_DEPTH = 64
"""Lists and mappings inside one another, aliases put in."""
MAX_NODES = 150_000
"""Values in one file, aliases put in: the largest public ones hold some 20,000."""
_MOST_SHOWN = 60
_MAX_DOCUMENTS = 2_000
# The characters that YAML 1.1 allows in a file (section 5.1).
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_JSON_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
_MERGE = "<<"


def read_documents(
    text: str, where: str, templates: Templates | None = None, first: int = 1
) -> list[Node]:
    """Read the documents of a YAML or JSON text.

    They are built from the parser's events, one at a time and without recursion, so that a limit
    is met before anything large or deep exists.

    Args:
        text: the file.
        where: how errors name it.
        templates: what `{{ }}` stood in the text before marks took its place. Of a key that then
            stands twice (both branches of an `if`) the first is kept.
        first: the line of the file that the text begins on.

    Raises:
        InputError: with the line, for whatever cannot be read as this module says.
    """
    if found := _FORBIDDEN.search(text):
        line = text.count("\n", 0, found.start()) + first
        code = f"U+{ord(found[0]):04X}"
        _refuse(where, line, f"a character that YAML does not allow ({code})", "is it binary?")
    if text.lstrip()[:1] in ("{", "["):  # YAML takes JSON, but for the tabs that indent it
        text = _JSON_INDENT.sub(lambda indent: indent[0].replace("\t", "  "), text)
    return _Builder(text, where, Templates() if templates is None else templates, first).build()


class _Open:
    """A list or mapping whose end has not come yet."""

    __slots__ = ("anchor", "key", "key_line", "merged", "node")

    def __init__(self, node: Node, anchor: str | None) -> None:
        self.node = node
        self.anchor = anchor
        self.key: str | None = None
        self.key_line = 0
        self.merged: list[Node] = []


class _Builder:
    def __init__(self, text: str, where: str, templates: Templates, first: int) -> None:
        self.text = text
        self.first = first
        self.where = where
        self.file = Shared(text, templates, first, where)
        self.lenient = bool(templates)  # both branches of an `if` stand in the text
        self.open: list[_Open] = []
        self.anchors: dict[str, Node | None] = {}  # None while it is open
        self.tops: list[Node] = []
        self.total = 0
        self.documents = 0

    def build(self) -> list[Node]:
        import yaml  # some 30 ms, and only this module needs it

        scalar, alias = yaml.ScalarEvent, yaml.AliasEvent
        start, sequence = yaml.CollectionStartEvent, yaml.SequenceStartEvent
        end, document = yaml.CollectionEndEvent, yaml.DocumentStartEvent
        for event in self._events():
            if isinstance(event, scalar):
                self._scalar(event)
            elif isinstance(event, start):
                self._start(event, [] if isinstance(event, sequence) else {})
            elif isinstance(event, end):
                self._end(event)
            elif isinstance(event, alias):
                self._alias(event)
            elif isinstance(event, document):
                self.documents += 1
                self.anchors.clear()
                if self.documents > _MAX_DOCUMENTS:
                    self._refuse(event, f"more than {_MAX_DOCUMENTS} documents", "split the file")
        return [top for top in self.tops if not top.is_null]

    def _events(self) -> Iterator[yaml.Event]:
        import yaml

        try:
            yield from yaml.parse(self.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            self._refuse_broken(error.problem or "", 0 if mark is None else mark.line)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
            message = f"not valid YAML: {_short(str(error))}"
            _refuse(self.where, self.first, message, "check the quotes")

    def _refuse_broken(self, problem: str, row: int) -> NoReturn:
        lines = self.file.source_lines or [""]
        row = min(row, len(lines) - 1)  # the end of the file counts as a line of its own
        line = row + self.first
        if "nesting depth" in problem:
            _refuse(self.where, line, f"more than {MAX_DEPTH} levels deep", "is it a deployment?")
        for at in (row, row - 1):
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            if at >= 0 and "\t" in indent:
                message = "a tab indents this line"
                _refuse(self.where, at + self.first, message, "YAML indents with spaces only")
        hint = "check indents, quotes and colons on this line and the one before"
        _refuse(self.where, line, f"not valid YAML: {_short(problem)}", hint)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        style = "" if event.style is None else event.style
        node = Node(event.value, _row(event.start_mark) + self.first, self.file, style)
        node.end = _row(event.end_mark) + self.first
        if event.anchor:
            self.anchors[event.anchor] = node
        holder = self.open[-1] if self.open else None
        if holder is not None and holder.key is None and isinstance(holder.node.value, dict):
            holder.key, holder.key_line = event.value, node.line
            self._count(1, node.line)
            return
        self._place(node, event)

    def _start(self, event: yaml.NodeEvent, value: dict[str, Node] | list[Node]) -> None:
        holder = self.open[-1] if self.open else None
        if holder is not None and isinstance(holder.node.value, dict) and holder.key is None:
            self._refuse(event, "a list or mapping is used as a key", "quote it if it is text")
        if len(self.open) >= MAX_DEPTH:
            self._refuse(event, f"more than {MAX_DEPTH} levels deep", "is it a deployment?")
        if event.anchor:
            self.anchors[event.anchor] = None
        node = Node(value, _row(event.start_mark) + self.first, self.file)
        self.open.append(_Open(node, event.anchor))

    def _end(self, event: yaml.Event) -> None:
        closed = self.open.pop()
        node = closed.node
        for merged in closed.merged:
            for key, each in merged.fields.items():
                if key not in node.fields:
                    node.fields[key] = each
                    node.key_lines[key] = merged.key_lines.get(key, each.line)
        node.end = _row(event.end_mark) + self.first
        if closed.anchor:
            self.anchors[closed.anchor] = node
        self._place(node, event)

    def _alias(self, event: yaml.AliasEvent) -> None:
        name = str(event.anchor)
        node = self.anchors.get(name)
        if name not in self.anchors:
            self._refuse(event, f"no anchor &{_short(name)} stands before this", "check the name")
        if node is None:
            self._refuse(event, f"&{_short(name)} holds itself", "write the value out")
        holder = self.open[-1] if self.open else None
        if holder is not None and isinstance(holder.node.value, dict) and holder.key is None:
            if not isinstance(node.value, str):
                self._refuse(event, "a list or mapping is used as a key", "write the key out")
            holder.key, holder.key_line = node.value, _row(event.start_mark) + self.first
            return
        self._place(node, event, node.size)

    def _place(self, node: Node, event: yaml.Event, more: int = 1) -> None:
        """Put a value where it belongs; it counts as `more` values."""
        line = _row(event.start_mark) + self.first
        self._count(more, line)
        if not self.open:
            self.tops.append(node)
            return
        holder = self.open[-1]
        above = holder.node
        if len(self.open) + node.height > MAX_DEPTH:
            self._refuse(event, f"more than {MAX_DEPTH} levels deep", "is it a deployment?")
        above.size += node.size
        above.height = max(above.height, node.height + 1)
        if isinstance(above.value, list):
            above.value.append(node)
            return
        key, holder.key = holder.key or "", None
        if key == _MERGE and not isinstance(node.value, str):
            holder.merged += [node] if node.is_mapping else list(node.items)
            return
        mapping = above.fields
        if key in mapping:
            if self.lenient:
                return
            shown = _short(self.file.templates.restored(key))
            self.file.duplicates.append((shown, holder.key_line, above.key_lines[key]))
        mapping[key] = node
        above.key_lines[key] = holder.key_line

    def _count(self, more: int, line: int) -> None:
        self.total += more
        if self.total > MAX_NODES:
            message = f"more than {MAX_NODES} values, aliases put in"
            _refuse(self.where, line, message, "write the values out, in several files")

    def _refuse(self, event: yaml.Event, message: str, hint: str) -> NoReturn:
        _refuse(self.where, _row(event.start_mark) + self.first, message, hint)


def _row(mark: Any) -> int:
    """Return the row of a mark; the reader in C and the one in Python have types of their own."""
    return 0 if mark is None else int(mark.line)


def _refuse(where: str, line: int, message: str, hint: str) -> NoReturn:
    raise InputError(message, hint=hint, where=f"{printable(where)}:{line}")


def _short(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


# A value of a document: what it holds, where it stands, what it says when asked.

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
