"""kvcalc gpus: the cards that kvcalc knows, with a source for every figure."""

from __future__ import annotations

import typer

from kvcalc.cli.inputs import echo, preset_folders
from kvcalc.cli.options import OUTPUT, argument, register
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.models.presets import all_gpus, load_gpu

_NAMES = (argument("names", "NAME", "Names; all when none is given."),)


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "gpus",
        run,
        _NAMES,
        OUTPUT,
        help="Memory as the driver reports it, bandwidth and FLOP/s; figures without a source are"
        " left out.",
        epilog="Example: kvcalc gpus h100-80gb rtx-4090 --format json",
    )


def run(values: Values) -> None:
    """List cards."""
    folders = preset_folders()
    named = values["names"]
    cards = (
        [load_gpu(name, folders) for name in named]
        if named
        else [preset.spec for preset in all_gpus(folders)]
    )
    notes = [f"{card.name}: {note}" for card in cards for note in card.notes] if named else []
    if named:
        notes += [f"{c.name}: {key} from {text}" for c in cards for key, text in c.sources.items()]
    emit("gpus", values, echo(values), cards, notes)
