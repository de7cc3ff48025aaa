"""Printing: one result in the chosen format on stdout, and further formats into files."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer

from kvcalc.cli.inputs import choice, unit_system
from kvcalc.cli.options import Values
from kvcalc.core.errors import InputError, UsageError
from kvcalc.core.units import UnitSystem

__all__ = ["FORMATS", "emit", "say", "write_out"]

Format = Literal["table", "json", "csv", "markdown"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "markdown")

_BLOCK_MARKS = "█░─"
_NARROWEST = 40  # columns; below this nothing readable can be laid out


def say(kind: str, line: str) -> None:
    """Print one line on stderr: `note`, `warning`, `error` or `hint`."""
    # A terminal may not know a character of a name; an answer is worth more than its accents.
    encoding = sys.stderr.encoding or "utf-8"
    text = " ".join(f"{kind}: {line}".split())
    with contextlib.suppress(OSError):
        print(text.encode(encoding, "replace").decode(encoding), file=sys.stderr)


def write_out(text: str) -> None:
    """Write to stdout at once; a reader that went away is no error.

    Raises:
        InputError: the output cannot be written (a full disk).
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except OSError as error:
        raise InputError(
            f"the output cannot be written: {error.strerror}", hint="check where stdout goes"
        ) from None


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
    form = choice("--format", values["format"], FORMATS)
    units = unit_system(values)
    reports = [_report_target(text) for text in values["report"] or ()]
    unique = list(dict.fromkeys(notes))

    def rendered(name: Format, *, terminal: bool) -> str:
        return _render(name, command, inputs, results, unique, warnings, units, terminal=terminal)

    for name, path in reports:
        _write_file(path, rendered(name, terminal=False))
    text = rendered(form, terminal=True)
    if form != "json":
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
    return choice("--report", name, FORMATS), path


def _write_file(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
            # mkstemp makes files that only the owner reads; a report is for everybody's tools.
            os.chmod(temporary, 0o644)
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
        return records.as_json(
            records.Envelope(
                schema=f"kvcalc.{command}/1",
                kvcalc_version=__version__,
                inputs=inputs,
                results=results,
                notes=notes,
                warnings=warnings,
            )
        )
    from kvcalc.report.views import view

    blocks = view(results, units)
    if form == "markdown":
        from kvcalc.report import markdown

        return markdown.render(blocks)
    return _table(blocks, terminal=terminal)


def _table(blocks: Sequence[Any], *, terminal: bool) -> str:
    from kvcalc.report import table

    tty = terminal and sys.stdout.isatty()
    if tty or (terminal and os.environ.get("COLUMNS", "").isdigit()):
        width = max(_NARROWEST, shutil.get_terminal_size().columns)
    else:
        width = table.UNLIMITED
    lines = table.render(blocks, width=width, ascii_only=not _shows_blocks())
    if not tty:
        return table.plain(lines)
    from kvcalc.report.terminal import styled

    return styled(lines, width)


def _shows_blocks() -> bool:
    try:
        _BLOCK_MARKS.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
