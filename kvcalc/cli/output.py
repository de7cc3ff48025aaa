"""Printing: one result in the chosen format on stdout, and further formats into files."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from kvcalc.cli.values import Values
from kvcalc.core.credentials import without_credentials
from kvcalc.core.errors import InputError, UsageError
from kvcalc.models.text import printable

__all__ = ["emit", "progress", "say", "write_file", "write_out"]

_SILENT_SECONDS = 1.0
"""After which it is shown that something is still being done."""
_BETWEEN_SECONDS = 0.1
_LONGEST_LINE = 1_000  # of a note or an error
_NARROWEST = 40  # columns; below this nothing readable can be laid out

_READ = (
    *(
        "models",
        "preset",
        "config",
        "gguf",
        "trace",
        "names",
        "files",
        "settings",
        "source",
        "replay",
    ),
    *("baseline", "before", "after"),
    *("snapshot", "oom", "jax_stats", "bfc_log"),
)
"""Parameters that name files which commands read."""

_INSIDE = (".yaml", ".yml", ".gguf", "config.json")
"""Endings of the files that may be read in a folder that is named, and beside a GGUF file."""

_NO_ROOM = "make room there, or name a file on another disk"
_NO_RIGHT = "name a file in a folder that you may write to"
_NO_FOLDER = "name a file in a folder that exists"
_HINTS = {
    errno.ENOENT: _NO_FOLDER,
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: "name a file in that folder, not the folder itself",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.ENOSPC: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    getattr(errno, "EDQUOT", errno.ENOSPC): _NO_ROOM,  # Windows knows no quotas
    errno.ENAMETOOLONG: "give the file a shorter name",
}
"""What to do about a report that cannot be written, by the reason."""


def say(kind: str, line: str) -> None:
    """Print one line on stderr: `note`, `warning`, `error` or `hint`.

    What came from a user is shown in printable characters, without credentials, and cut where it
    is endless.
    """
    if sys.stderr is None:  # closed by the caller
        return
    text = without_credentials(" ".join(printable(line).split()))
    if len(text) > _LONGEST_LINE:
        text = text[: _LONGEST_LINE - 1] + "…"
    encoding = sys.stderr.encoding or "utf-8"
    with contextlib.suppress(OSError):
        print(f"{kind}: {text}".encode(encoding, "replace").decode(encoding), file=sys.stderr)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[], None]]:
    """Give what is to be called at every step of something that may take long.

    From the first second on a line on a terminal's stderr counts the steps, and it is gone when
    the result is there; nothing is written into a file or a pipe.
    """
    terminal = sys.stderr is not None and sys.stderr.isatty()
    due, steps, shown = time.monotonic() + _SILENT_SECONDS, 0, False

    def step() -> None:
        nonlocal due, steps, shown
        steps += 1
        now = time.monotonic()
        if terminal and now > due:
            due, shown = now + _BETWEEN_SECONDS, True
            print(f"\r{what}: {steps} settings tried", end="", file=sys.stderr, flush=True)

    try:
        yield step
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def write_out(text: str) -> None:
    """Write to stdout at once; a reader that went away is no error.

    Raises:
        InputError: the output cannot be written (a full disk, a closed stdout).
    """
    if sys.stdout is None:
        raise InputError(
            "the output cannot be written: stdout is closed", hint="check where stdout goes"
        )
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        leave_quietly()
        raise typer.Exit(0) from None
    except OSError as error:
        raise unwritable(error) from None


def leave_quietly() -> None:
    """Give stdout somewhere to go: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unwritable(error: OSError) -> InputError:
    """Return the error of a stdout that takes nothing, after making sure it is not tried again."""
    with contextlib.suppress(OSError, ValueError):
        leave_quietly()
    return InputError(
        f"the output cannot be written: {error.strerror}", hint="check where stdout goes"
    )


def emit(
    command: str,
    values: Values,
    inputs: dict[str, Any],
    results: Sequence[Any],
    notes: Sequence[str],
    warnings: Sequence[str] = (),
    members: Mapping[str, Any] | None = None,
) -> None:
    """Print results in the format asked for and write the reports asked for.

    Args:
        command: whose results they are.
        values: what it was given.
        inputs: of the JSON document.
        results: of one kind, in input order.
        notes: told on stderr, and in the JSON document.
        warnings: as notes.
        members: further keys of the JSON document.

    Raises:
        UnknownNameError: no such format.
        UsageError: a report that is not FORMAT:PATH, two into one file, or one into a file that
            the command reads.
        InputError: a report that cannot be written.
    """
    from kvcalc import __version__
    from kvcalc.cli.inputs import choice, unit_system  # of commands with results alone
    from kvcalc.report.formats import Answer, Screen, names, render

    known = names(command)
    form = choice(values, "format", known)
    units = unit_system(values)
    reports = [_report_target(text, known) for text in values["report"] or ()]
    paths = [os.path.realpath(path) for _, path in reports]
    if len(set(paths)) < len(paths):
        raise UsageError(
            "two reports go to the same file", hint="name a file for each", where="--report"
        )
    for _, path in reports:
        _refuse_to_overwrite(path, values)
    unique = list(dict.fromkeys(notes))
    warnings = list(dict.fromkeys((*values.warnings, *warnings)))

    answer = Answer(command, __version__, inputs, results, unique, warnings, members or {})
    for name, path in reports:
        write_file(path, render(name, answer, units))
    tty = sys.stdout is not None and sys.stdout.isatty()
    encoding = (sys.stdout and sys.stdout.encoding) or "ascii"
    text = render(form, answer, units, Screen(_columns(tty), encoding, tty))
    for note in unique:
        say("note", note)
    for warning in warnings:
        say("warning", warning)
    write_out(text)


def _report_target(text: str, known: Sequence[str]) -> tuple[str, str]:
    name, colon, path = text.partition(":")
    if not colon or not path:
        raise UsageError(
            f"{text!r:.60} is not FORMAT:PATH", hint="write --report json:kv.json", where="--report"
        )
    from kvcalc.cli.inputs import one_of

    form = one_of(name, known, "--report")
    if path == "-":
        raise UsageError(
            "a report goes to a file, not to stdout",
            hint=f"--format {form} prints to stdout; a file of that name is {form}:./-",
            where="--report",
        )
    return form, path


def _refuse_to_overwrite(path: str, values: Values) -> None:
    for source in _files_read(values):
        if _same_file(path, source):
            raise UsageError(
                f"the report would replace {'stdin' if source == '-' else source}, which is read"
                " here",
                hint="name another file for the report",
                where="--report",
            )


def _files_read(values: Values) -> Iterator[str]:
    from kvcalc.cli.inputs import preset_folders

    for folder in preset_folders():
        yield from _listed(os.path.join(folder, "models"))
        yield from _listed(os.path.join(folder, "gpus"))
    for name in _READ:
        given = values.get(name)
        for source in [given] if isinstance(given, str) else given or ():
            yield source
            if name == "files":  # folders of presets, whatever their depth
                for folder, _, _ in os.walk(source):
                    yield from _listed(folder)
            elif source.lower().endswith(".gguf"):
                yield from _listed(os.path.dirname(source) or ".")  # the model's other files
            else:
                yield from _listed(source)


def _listed(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError, ValueError):  # no folder, or no path at all
        yield from (
            os.path.join(folder, name)
            for name in os.listdir(folder)
            if name.lower().endswith(_INSIDE)
        )


def _same_file(path: str, source: str) -> bool:
    """Whether a path is, by whatever name, the regular file that a source (`-`: stdin) reads."""
    try:
        target = os.stat(path)
        other = os.fstat(sys.stdin.fileno()) if source == "-" else os.stat(source)
    except (OSError, ValueError, AttributeError):  # one is not there; a stdin without a file
        return False
    return stat.S_ISREG(target.st_mode) and os.path.samestat(target, other)


def write_file(path: str, text: str) -> None:
    """Write a file whole or not at all; a pipe or a device is written to as it is."""
    try:
        if os.path.isdir(path):  # Windows says "permission denied" when a directory is opened
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.path.isfile(path):
            # As it was named: /dev/stdout in a pipeline links to what no path leads to.
            Path(path).write_text(text, encoding="utf-8", newline="\n")
            return
        target = Path(os.path.realpath(path))  # a link stays a link
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else _new_mode()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(
            f"the report cannot be written: {error.strerror}",
            hint=_HINTS.get(error.errno or 0, "name another file"),
            where=path,
        ) from None
    except ValueError:  # a NUL, or what no file name can hold
        raise InputError(
            "the report cannot be written: not a path", hint="name another file", where=path
        ) from None


def _new_mode() -> int:
    """Return the mode that a new file gets; mkstemp's own is for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _columns(tty: bool) -> int | None:
    """Return the columns that stdout has; None where nothing is wrapped."""
    if tty or os.environ.get("COLUMNS", "").isdigit():
        return max(_NARROWEST, shutil.get_terminal_size().columns)
    return None
