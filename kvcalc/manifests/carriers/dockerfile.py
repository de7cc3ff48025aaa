"""Dockerfiles: the last stage's ENTRYPOINT and CMD, with ENV and ARG put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.manifests.found import Attached, Finding, Invocation, Word
from kvcalc.manifests.launched import SHELL, Place
from kvcalc.manifests.launches import of_container
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.packages import installed_in
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.substitution import interpolated, kubelet, unexpanded
from kvcalc.manifests.templates import Templates

__all__ = ["of_dockerfile"]

_INSTRUCTION = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
_PAIR = re.compile(
    r"""([A-Za-z_][\w.]*)=((?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s"'\\])*)""", re.DOTALL
)
_ONLY_ARGUMENTS = {"HEALTHCHECK", "ONBUILD"}


class _Instruction(NamedTuple):
    name: str
    text: str
    line: int
    heredoc: str


class _Stage:
    """What a stage has said so far."""

    def __init__(self, image: Word, line: int) -> None:
        self.image = image
        self.line = line
        self.env: dict[str, Word] = {}
        self.entry: list[Word] | None = None  # None: the image's own
        self.command: list[Word] = []
        self.files: dict[str, Attached] = {}
        self.installed: dict[str, str] = {}

    def above(self, line: int) -> _Stage:
        """Return a stage that begins as this one has ended."""
        other = _Stage(self.image, line)
        other.env, other.installed = dict(self.env), dict(self.installed)
        other.entry = None if self.entry is None else list(self.entry)
        other.command = list(self.command)
        return other


def of_dockerfile(text: str, place: Place, marks: Templates) -> list[Invocation]:
    """Return the server that a container of the file's last stage starts.

    Args:
        text: the file, with marks for templates.
        place: where it stands.
        marks: takes what further marks stand for.
    """
    build = _Build(marks)
    for instruction in _instructions(text):
        build.take(instruction)
    stage = build.stage
    if stage is None:
        return []
    words = [*(stage.entry or ()), *stage.command]
    if not words and stage.image.text.partition(":")[0] in build.stages:
        return []
    findings: list[Finding] = []
    if words and not SHELL.fullmatch(words[0].text):
        words = [kubelet(unexpanded(word, findings, ""), stage.env) for word in words]
    launches = of_container(
        words,
        stage.image,
        stage.env,
        place,
        line=stage.line,
        under_entry_point=stage.entry is None,
    )
    several = len(launches) > 1
    return [
        launch._replace(
            image=stage.image,
            attached={**stage.files, **launch.attached},
            installed={**stage.installed, **launch.installed},
            findings=(*launch.findings, *findings),
        ).started(f"image/{number}" if several else "image", "Dockerfile", place.file, stage.line)
        for number, launch in enumerate(launches, 1)
    ]


class _Build:
    """The stages of a file, as far as it has been read."""

    def __init__(self, marks: Templates) -> None:
        self.marks = marks
        self.arguments: dict[str, str] = {}
        self.stages: dict[str, _Stage] = {}
        self.stage: _Stage | None = None

    def lookup(self, name: str) -> str | None:
        """Return the value of a variable."""
        word = None if self.stage is None else self.stage.env.get(name)
        if word is None:
            return self.arguments.get(name)
        return None if word.unresolved else self.marks.restored(word.text)

    def put_in(self, text: str) -> str:
        """Return a text with its variables put in, as marks."""
        return interpolated(text, self.lookup, self.marks, "dockerfile")

    def take(self, instruction: _Instruction) -> None:
        """Follow one instruction."""
        text, line = instruction.text, instruction.line
        if instruction.name == "ARG":
            self._arguments(text)
        elif instruction.name == "FROM":
            self._from(text, line)
        elif self.stage is not None:
            self._within(self.stage, instruction)

    def _arguments(self, text: str) -> None:
        for part in text.split():
            name, equals, value = part.partition("=")
            if equals:
                self.arguments[name] = self.marks.restored(self.put_in(value.strip("\"'")))

    def _from(self, text: str, line: int) -> None:
        parts = [part for part in text.split() if not part.startswith("--")]
        name = self.marks.restored(self.put_in(parts[0] if parts else ""))
        base = self.stages.get(name.lower())
        stage = _Stage(Word(name, line), line) if base is None else base.above(line)
        self.stage = stage
        match parts[1:3]:
            case [word, called] if word.lower() == "as":
                self.stages[called.lower()] = stage

    def _within(self, stage: _Stage, instruction: _Instruction) -> None:
        """Follow an instruction of a stage."""
        text, line = instruction.text, instruction.line
        match instruction.name:
            case "ENV":
                for name, value in _pairs(text):
                    stage.env[name] = Word(self.put_in(value), line)
            case "RUN":
                stage.installed |= installed_in(self.marks.restored(self.put_in(text)))
                stage.installed |= installed_in(instruction.heredoc)
            case "ENTRYPOINT":
                stage.entry, stage.command = _command(text, line, self.marks), []
            case "CMD":
                stage.command = _command(text, line, self.marks)
            case "COPY" if instruction.heredoc:
                body = Attached("", line + 1, instruction.heredoc)
                stage.files[text.split()[-1]] = body


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return what an ENV sets."""
    pairs = _PAIR.findall(text)
    if not pairs:
        name, _, value = text.strip().partition(" ")
        pairs = [(name, value)]
    return [(name, value[1:-1] if value[:1] in ("'", '"') else value) for name, value in pairs]


def _command(text: str, line: int, marks: Templates) -> list[Word]:
    """Return a command: JSON, or a shell's."""
    text = text.strip()
    if text.startswith("["):
        try:
            items = json.loads(text.replace("\\\n", " "))
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list):
            words = split_words(text[1:].replace(",", " "), Lines(line), marks)
            lines = {word.text.strip("\"' ]"): word.line for word in words}
            return [Word(str(i), lines.get(str(i), line)) for i in items]
    return [Word("/bin/sh", line), Word("-c", line), Word(text, line)]


def _instructions(text: str) -> Iterator[_Instruction]:
    """Yield the instructions, their lines joined, comments between them dropped."""
    rows = text.split("\n")
    at = 0
    while at < len(rows):
        start = at
        parts: list[str] = []
        while at < len(rows):
            row = rows[at]
            at += 1
            if row.lstrip().startswith("#"):
                parts += ["\\\n"] if parts else []
                if not parts:
                    start = at
                    break
                continue
            parts.append(row)
            if not row.rstrip().endswith("\\"):
                break
            parts[-1] = row.rstrip()[:-1] + "\\\n"
        whole = "".join(parts)
        found = _INSTRUCTION.fullmatch(whole)
        if found is None:
            continue
        body = ""
        if (heredoc := _HEREDOC.search(whole)) and found[1].upper() in ("RUN", "COPY", "ADD"):
            lines: list[str] = []
            while at < len(rows) and rows[at].strip() != heredoc[2]:
                lines.append(rows[at] + "\n")
                at += 1
            at += 1
            body = "".join(lines)
        if found[1].upper() not in _ONLY_ARGUMENTS:
            yield _Instruction(found[1].upper(), found[2], start + 1, body)
