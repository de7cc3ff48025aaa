"""Files that may start servers: found in folders, read with a limit, and the files beside them."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, NoReturn

from kvcalc.core.errors import InputError, printable

__all__ = [
    "MAX_BYTES",
    "Folder",
    "NoServerError",
    "PassedOverError",
    "Source",
    "beside",
    "charts_of",
    "decoded",
    "find",
    "is_values_of",
]

MAX_BYTES = 8 * 2**20
"""Of one file. Deployments are a few KiB; catalogues of models reach some hundred."""

_STDIN = "-"
_HERE = os.path.join(".", "")
_VALUES = re.compile(r"values[\w.-]*\.ya?ml", re.IGNORECASE)
_SKIPPED = {"node_modules", "__pycache__", "venv", "site-packages", "dist", "build", "target"}
_MOST_FILES = 50_000  # looked at in one walk
_MOST_DEEP = 24
_BESIDE = 2**20  # a .env, a values.yaml
_MOST_NEAR = 200  # files of one folder
_HANDED = ("/dev/fd/", "/proc/self/fd/")
_SPECIAL = (
    (stat.S_ISFIFO, "a named pipe, which may never be written"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_ENDINGS = (
    *(".yaml", ".yml", ".json", ".sh", ".bash", ".service", ".container", ".tf", ".tpl"),
    *(".j2", ".dockerfile", ".containerfile", ".modelfile", ".conf", ".py"),
)
_NAMES = re.compile(r"(?i)^(docker|container|model)file([.-].*)?$|\.(docker|container)file$")
_OWN = re.compile(r"(?i)(?:^|[/.])kvcalc\.ya?ml$")
_LARGE_JSON = 2**20
_JSON_KEYS = re.compile(rb'"(?:apiVersion|services|image|command|cmd|args)"\s*:')
_MARKERS = re.compile(
    rb"(?i)vllm|sglang|llama-server|llama\.cpp|llama-swap|trtllm|tensorrt|text-generation|"
    rb"lmdeploy|ollama|kserve|huggingfaceserver|llminferenceservice|llmkube|kaito|modelservice|"
    rb"LLMConfig|llm_configs|num_ctx"
)


class NoServerError(InputError):
    """A file that can be read and starts no server: of no interest where it was merely met."""


class PassedOverError(InputError):
    """A file that is not read, though nothing is wrong with it: a template, a link elsewhere."""


class Folder:
    """The files beside a file: only below its folder or its parent's, only small regular ones.

    Args:
        path: of the folder; None where there is none (a command, stdin).
        files: given files by their names, looked at first.
    """

    def __init__(self, path: str | None = None, files: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._files = dict(files or {})

    def near(self, *endings: str) -> Iterator[tuple[str, str]]:
        """Yield the files beside that end so, each with its text: what one file refers to."""
        yield from ((n, t) for n, t in self._files.items() if n.endswith(endings))
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self.path))[:_MOST_NEAR]:
                text = self.read(name) if name.endswith(endings) else None
                if text is not None:
                    yield name, text

    def read(self, name: str) -> str | None:
        """Return the text of a file beside; None where there is none that may be read."""
        name = os.path.normpath(name.strip())
        if name in self._files:
            return self._files[name]
        if self.path is None or os.path.isabs(name) or name.count("..") > 1:
            return None
        if ".." in name and not name.startswith(".."):
            return None
        path = os.path.join(self.path, name)
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _BESIDE:
                return None
            with open(path, "rb") as file:
                return decoded(file.read(_BESIDE), name)
        except (OSError, ValueError, InputError):
            return None


def beside(file: str, path: str) -> str:
    """Return a path that a file names, as seen from where the file's own path is.

    >>> beside("deploy/run.sh", "../conf/vllm.yaml")
    'conf/vllm.yaml'
    """
    folder = "" if file == _STDIN else os.path.dirname(file)
    return os.path.normpath(os.path.join(folder, path))


class Source(NamedTuple):
    """A file that may start servers.

    Attributes:
        name: as messages name it; `-` for stdin.
        text: what it holds.
        folder: the files beside it.
        given: it was named itself, not found in a folder: that it starts nothing is an error.
        fault: why a file of a folder cannot be read; None where it was.
    """

    name: str
    text: bytes
    folder: Folder
    given: bool = True
    fault: InputError | None = None


def find(paths: Iterable[str], stdin: bytes | None = None) -> Iterator[Source]:
    """Yield the files that paths name: each file, and those of a folder that may start servers.

    In a folder, hidden folders and what package managers install are passed over, links to files
    that are read themselves, and files that name no engine. What cannot be read and may name one
    is a Source with a fault.

    Args:
        paths: files, folders, and `-` for stdin.
        stdin: what `-` holds; read from the process's own where it is not given.

    Raises:
        InputError: a path is neither file nor folder, cannot be read, or is too large.
    """
    for path in paths:
        if path == _STDIN:
            text = sys.stdin.buffer.read(MAX_BYTES + 1) if stdin is None else stdin
            _limited(len(text), path)
            yield Source(path, text, Folder("."))
        elif os.path.isdir(path):
            yield from _walk(_shortest(path))
        else:
            text = _read(path)
            name = _shortest(path)
            yield Source(name, text, Folder(os.path.dirname(name) or "."))


def _shortest(path: str) -> str:
    """Return a path without its detours (`a/../b`), where it means the same file so."""
    short = os.path.normpath(path)
    try:
        return short if os.path.samefile(short, path) else path
    except (OSError, ValueError):
        return path


def charts_of(starting: Iterable[str]) -> set[str]:
    """Return the folders of charts whose templates start servers.

    Args:
        starting: files that start servers.
    """
    folders: set[str] = set()
    for name in starting:
        parts = os.path.normpath(name).split(os.sep)
        if "templates" in parts:
            chart = os.sep.join(parts[: parts.index("templates")]) or "."
            if os.path.isfile(os.path.join(chart, "Chart.yaml")):
                folders.add(chart)
    return folders


def is_values_of(file: str, charts: set[str]) -> bool:
    """Whether a file holds the values of one of several charts.

    What a chart's templates start holds its values: read by themselves they would start it again.
    """
    folder, base = os.path.split(os.path.normpath(file))
    return (folder or ".") in charts and _VALUES.fullmatch(base) is not None


def decoded(text: bytes | str, where: str) -> str:
    """Return a file's text.

    Raises:
        InputError: it is too large, or no text.
    """
    _limited(len(text), where)
    if isinstance(text, str):
        return text.removeprefix("\ufeff").replace("\r\n", "\n")
    if text[:2] in (b"\xff\xfe", b"\xfe\xff") and len(text) % 2 == 0:
        encoding = "utf-16"
    else:
        encoding = "utf-8-sig"
        if (at := text.find(b"\0")) >= 0:
            _refuse_binary(where, text.count(b"\n", 0, at) + 1)
    try:
        return text.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        _refuse_binary(where, text.count(b"\n", 0, error.start) + 1)


def _refuse_binary(where: str, line: int) -> NoReturn:
    raise InputError(
        "not text",
        hint="save it as UTF-8, or give the file that starts the server",
        where=f"{printable(where)}:{line}",
    )


def _limited(size: int, where: str) -> None:
    if size > MAX_BYTES:
        raise InputError(
            f"larger than {MAX_BYTES // 2**20} MiB",
            hint="a deployment is a few KiB; give its file alone",
            where=printable(where),
        )


def _read(path: str) -> bytes:
    text = _head(path)
    _limited(len(text), path)
    return text


def _head(path: str) -> bytes:
    """Return a file's text, or more of it than a file may hold."""
    shown = printable(path)
    try:
        _refuse_special(os.stat(path).st_mode, path)
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        hint = "give a file, a folder, or - for stdin"
        raise InputError(reason, hint=hint, where=shown) from None
    except ValueError:
        raise InputError("no path", hint="it holds a zero byte", where=shown) from None


def _refuse_special(mode: int, path: str) -> None:
    """Refuse what may never end or never begin: devices, sockets, pipes that have a name.

    What a shell hands on by its number (`<(helm template .)`) is written by somebody.
    """
    if stat.S_ISREG(mode) or path.startswith(_HANDED) or path == "/dev/stdin":
        return
    what = next((name for is_one, name in _SPECIAL if is_one(mode)), "no file")
    hint = "give a file, a folder, or - for stdin"
    raise InputError(what, hint=hint, where=printable(path))


def _walk(top: str) -> Iterator[Source]:
    looked = 0
    unread: list[OSError] = []
    for folder, folders, files in os.walk(top, onerror=unread.append):
        folders[:] = sorted(f for f in folders if not _passed(f))
        if folders and os.path.relpath(folder, top).count(os.sep) >= _MOST_DEEP:
            hint = "name the folders that hold deployments"
            fault: InputError = PassedOverError(f"more than {_MOST_DEEP} folders deep", hint=hint)
            yield Source(folder.removeprefix(_HERE), b"", Folder(), given=False, fault=fault)
            folders.clear()
        for file in sorted(files):
            looked += 1
            if looked > _MOST_FILES:
                hint = "name the folders that hold deployments"
                message = f"more than {_MOST_FILES} files"
                raise InputError(message, hint=hint, where=printable(top))
            if _is_named_so(file):
                path = os.path.join(folder, file).removeprefix(_HERE)
                yield from _met(path, top)
    for error in unread:
        reason = (error.strerror or "cannot be read").lower()
        fault = InputError(reason, hint="let kvcalc read it, or name the folders beside it")
        yield Source(str(error.filename), b"", Folder(), given=False, fault=fault)


def _met(path: str, top: str) -> Iterator[Source]:
    """Yield a file that was met in a folder, where it may start servers."""
    text = b""
    fault: InputError | None = None
    inside = os.path.relpath(os.path.realpath(path), os.path.realpath(top))
    within = inside.partition(os.sep)[0] != os.pardir
    if os.path.islink(path) and within and os.path.isfile(path) and _is_walked(inside):
        return  # it is met under its own name
    try:
        text = _head(path)
        if not _mentions(path, text):
            return
        _limited(len(text), path)
        if not within:
            hint = "name the file that it leads to"
            fault = PassedOverError("a link out of the folder", hint=hint)
    except InputError as error:
        fault = error
    yield Source(path, text, Folder(os.path.dirname(path)), given=False, fault=fault)


def _mentions(path: str, text: bytes) -> bool:
    """Whether a file names an engine, in UTF-8 or UTF-16; large JSON is data, mostly."""
    if _OWN.search(path):
        return True
    if path.endswith(".json") and len(text) > _LARGE_JSON and not _JSON_KEYS.search(text):
        return False
    return _MARKERS.search(text) is not None or (
        b"\0" in text and _MARKERS.search(text.replace(b"\0", b"")) is not None
    )


def _is_walked(path: str) -> bool:
    """Whether a file is met in a walk, by its path from the top."""
    *folders, name = path.split(os.sep)
    return not any(map(_passed, folders)) and _is_named_so(name)


def _is_named_so(name: str) -> bool:
    return name.lower().endswith(_ENDINGS) or _NAMES.search(name) is not None


def _passed(folder: str) -> bool:
    return folder.startswith(".") or folder in _SKIPPED
