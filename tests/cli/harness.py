"""Running the command line inside the test's own process, and what tests say about its answers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from kvcalc.cli.app import main
from kvcalc.schema import text

__all__ = ["ROOT", "Outcome", "call", "clean", "is_fault", "python", "rows_of", "validate"]

ROOT = Path(__file__).parents[2]
_STEERING = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE", "PY_COLORS")


@dataclass(frozen=True)
class Outcome:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)

    @property
    def results(self) -> Any:
        """The results of the JSON document on stdout."""
        return self.document["results"]

    @property
    def errors(self) -> list[str]:
        """Lines of stderr that tell an error."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]

    @property
    def hints(self) -> list[str]:
        """Lines of stderr that say what to do."""
        return [line for line in self.err.splitlines() if line.startswith("hint: ")]


def call(*arguments: str, encoding: str = "utf-8", stdin: bytes = b"") -> Outcome:
    """Run `kvcalc ARGUMENTS` in this process, with streams of that encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n") for _ in "12")
    own = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(arguments))
    finally:
        sys.stdin = own
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Outcome(code, *texts)


def python(
    *arguments: str,
    cwd: Path | str | None = None,
    stdin: str = "",
    unset: tuple[str, ...] = (),
    **variables: str,
) -> Outcome:
    """Run `python ARGUMENTS` as a process of its own, with further environment variables."""
    environment = {**os.environ, **variables}
    for name in unset:
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=cwd,
        env=environment,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def clean(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Leave nothing in the environment or the working directory that steers a command."""
    for name in [*os.environ]:
        if name.startswith("KVCALC_") or name in _STEERING:
            monkeypatch.delenv(name)
    monkeypatch.chdir(folder)


def is_fault(outcome: Outcome, code: int = 2) -> str:
    """Check that an outcome is a refusal as a user should see one, and return its error line."""
    assert code == outcome.code, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert len(outcome.errors) == 1, outcome.err
    assert len(outcome.hints) <= 1, outcome.err
    others = [
        line
        for line in outcome.err.splitlines()
        if not line.startswith(("error: ", "hint: ", "note: ", "warning: "))
    ]
    assert others == []
    assert len(outcome.errors[0]) > len("error: ")
    return outcome.errors[0].removeprefix("error: ")


@cache
def _validator(name: str) -> Draft7Validator:
    schema = json.loads(text(name))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def validate(name: str, document: Any) -> list[str]:
    """Return what the shipped schema of that name finds wrong with a document."""
    return [f"{e.json_path}: {e.message}"[:300] for e in _validator(name).iter_errors(document)]


def rows_of(table: str) -> list[list[str]]:
    """Return the cells of every Markdown table row in a text."""
    rows = []
    for line in table.splitlines():
        if line.startswith("|"):
            bare = line.replace("\\\\", "").replace("\\|", "¦")
            rows.append([cell.strip() for cell in bare.strip("|").split("|")])
    return rows
