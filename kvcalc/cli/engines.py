"""kvcalc engines: whose rules kvcalc knows, of which version, and how they were checked."""

from __future__ import annotations

import typer

from kvcalc.cli.inputs import echo
from kvcalc.cli.options import OUTPUT, register
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.engines.about import about


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "engines",
        run,
        OUTPUT,
        help="The engines whose rules kvcalc knows: version, and how they were checked.",
        epilog="Example: kvcalc engines --format json",
    )


def run(values: Values) -> None:
    """List engines."""
    emit("engines", values, echo(values), about(), [])
