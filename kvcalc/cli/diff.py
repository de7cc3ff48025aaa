"""kvcalc diff: which figures changed between two runs, and which change costs capacity."""

from __future__ import annotations

import typer

from kvcalc.cli import inputs
from kvcalc.cli.options import OUTPUT, argument, flag, register
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.errors import InputError, UsageError

_FILES = (
    argument("before", "BEFORE", "A `check --format json` (or capacity's) of before; or a"
             " server's start-up log.", str | None),
    argument("after", "AFTER", "The same of after.", str | None),
)  # fmt: skip
_REGRESSION = 1
_D = "Difference"
_ASKED = (
    flag("fail_on_regression", "--fail-on-regression", panel=_D,
         help="Exit 1 where a change costs capacity."),
    flag("all", "--all", panel=_D, help="Also figures that did not change."),
)  # fmt: skip


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "diff",
        run,
        _FILES,
        _ASKED,
        OUTPUT,
        help="Which figures changed between two documents of kvcalc check or capacity, what costs"
        " capacity marked; as Markdown, a comment for a pull request.",
        epilog="Example: kvcalc diff before.json after.json --format markdown",
    )


def run(values: Values) -> None:
    """Compare two documents.

    Raises:
        UsageError: two files are not named.
        Exit: 1 where a change costs capacity and that is to fail.
    """
    from kvcalc.checks.compared import compared, read_document

    before, after = values["before"], values["after"]
    if before is None or after is None:
        raise UsageError("which two files?", hint="write kvcalc diff before.json after.json")
    if before == after == "-":
        raise UsageError("stdin is asked for twice", hint="name a file for one of them")
    try:
        documents = read_document(before), read_document(after)
    except InputError:
        if not _logs(values, before, after):
            raise
        return
    found = compared(*documents, unchanged=values["all"])
    emit("diff", values, inputs.echo(values), found, ())
    if values["fail_on_regression"] and any(each.costs for each in found):
        raise typer.Exit(_REGRESSION)


def _logs(values: Values, before: str, after: str) -> bool:
    """Compare two start-up logs, as `kvcalc log` does; whether they are two."""
    from kvcalc.measure.logs import compared, read_start

    if "-" in (before, after):
        return False  # what was read of it is gone
    try:
        reads = read_start(before), read_start(after)
    except InputError:
        return False
    emit("log-diff", values, inputs.echo(values), [compared(*reads)], ())
    return True
