"""One file -> the servers that it starts: its carrier by what it holds, then by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kvcalc.core.errors import InputError, printable
from kvcalc.manifests.carriers.dockerfile import of_dockerfile
from kvcalc.manifests.carriers.units import is_ini, is_unit, of_unit
from kvcalc.manifests.found import Attached, Invocation, Word
from kvcalc.manifests.launches import Launch, Place, of_script
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.sources import Folder, NoServerError, PassedOverError, decoded
from kvcalc.manifests.templates import Lookup, Templates, lookup_of, marked

__all__ = ["MAX_SERVERS", "read_source"]


_DOCKERFILE = re.compile(r"(?i)(^|[/.])(docker|container)file([-.][\w.-]*)?$")
_IS_DOCKERFILE = re.compile(
    r"(?i)\A(?:[ \t]*#[^\n]*\n|[ \t]*ARG[ \t][^\n]*\n|[ \t]*\n)*[ \t]*FROM[ \t]+\S+"
)
_YAML_NAME = re.compile(r"(?i)\.(ya?ml|json|tpl|j2|tmpl|gotmpl)$|(^|/)Kustomization$")
_SHELL_NAME = re.compile(r"(?i)\.(sh|bash|zsh|env|tftpl)$")
_SHEBANG = re.compile(r"\A#!\s*\S*(?:sh|env\s+\w*sh)\b")
_IS_YAML = re.compile(
    r"\A(?:[ \t]*#[^\n]*\n|[ \t]*\n|[ \t]*\{[{%#][^\n]*\n)*"
    r"(?:---|[A-Za-z_.\"'\ue000][^\n]*:(?:\s|\n|$)|- |[{\[])"
)
_HEREDOC = re.compile(r"<<[-~]?[ \t]*[\"']?(\w{1,60})[\"']?[^\n]*\n")
_MOST_HEREDOCS = 500
MAX_SERVERS = 2_000
"""Of one file: the largest public catalogues start some 300."""
_HEAD = 2**16  # characters by which a carrier is told
_LARGE = 2**18  # characters: what is larger and names no engine is not read further
_LINES = 2**20  # characters of a file that is read line by line
_DEPTH = 3  # files that files write
_HINT = (
    "kvcalc reads shell scripts, Dockerfiles, Compose, Kubernetes, KServe, llm-d, Helm values, "
    "Flux and Argo releases, Ray Serve, SkyPilot, llama-swap, systemd units, Python launchers"
)


def read_source(
    name: str,
    text: bytes | str,
    folder: Folder | None = None,
    *,
    values: Mapping[str, object] | None = None,
) -> list[Invocation]:
    """Return the servers that a file starts, at least one.

    Args:
        name: as messages name it; `-` for stdin.
        text: what it holds.
        folder: the files beside it: `.env`, `values.yaml`, patches, scripts that it sources.
        values: Helm values for its templates, in place of those beside it.

    Raises:
        NoServerError: it starts no server.
        PassedOverError: a template that cannot be read without being rendered.
        InputError: it is no text, too large, or broken (with the line).
    """
    whole = decoded(text, name)
    reader = _Reader(name, folder or Folder(), values)
    try:
        large = len(whole) > _LARGE and not MENTIONS.search(whole)
        found = [] if large else reader.read(whole, name, 1, 0)
    except RecursionError:
        raise InputError(
            "nested too deep", hint="is it a deployment?", where=printable(name)
        ) from None
    except InputError as error:
        error.where = error.where or printable(name)
        if not reader.templated:
            raise
        hint = "render it first: helm template . | kvcalc check -"
        raise PassedOverError(
            f"a template that cannot be read as it is: {error.message}",
            hint=hint,
            where=error.where,
        ) from None
    if len(found) > MAX_SERVERS:
        message = f"starts {len(found)} servers, more than {MAX_SERVERS}"
        raise InputError(message, hint="split the file", where=printable(name))
    if not found:
        raise NoServerError("starts no server that kvcalc knows", hint=_HINT, where=printable(name))
    return _named([_at_home(each) for each in reader.finished(found)])


class _Reader:
    def __init__(self, file: str, folder: Folder, values: Mapping[str, object] | None) -> None:
        self.file = file
        self.folder = folder
        self.values = values
        self.marks = Templates()
        self.templated = False

    @property
    def place(self) -> Place:
        return Place(self.file, self.folder.read, finished=self.marks.finished)

    def read(self, text: str, name: str, first: int, depth: int) -> list[Invocation]:
        """Return the servers of a file, or of one that a file writes."""
        if depth > _DEPTH:
            return []
        base = os.path.basename(name)
        reader = next((read for ending, read in _BY_ENDING if ending.search(base)), None)
        if reader is not None:
            return reader(self, text, depth)
        text = self.marked(text)
        if is_unit(text):
            self.small(text, "a unit")
            called = base.rsplit(".", 1)[0] or "unit"
            return of_unit(text, called, self.place, self.marks, first)
        if is_ini(text):
            return []
        head = text[:_HEAD]
        yaml = _YAML_NAME.search(base) is not None
        if not yaml and (_DOCKERFILE.search(base) or _IS_DOCKERFILE.match(head)):
            if is_modelfile(text) and not re.search(r"(?im)^[ \t]*(CMD|ENTRYPOINT|RUN)\s", text):
                return of_modelfile(text, self.place)
            self.small(text, "a Dockerfile")
            return of_dockerfile(text, self.place, self.marks)
        if _SHEBANG.match(text) or _SHELL_NAME.search(base):
            return self.shell(text, first, depth)
        if yaml or _IS_YAML.match(head):
            return self.yaml(text, first)
        if not MENTIONS.search(text):
            return []
        return self.shell(text, first, depth)

    def small(self, text: str, what: str) -> None:
        """Refuse a file of lines that is larger than any was ever written."""
        if len(text) > _LINES:
            message = f"{what} larger than {_LINES // 2**20} MiB"
            raise InputError(message, hint="is it a deployment?", where=printable(self.file))

    def yaml(self, text: str, first: int) -> list[Invocation]:
        from kvcalc.manifests.carriers.yaml_files import of_yaml

        return of_yaml(text, self.file, self.folder, self.marks, first)

    def shell(self, text: str, first: int, depth: int) -> list[Invocation]:
        def inner(path: str, body: Attached) -> list[Invocation]:
            return self.read(body.text, path, body.line, depth + 1)

        return of_shell(text, self.place, inner, first)

    def marked(self, text: str) -> str:
        """Put marks in place of templates, with the values that stand beside."""
        if "{{" not in text and "{%" not in text:
            return text
        self.templated = True
        text, templates = marked(text, self.lookup(), self.marks)
        self.marks = templates
        return text

    def lookup(self) -> Lookup | None:
        """Return the values for `.Values`: given, or of the chart that the file stands in."""
        if self.values is None:
            for name in ("values.yaml", "../values.yaml"):
                text = self.folder.read(name)
                if text is None:
                    continue
                from kvcalc.manifests.documents import read_documents

                clean, templates = marked(text)
                try:
                    documents = read_documents(clean, name, templates)
                except InputError:
                    continue
                plain = documents[0].plain() if documents else {}
                self.values = plain if isinstance(plain, dict) else {}
                break
        return None if self.values is None else lookup_of(self.values)

    def markdown(self, text: str, depth: int) -> list[Invocation]:
        """Return the servers of a Markdown file's blocks; a block that is broken is passed over."""
        found: list[Invocation] = []
        for block in blocks(text):
            if not MENTIONS.search(block.text) and "kind:" not in block.text:
                continue
            endings = {"yaml": "x.yaml", "yml": "x.yaml", "dockerfile": "Dockerfile"}
            name = endings.get(block.language, "")
            if block.language in ("bash", "sh", "shell", "console", "zsh", "shell-session"):
                name = "x.sh"
            elif not name and block.language not in ("", "text", "ini", "systemd", "json", "toml"):
                continue
            try:
                found += self.read(block.text, name, block.line, depth + 1)
            except InputError:
                continue
        return found

    def heredocs(self, text: str, depth: int) -> list[Invocation]:
        """Return the servers of the here-documents of a Terraform file (`user_data`)."""
        found: list[Invocation] = []
        open_ended: set[str] = set()
        at = 0
        for heredoc in list(_HEREDOC.finditer(text))[:_MOST_HEREDOCS]:
            end = heredoc[1]
            if heredoc.start() < at or end in open_ended:
                continue
            closing = re.compile(rf"^[ \t]*{end}[ \t]*$", re.MULTILINE).search(text, heredoc.end())
            if closing is None:
                open_ended.add(end)
                continue
            at = closing.end()
            body = text[heredoc.end() : closing.start()]
            if MENTIONS.search(body):
                first = text.count("\n", 0, heredoc.end()) + 1
                try:
                    found += self.read(body, "", first, depth + 1)
                except InputError:
                    continue
        return found

    def python(self, text: str, _depth: int) -> list[Invocation]:
        """Return the servers of a Python file, where it names an engine."""
        from kvcalc.manifests.carriers.python_files import STARTS, of_python

        return of_python(text, self.place, self.marks) if STARTS.search(text) else []

    def finished(self, found: list[Invocation]) -> list[Invocation]:
        """Put what the marks stand for in place of them."""
        if not self.marks:
            return found
        word = self.marks.finished
        return [
            each._replace(
                name=self.marks.restored(each.name),
                words=tuple(word(w) for w in each.words),
                image=None if each.image is None else word(each.image),
                env={self.marks.restored(key): word(value) for key, value in each.env.items()},
                attached={
                    self.marks.restored(path): body._replace(text=self.marks.restored(body.text))
                    for path, body in each.attached.items()
                },
                gpu=each.gpu._replace(
                    product=None if each.gpu.product is None else word(each.gpu.product),
                    choices=tuple(word(w) for w in each.gpu.choices),
                ),
            )
            for each in found
        ]


_BY_ENDING = (
    # what a file's name ends in, and what reads it
    (re.compile(r"(?i)\.(md|markdown|mdx|rst)$"), _Reader.markdown),
    (re.compile(r"(?i)\.tf$"), _Reader.heredocs),
    (re.compile(r"(?i)\.py$"), _Reader.python),
)


def _at_home(found: Invocation) -> Invocation:
    """Leave the file out of what stands in the server's own."""
    own = found.file
    gpu = found.gpu

    def word(each: Word) -> Word:
        return each._replace(file="") if each.file == own else each

    return found._replace(
        words=tuple(word(each) for each in found.words),
        image=None if found.image is None else word(found.image),
        env={name: word(each) for name, each in found.env.items()},
        gpu=gpu._replace(
            product=None if gpu.product is None else word(gpu.product),
            choices=tuple(word(each) for each in gpu.choices),
            file="" if gpu.file == own else gpu.file,
        ),
        findings=tuple(
            each._replace(file="") if each.file == own else each for each in found.findings
        ),
    )


def _named(found: list[Invocation]) -> list[Invocation]:
    """Give the servers of a file names that are theirs alone."""
    counts: dict[str, int] = {}
    for each in found:
        counts[each.name] = counts.get(each.name, 0) + 1
    used: dict[str, int] = {}
    named: list[Invocation] = []
    taken = set(counts)
    for each in found:
        name = each.name
        if counts[name] > 1:
            while True:
                used[name] = used.get(name, 0) + 1
                if (new := f"{name}/{used[name]}") not in taken:
                    break
            taken.add(new)
            name = new
        named.append(each._replace(name=name))
    return named


# Ollama's Modelfile: FROM and PARAMETER.

_FROM = re.compile(r"^\s*FROM\s+(\S+)", re.IGNORECASE)
_OWN = re.compile(
    r"^[ \t]*(PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE|LICENSE)\s", re.IGNORECASE | re.MULTILINE
)


def is_modelfile(text: str) -> bool:
    """Whether a text is a Modelfile, not a Dockerfile."""
    return bool(_OWN.search(text)) and bool(re.search(r"(?im)^[ \t]*FROM[ \t]+\S", text))


def of_modelfile(text: str, place: Place) -> list[Invocation]:
    """Return the model that a Modelfile makes, as `ollama create` of it."""
    for number, row in enumerate(text.split("\n"), 1):
        if found := _FROM.match(row):
            words = ("ollama", "create", "model", "-f", "Modelfile")
            return [
                Invocation(
                    name=found[1],
                    carrier="Modelfile",
                    file=place.file,
                    line=number,
                    words=tuple(Word(word, number) for word in words),
                    attached={"Modelfile": Attached(place.file, 1, text)},
                    engine="ollama",
                )
            ]
    return []


# Markdown: what stands between its fences, each block as its own language says.

_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})[ \t]*([\w+.-]*)[^\n]*$", re.MULTILINE)
_PROMPT = re.compile(r"^[ \t]*[$#] (?=\S)", re.MULTILINE)
_MOST = 2_000


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        language: as its fence says; "" without.
        text: of it, indented as the fence is no longer.
        line: where it begins.
    """

    language: str
    text: str
    line: int


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a Markdown text."""
    at, row, counted = 0, 1, 0
    for _ in range(_MOST):
        opening = _FENCE.search(text, at)
        if opening is None:
            return
        row += text.count("\n", counted, opening.start())
        counted = opening.start()
        start = opening.end() + 1
        end, after = len(text), len(text)
        for closing in _FENCE.finditer(text, start):
            if closing[1].startswith(opening[1]) and not closing[2]:
                end, after = closing.start(), closing.end()
                break
        inside = text[start:end]
        indent = re.match(r"[ \t]*", text[opening.start() : opening.end()])
        if indent is not None and indent[0]:
            inside = re.sub(f"(?m)^{indent[0]}", "", inside)
        language = opening[2].lower()
        if language in ("console", "shell-session", "terminal") or (
            language in ("", "bash", "sh", "shell") and _PROMPT.match(inside)
        ):
            inside = re.sub(r"(?m)^[ \t]*\$ ", "", inside)
        yield Block(language, inside, row + 1)
        at = after


# Shell scripts, and the files that they write: units, Compose files, manifests, other scripts.

MENTIONS = re.compile(
    r"(?i)vllm|sglang|llama-server|llama\.cpp|llamafile|koboldcpp|trtllm|tensorrt|lmdeploy|ollama|"
    r"text-generation|huggingfaceserver|dynamo\.|llama_cpp|/server\b"
)
"""What a script that starts a server of a known engine mentions."""
_WRITTEN = re.compile(r"(?i)\.(ya?ml|service|container|conf|sh|py)$|(docker|container|model)file$")
_APPLIED = re.compile(r"(kubectl|oc|docker|podman|docker-compose|helm)$")
Inner = Callable[[str, Attached], list[Invocation]]
"""Reads a file that a script writes: its path, and itself."""


def of_shell(text: str, place: Place, inner: Inner, first: int = 1) -> list[Invocation]:
    """Return the servers that a script starts, and those of the files that it writes.

    Args:
        text: the script.
        place: where it stands.
        inner: reads a file that it writes; an InputError of it is passed over.
        first: the line of the file that it begins on.

    Raises:
        InputError: with the line: nothing closes a quote or brace; too large, too deep.
    """
    if not MENTIONS.search(text):
        return []
    launches, script = of_script(text, Lines(first), {}, place)
    found = of_launches(launches, place)
    written = {
        path: body
        for path, body in script.files.items()
        if _WRITTEN.search(path) or body.text.startswith("#!")
    }
    for ran in script.commands:
        if ran.stdin is not None and any(_APPLIED.search(w.text) for w in ran.words[:3]):
            written.setdefault(f"-{ran.line}", ran.stdin)
    for path, body in written.items():
        try:
            more = inner(path, body)
        except InputError:
            continue
        found += more
    return found


def of_launches(launches: list[Launch], place: Place) -> list[Invocation]:
    """Return the servers of a script's commands."""
    return [launch.started(launch.name or "server", "shell", place.file) for launch in launches]
