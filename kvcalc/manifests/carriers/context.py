"""What the carriers of one file share."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping

from kvcalc.core.errors import InputError
from kvcalc.manifests.documents import Node, read_documents
from kvcalc.manifests.found import Attached, Word
from kvcalc.manifests.launches import Place
from kvcalc.manifests.sources import Folder, beside
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.templates import Templates, marked

__all__ = ["Context", "as_flags", "kebab"]

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Context:
    """A file that is read.

    Attributes:
        file: as messages name it.
        folder: the files beside it.
        marks: what its marks stand for.
        config_maps: the ConfigMaps of the file, by name: key -> value.
        documents: all documents of the file.
    """

    def __init__(self, file: str, folder: Folder, marks: Templates) -> None:
        self.file = file
        self.folder = folder
        self.marks = marks
        self.config_maps: dict[str, Mapping[str, Node]] = {}
        self.documents: list[Node] = []

    @property
    def place(self) -> Place:
        """Where its commands stand."""
        return Place(self.file, self.folder.read, finished=self.marks.finished)

    def of_file(self, path: str) -> Context:
        """Return the context of a file beside this one, by its path from here."""
        return Context(beside(self.file, path), self.folder, self.marks)

    def within(self, file: str) -> Context:
        """Return it as another file's: with the same files beside and ConfigMaps."""
        if file == self.file:
            return self
        other = Context(file, self.folder, self.marks)
        other.config_maps, other.documents = self.config_maps, self.documents
        return other

    def word(self, node: Node, text: str | None = None) -> Word:
        """Return a scalar, or another text in its place, as a word."""
        file = "" if node.file.name == self.file else node.file.name
        return Word(node.raw if text is None else text, node.line, file=file)

    def words(self, node: Node) -> list[Word]:
        """Return a command: a list's items, or a text split at its blanks."""
        if node.is_list:
            return [self.word(item) for item in node.items if isinstance(item.value, str)]
        return split_words(node.raw, node.lines(), self.marks) if node.is_text else []

    def attached(self, node: Node) -> Attached:
        """Return a scalar as a file."""
        return Attached(node.file.name, node.lines().at(0, 0), node.text)

    def find(self, kind: str, name: str) -> Node | None:
        """Return a resource of the same file, or of one beside it; None where there is none."""
        documents = [*self.documents]
        for other, text in self.folder.near(".yaml", ".yml") if name else ():
            if kind in text and name in text and other != os.path.basename(self.file):
                file = beside(self.file, other)
                with contextlib.suppress(InputError):
                    documents += read_documents(marked(text, None, self.marks)[0], file, self.marks)
        for each in documents:
            if each.get("kind").text == kind and each.get("metadata", "name").text == name:
                return each
        return None

    def nested(self, node: Node) -> list[Node]:
        """Return the YAML documents that a scalar holds."""
        return read_documents(node.raw, node.file.name, self.marks, node.lines().at(0, 0))


def kebab(key: str) -> str:
    """Return a camelCase or snake_case key as a flag's name.

    >>> kebab("maxModelLen")
    'max-model-len'
    """
    return _CAMEL.sub("-", key).replace("_", "-").lower()


def as_flags(keys: Iterable[tuple[str, Node]], context: Context) -> list[Word]:
    """Return settings given as keys as the flags that they become.

    A truth becomes the flag or its `--no-` form, a list several values, a mapping JSON.
    """
    words: list[Word] = []
    for key, node in keys:
        flag = key if key.startswith("-") else "--" + kebab(key)
        if node.is_null:
            words += [Word(flag, node.line)] if key.startswith("-") else []
            continue
        if node.style == "" and (node.is_true or node.is_false):
            name = flag if node.is_true else "--no-" + flag[2:]
            words.append(Word(name, node.line))
            continue
        words.append(Word(flag, node.line))
        if node.is_mapping:
            import json

            words.append(Word(json.dumps(node.plain()), node.line))
        elif node.is_list:
            words += [context.word(item) for item in node.items]
        else:
            words.append(context.word(node))
    return words
