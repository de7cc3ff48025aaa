"""What has been read of a command so far: settings, and what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from kvcalc.core.credentials import without_credentials
from kvcalc.core.errors import KvcalcError, printable
from kvcalc.manifests.commands.numbers import BadNumberError, decimal
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.found import Attached, Finding, Invocation, Level, Server, Setting, Word
from kvcalc.manifests.templates import Templates, marked
from kvcalc.models.documents import Plain, read_document

__all__ = ["Kind", "Places", "ReadFile", "Reading", "Value", "model_name"]


ReadFile = Callable[[str], Attached | None]
"""Returns the file that a server sees under a path; None where it cannot be had."""
Value = str | int | float | bool | None
Kind = Literal["field", "arg", "other"]
"""What a setting is: found.Setting."""
_OF_RELEASES = (
    *("unknown-flag", "removed-flag", "renamed-flag", "newer-flag", "ambiguous-flag"),
    "stray-word",  # behind a flag that nobody knows
)
_MOST_JSON = 2**17
_MOST_SHOWN = 40
_MOST_PATH = 1000
_NAME = re.compile(r"[$\w({][\w.:(){}$-]*", re.ASCII)
_SUFFIXED = re.compile(r'("(?:[^"\\]|\\.)*")|(\b\d{1,19}(?:\.\d{1,19})?)([kKmMgGtT])\b', re.ASCII)
_HUB_CACHE = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)(?:/snapshots/([^/]+))?(?:/.*)?$")


class Reading:
    """Settings and findings of one server, in the order in which they are read.

    Attributes:
        invocation: what is read.
        version: of the engine; None where nothing says it.
        env: variables, those in front of the command over those of the container.
        fork: of the engine, with flags of its own; "" for none.
        variables: the prefix of those that the image makes flags of; `*` for all; "" for none.
        own_releases: the image's tag counts releases of its vendor's own.
    """

    def __init__(
        self,
        invocation: Invocation,
        engine: str | None,
        version: str | None,
        read_file: ReadFile,
        *,
        fork: str = "",
        variables: str = "",
        own_releases: bool = False,
    ) -> None:
        self.invocation = invocation
        self.engine = engine
        self.version = version
        self.env = dict(invocation.env)
        self.model: Setting | None = None
        self.settings: dict[str, Setting] = {}
        self.findings: list[Finding] = []
        self.fork = fork
        self.variables = variables
        self.own_releases = own_releases
        self._read_file = read_file

    def server(self) -> Server:
        """Return what was read."""
        settings = tuple(self.settings.values())
        findings = (*self.invocation.findings, *map(self._judged, self.findings), *self._of_image())
        return Server(self.invocation, self.engine, self.version, self.model, settings, findings)

    def _judged(self, finding: Finding) -> Finding:
        """Return a finding as far as this release is known: a fork has flags of its own."""
        if finding.code not in _OF_RELEASES or not (self.fork or self.own_releases):
            return finding
        whose = self.fork or "the image's release"
        return finding._replace(level="note", cure=f"it may be one that {whose} has")

    def _of_image(self) -> Iterator[Finding]:
        """Yield what is assumed of an image whose engine is not the one that kvcalc knows."""
        image = self.invocation.image
        line, file = (self.invocation.line, "") if image is None else (image.line, image.file)
        if self.fork:
            message = f"{self.fork} is a fork: what it does otherwise is not modelled"
            yield Finding("fork", "note", message, "bear it in mind", line, file)
        if self.own_releases:
            message = (
                "the image's tag counts releases of its vendor, and which of the engine's it holds"
                " is not known: the newest one's rules are assumed"
            )
            yield Finding(
                "vendor-release", "note", message, "name it: --engine-version", line, file
            )

    def counts(self, resource: str) -> None:
        """Set what devices the image runs on, where that is no GPU."""
        gpu = self.invocation.gpu._replace(resource=resource)
        self.invocation = self.invocation._replace(gpu=gpu)

    def find(self, code: str, level: Level, message: str, cure: str, word: Word | None) -> None:
        """Add a finding at a word."""
        line, file = (word.line, word.file) if word is not None else (self.invocation.line, "")
        self.findings.append(Finding(code, level, message, cure, line, file))

    def put(self, name: str, value: Value, kind: Kind, written: str, word: Word) -> None:
        """Set a setting; a later one of the same name takes the place of an earlier."""
        self.settings.pop(name, None)
        value = without_credentials(value) if isinstance(value, str) else value
        self.settings[name] = Setting(
            name, value, kind, written, word.line, word.file, word.variables
        )

    def has(self, name: str) -> Value:
        """Return the value of a setting; None where there is none."""
        found = self.settings.get(name)
        return None if found is None else found.value

    def unresolved(self, written: str, word: Word) -> bool:
        """Whether a word has variables without a value, which is told."""
        if not word.unresolved:
            return False
        names = ", ".join(dict.fromkeys(_named(name) for name in word.unresolved))
        self.find(
            "unresolved-variable",
            "note",
            f"{written} hangs on {names}, which nothing here gives a value",
            "give it a value where the file is read, or a default in the file",
            word,
        )
        return True

    def number(
        self,
        name: str,
        kind: Kind,
        given: Given,
        parse: Callable[[str], int | float],
        low: float | None = None,
        high: float | None = None,
    ) -> int | float | None:
        """Set a number; None where it is none, which is told."""
        word = given.word
        value: int | float | None = None
        if not self.unresolved(given.written, word):
            value = self._parsed(name, given, parse, low, high)
            if value is None:
                return None
        self.put(name, value, kind, given.written, word)
        return value

    def _parsed(
        self,
        name: str,
        given: Given,
        parse: Callable[[str], int | float],
        low: float | None,
        high: float | None,
    ) -> int | float | None:
        try:
            value = parse(given.word.text)
        except BadNumberError as fault:
            kind = "a number" if parse is decimal else "a whole number"
            cure = fault.cure or f"write {kind} such as {example_of(name, low, high)}"
            if given.word.variables:
                cure = f"give the variable {kind}"
            elif given.word.text.lstrip().startswith("$"):
                cure = "nothing puts a value in for a variable here: write double quotes, or none"
            self.bad(given.written, given.word, cure)
            return None
        if (low is not None and value < low) or (high is not None and value > high):
            share = meant_share(value, high)
            cure = f"write {share}" if share else f"write a number {limits_of(low, high)}"
            self.bad(given.written, given.word, cure)
            return None
        return value

    def bad(self, written: str, word: Word, cure: str) -> None:
        """Tell a value that the engine does not take.

        What a variable of the environment holds is not repeated: it may be anything.
        """
        if written in self.env:
            self.refuse(f"{written} has a value that is not taken", word, cure)
        else:
            self.refuse(f"{written} is {_shown(word)}", word, cure)

    def refuse(self, message: str, word: Word, cure: str) -> None:
        """Tell a value that the engine does not take, without repeating it."""
        self.find("bad-value", "error", message, cure, word)

    def text(self, name: str, kind: Kind, given: Given) -> str | None:
        """Set a text; None where a variable leaves it open, which is told."""
        word = given.word
        value = None if self.unresolved(given.written, word) else word.text.strip()
        self.put(name, value, kind, given.written, word)
        return value

    def named(self, written: str, word: Word) -> None:
        """Set the model; the last one that is named counts."""
        said = without_credentials(word.text.strip())
        value, revision = (None, None) if self.unresolved(written, word) else model_name(said)
        self.model = Setting("model", value, "other", written, word.line, word.file, word.variables)
        if revision is not None:
            self.put("revision", revision, "other", written, word)

    def show(self, devices: tuple[str, ...]) -> None:
        """Set the cards that the server is shown."""
        gpu = self.invocation.gpu._replace(visible=devices)
        self.invocation = self.invocation._replace(gpu=gpu)

    def stray(self, words: Iterable[Word], program: str, cure: str) -> None:
        """Tell words that belong to no option."""
        for word in words:
            if self.unresolved("a word that stands alone", word) or not word.text.strip():
                continue
            message = f"a word belongs to no flag: {program} refuses it"
            self.find("stray-word", "error", message, cure, word)

    def not_modelled(self, written: str, word: Word, what: str) -> None:
        """Tell what bears on memory and is not counted."""
        self.find("not-modelled", "note", f"{written}: {what}", "bear it in mind", word)

    def json(self, given: Given) -> Plain:
        """Return a JSON value; None where it is none, which is told."""
        word = given.word
        if self.unresolved(given.written, word):
            return None
        try:
            return _json(word.text)
        except (ValueError, RecursionError):
            message = f"{given.written} is no JSON"  # its beginning may be anything
            self.find(
                "bad-value", "error", message, "write JSON, in single quotes in a shell", word
            )
            return None

    def file(self, written: str, word: Word) -> Attached | None:
        """Return a file that a command names; None where it cannot be had, which is told."""
        if self.unresolved(written, word):
            return None
        path = word.text.strip()
        try:
            found = self.invocation.attached.get(path) or self._read_file(path)
        except KvcalcError as fault:
            self._no_file(written, word, f"cannot be read: {fault.message}")
            return None
        except (OSError, ValueError):
            self._no_file(written, word, "cannot be read")
            return None
        if found is None:
            self._no_file(written, word, "is not at hand")
        return found

    def document(self, written: str, word: Word) -> tuple[dict[str, Plain], Places] | None:
        """Return the mapping of a YAML file that a command names; None where it cannot be read."""
        found = self.file(written, word)
        if found is None:
            return None
        text, templates = marked(found.text)
        try:
            read = read_document(text, found.file)
        except KvcalcError as fault:
            self._no_file(written, word, f"cannot be read: {fault.message}")
            return None
        value = {} if read.value is None else read.value
        if not isinstance(value, dict):
            self._no_file(written, word, "is no mapping")
            return None
        return value, Places(found.file, found.line, read.line, templates)

    def _no_file(self, written: str, word: Word, what: str) -> None:
        name = word.shown if word.variables else _shown(word)
        self.find(
            "config-not-read",
            "warning",
            f"{written} {name} {what}: its settings are not looked at",
            "put the file beside this one, or give the settings as flags",
            word,
        )


class Places:
    """Where the values of a configuration file stand."""

    def __init__(
        self,
        file: str,
        first: int,
        line: Callable[[tuple[str | int, ...]], int],
        templates: Templates,
    ) -> None:
        self._file = file
        self._first = max(first, 1)
        self._line = line
        self._templates = templates

    def word(self, text: str, *path: str | int) -> Word:
        """Return a value as a word at its place."""
        word = Word(text, self._first + self._line(path) - 1, file=self._file)
        return self._templates.finished(word)


def model_name(text: str) -> tuple[str, str | None]:
    """Return the model that a text names, and its revision where it says one.

    >>> model_name("hf://Qwen/Qwen3-8B")
    ('Qwen/Qwen3-8B', None)
    >>> model_name("/cache/hub/models--Qwen--Qwen3-32B/snapshots/abc123")
    ('Qwen/Qwen3-32B', 'abc123')
    """
    for scheme in ("hf://", "huggingface://", "https://huggingface.co/", "https://hf.co/"):
        if text.startswith(scheme) and not text.lower().endswith(".gguf"):
            text = text.removeprefix(scheme).strip("/")
            name, _, revision = text.partition(":") if scheme == "hf://" else (text, "", "")
            return name, revision or None
    match = _HUB_CACHE.search(text) if len(text) < _MOST_PATH else None
    if match is not None and not text.lower().endswith(".gguf"):
        revision = match[3]
        return f"{match[1]}/{match[2]}", revision if revision and revision.isalnum() else None
    return text, None


def _shown(word: Word) -> str:
    """Return a value as messages repeat it: cut, on one line, no value of a variable."""
    if word.variables:
        return f"what {word.shown} holds"
    text = printable(without_credentials(word.text))
    return repr(text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…")


def _named(name: str) -> str:
    """Return an unresolved variable's name, or a template's expression as it is written."""
    shown = printable(name)[:_MOST_SHOWN]
    return shown if _NAME.fullmatch(shown) else f"{{{{ {shown} }}}}"


def _json(text: str) -> Plain:
    """Read JSON whose bare numbers may have a suffix, as vLLM expands them.

    Raises:
        ValueError, RecursionError: it is none.
    """
    if len(text) > _MOST_JSON:
        raise ValueError
    try:
        found: Plain = json.loads(text)
    except ValueError:
        found = json.loads(_SUFFIXED.sub(_expanded, text))
    return found


def _expanded(match: re.Match[str]) -> str:
    from kvcalc.manifests.commands.numbers import short

    return match[1] or str(short(match[0]))


# What a setting's value looks like: examples and limits, as messages say them.

_LEAST = 1e-6  # a limit below it stands for "above 0"
_SHARE_TOO_LARGE = 2
_PERCENT = 100
_EXAMPLES = (
    # what a setting's name ends in, a value of that kind
    (r".*_bytes", "8589934592"),
    (r".*parallel_size(_local)?|nnodes|num_shard", "2"),
    (r".*(model_len|_tokens|ctx|ctx_size|context_length|seq_len)", "8192"),
    (r".*(block_size|tokens_per_block)", "16"),
    (r"max_num_seqs|.*_requests|.*batch_size", "64"),
    (r".*parallel", "4"),
    (r".*(utilization|fraction|fraction_static)", "0.9"),
)


def example_of(name: str, low: float | None, high: float | None) -> str:
    """Return a value that a setting may have.

    >>> example_of("tensor_parallel_size", 1, None)
    '2'
    """
    for pattern, value in _EXAMPLES:
        if re.fullmatch(pattern, name):
            return value
    if high == 1 and low is not None and low < _LEAST:
        return "0.9"
    return f"{max(low or 0, 1):g}"


def limits_of(low: float | None, high: float | None) -> str:
    """Return what lies between limits, in words.

    >>> limits_of(1e-9, 1), limits_of(1, None), limits_of(1, 8)
    ('above 0 and up to 1', 'from 1', 'from 1 to 8')
    """
    tiny = low is not None and 0 < low < _LEAST
    begin = "" if low is None else "above 0" if tiny else f"from {low:g}"
    end = "" if high is None else f"up to {high:g}" if tiny or low is None else f"to {high:g}"
    return (" and " if tiny else " ").join(filter(None, (begin, end)))


def meant_share(value: float, high: float | None) -> str:
    """Return the share that a percentage means, where a share is wanted; "" where it is none.

    A little more than one is a share too large, and no percentage.

    >>> meant_share(90, 1), meant_share(1.2, 1)
    ('0.9', '')
    """
    if high != 1 or not _SHARE_TOO_LARGE < value <= _PERCENT:
        return ""
    return f"{value / _PERCENT:g}"
