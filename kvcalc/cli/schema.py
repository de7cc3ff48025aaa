"""kvcalc schema: the JSON Schema (draft 7) of a document or a preset file."""

from __future__ import annotations

import typer

from kvcalc.cli.inputs import one_of
from kvcalc.cli.options import argument, register
from kvcalc.cli.output import write_out
from kvcalc.cli.values import Values
from kvcalc.schema import names, text

_NAME = (argument("name", "NAME", "The schema; without one, their names.", str | None),)


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "schema",
        run,
        _NAME,
        help="Print the JSON Schema of a command's JSON, or of a model or GPU preset file.",
        epilog="Example: kvcalc schema compare > compare.schema.json",
    )


def run(values: Values) -> None:
    """Print one schema, or the names of all."""
    if values["name"] is None:
        write_out("".join(f"{name}\n" for name in names()))
    else:
        write_out(text(one_of(values["name"], names(), "NAME")))
