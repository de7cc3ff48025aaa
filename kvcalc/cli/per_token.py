"""kvcalc per-token: bytes a token, block and sequence."""

from __future__ import annotations

import typer

from kvcalc.answers.per_token import per_token, usual_lengths
from kvcalc.cli import inputs
from kvcalc.cli.options import (
    COMPARED,
    DEPLOYMENT,
    ENGINE,
    EXPLAIN,
    MODEL,
    OUTPUT,
    register,
    text,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.explain import beyond
from kvcalc.core.units import parse_tokens

_LENGTHS = (
    text(
        "tokens",
        "--tokens",
        help="Size a sequence of this length; repeatable. Default 8192 and 131072.",
        panel="Deployment",
        metavar="TOKENS",
        env=False,
        many=True,
    ),
)


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "per-token",
        run,
        MODEL,
        DEPLOYMENT,
        ENGINE,
        _LENGTHS,
        OUTPUT,
        EXPLAIN,
        help="Bytes a token, a block and a sequence; several models side by side.",
        epilog="Example: kvcalc per-token llama-3.1-8b qwen3.5-27b --tokens 32768 --explain",
        compared=COMPARED,
    )


def run(values: Values) -> None:
    """Size every model under every block size."""
    notes: list[str] = []
    refused: list[str] = []
    models = inputs.models(values, notes)
    wanted = values["tokens"] or ()
    lengths = values.at("tokens", lambda: [parse_tokens(text) for text in wanted])
    planned = inputs.plans(models, inputs.combinations(values, notes), notes, refused=refused)
    lengths = lengths or usual_lengths(models)
    notes.extend(f"{m.name}: {line}" for m in models for line in beyond(m, max(lengths)))
    results = [
        per_token(
            one.plan,
            tokens=lengths,
            explain=values["explain"],
            flags=one.asked.values.apart,
        )
        for one in planned
    ]
    emit("per-token", values, inputs.echo(values, planned), results, notes, refused)
