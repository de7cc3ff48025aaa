"""Dockerfiles: the last stage's ENTRYPOINT and CMD, with ENV and ARG put in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kvcalc.manifests.found import Attached, Invocation, Word
from kvcalc.manifests.launches import Place, of_container
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.requests import with_visible
from kvcalc.manifests.substitution import interpolated, split_words
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

    def __init__(self, image: Word, env: dict[str, Word]) -> None:
        self.image = image
        self.env = dict(env)
        self.entry: list[Word] = []
        self.command: list[Word] = []
        self.files: dict[str, Attached] = {}
        self.line = image.line


def of_dockerfile(text: str, place: Place, marks: Templates) -> list[Invocation]:  # noqa: C901 - one branch an instruction
    """Return the server that a container of the file's last stage starts.

    Args:
        text: the file, with marks for templates.
        place: where it stands.
        marks: takes what further marks stand for.
    """
    arguments: dict[str, str] = {}
    stages: dict[str, _Stage] = {}
    stage: _Stage | None = None
    for instruction in _instructions(text):
        env = {} if stage is None else stage.env

        def lookup(name: str, env: dict[str, Word] = env) -> str | None:
            word = env.get(name)
            if word is not None:
                return None if word.unresolved else marks.restored(word.text)
            return arguments.get(name)

        match instruction.name:
            case "ARG":
                for part in instruction.text.split():
                    name, equals, value = part.partition("=")
                    if equals:
                        arguments[name] = marks.restored(
                            interpolated(value.strip("\"'"), lookup, marks, "dockerfile")
                        )
            case "FROM":
                stage = _from(instruction, stages, lookup, marks)
            case _ if stage is not None:
                _apply(instruction, stage, lookup, marks)
    if stage is None:
        return []
    words = [*stage.entry, *stage.command]
    launches = of_container(words, stage.image, stage.env, place, line=stage.line)
    if not words and stage.image.text.partition(":")[0] in stages:
        return []
    return [
        Invocation(
            name="image" if len(launches) == 1 else f"image/{number}",
            carrier="Dockerfile",
            file=place.file,
            line=stage.line,
            words=launch.words,
            image=stage.image,
            env=launch.env,
            gpu=with_visible(launch.gpu, launch.env),
            attached={**stage.files, **launch.attached},
        )
        for number, launch in enumerate(launches, 1)
    ]


def _from(
    instruction: _Instruction,
    stages: dict[str, _Stage],
    lookup: Callable[[str], str | None],
    marks: Templates,
) -> _Stage:
    parts = [p for p in instruction.text.split() if not p.startswith("--")]
    name = marks.restored(interpolated(parts[0] if parts else "", lookup, marks, "dockerfile"))
    base = stages.get(name.lower())
    stage = _Stage(Word(name, instruction.line), {})
    if base is not None:
        stage.image, stage.env = base.image, dict(base.env)
        stage.entry, stage.command = list(base.entry), list(base.command)
        stage.line = instruction.line
    if len(parts) > 2 and parts[1].lower() == "as":  # noqa: PLR2004
        stages[parts[2].lower()] = stage
    return stage


def _apply(
    instruction: _Instruction, stage: _Stage, lookup: Callable[[str], str | None], marks: Templates
) -> None:
    text, line = instruction.text, instruction.line
    if instruction.name == "ENV":
        pairs = _PAIR.findall(text)
        if not pairs:
            name, _, value = text.strip().partition(" ")
            pairs = [(name, value)]
        for name, value in pairs:
            given = value[1:-1] if value[:1] in ("'", '"') else value
            stage.env[name] = Word(interpolated(given, lookup, marks, "dockerfile"), line)
    elif instruction.name == "ENTRYPOINT":
        stage.entry, stage.command = _command(text, line, marks), []
    elif instruction.name == "CMD":
        stage.command = _command(text, line, marks)
    elif instruction.name == "COPY" and instruction.heredoc:
        path = text.split()[-1]
        stage.files[path] = Attached("", line + 1, instruction.heredoc)


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
