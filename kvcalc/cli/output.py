"""Printing: one result in the chosen format on stdout, and further formats into files."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from kvcalc.cli.inputs import choice, one_of, unit_system
from kvcalc.cli.values import Values
from kvcalc.core.errors import InputError, UsageError
from kvcalc.core.units import UnitSystem
from kvcalc.models.text import printable

__all__ = ["FORMATS", "emit", "say", "write_out"]

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "markdown")

_BLOCK_MARKS = "█░─"
_LONGEST_LINE = 1_000  # of a note or an error
_NARROWEST = 40  # columns; below this nothing readable can be laid out


def say(kind: str, line: str) -> None:
    """Print one line on stderr: `note`, `warning`, `error` or `hint`.

    What came from a user is shown in printable characters and cut where it is endless.
    """
    if sys.stderr is None:  # closed by the caller
        return
    text = " ".join(printable(line).split())
    if len(text) > _LONGEST_LINE:
        text = text[: _LONGEST_LINE - 1] + "…"
    encoding = sys.stderr.encoding or "utf-8"
    with contextlib.suppress(OSError):
        print(f"{kind}: {text}".encode(encoding, "replace").decode(encoding), file=sys.stderr)


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
) -> None:
    """Print results in the format asked for and write the reports asked for.

    Raises:
        UnknownNameError: no such format.
        UsageError, InputError: a report that cannot be written.
    """
    form = choice(values, "format", FORMATS)
    units = unit_system(values)
    reports = [_report_target(text) for text in values["report"] or ()]
    paths = [os.path.realpath(path) for _, path in reports]
    if len(set(paths)) < len(paths):
        raise UsageError(
            "two reports go to the same file", hint="name a file for each", where="--report"
        )
    unique = list(dict.fromkeys(notes))

    def rendered(name: Format, *, terminal: bool) -> str:
        return _render(name, command, inputs, results, unique, warnings, units, terminal=terminal)

    for name, path in reports:
        _write_file(path, rendered(name, terminal=False))
    text = rendered(form, terminal=True)
    for note in unique:
        say("note", note)
    for warning in warnings:
        say("warning", warning)
    write_out(text)


def _report_target(text: str) -> tuple[Format, str]:
    name, colon, path = text.partition(":")
    if not colon or not path:
        raise UsageError(
            f"{text!r:.60} is not FORMAT:PATH", hint="write --report json:kv.json", where="--report"
        )
    return one_of(name, FORMATS, "--report"), path


def _write_file(path: str, text: str) -> None:
    """Write a file whole or not at all; a pipe or a device is written to as it is."""
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", newline="\n")
            return
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
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise InputError(
            f"the report cannot be written: {reason}",
            hint="name a file in a folder that exists",
            where=path,
        ) from None


def _new_mode() -> int:
    """Return the mode that a new file gets; mkstemp's own is for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _render(
    form: Format,
    command: str,
    inputs: dict[str, Any],
    results: Sequence[Any],
    notes: Sequence[str],
    warnings: Sequence[str],
    units: UnitSystem,
    *,
    terminal: bool,
) -> str:
    if form in ("json", "csv"):
        from kvcalc import __version__
        from kvcalc.report import records

        if form == "csv":
            return records.as_csv(results)
        document = records.as_json(
            records.Envelope(
                schema=f"kvcalc.{command}/1",
                kvcalc_version=__version__,
                inputs=inputs,
                results=results,
                notes=notes,
                warnings=warnings,
            )
        )
        return document if not terminal or _encodes(document) else records.ascii_json(document)
    from kvcalc.report.views import view

    blocks = view(results, units)
    if form == "markdown":
        from kvcalc.report import markdown

        return markdown.render(blocks)
    return _table(blocks, terminal=terminal)


def _table(blocks: Sequence[Any], *, terminal: bool) -> str:
    from kvcalc.report import table

    tty = terminal and sys.stdout is not None and sys.stdout.isatty()
    if tty or (terminal and os.environ.get("COLUMNS", "").isdigit()):
        width = max(_NARROWEST, shutil.get_terminal_size().columns)
    else:
        width = table.UNLIMITED
    lines = table.render(blocks, width=width, ascii_only=not _encodes(_BLOCK_MARKS))
    if not tty:
        return table.plain(lines)
    from kvcalc.report.terminal import styled

    return styled(lines, width) or table.plain(lines)


def _encodes(text: str) -> bool:
    """Whether stdout can show a text."""
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
