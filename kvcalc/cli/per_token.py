"""kvcalc per-token: bytes a token, block and sequence."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from kvcalc.cli import inputs
from kvcalc.cli.options import (
    DEPLOYMENT,
    EXPLAIN,
    MODEL,
    OUTPUT,
    register,
    text,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.per_token import DEFAULT_TOKENS, per_token
from kvcalc.core.units import format_count, format_number_of, parse_tokens

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
        _LENGTHS,
        OUTPUT,
        EXPLAIN,
        help="Bytes a token, a block and a sequence; several models side by side.",
        epilog="Example: kvcalc per-token llama-3.1-8b qwen3.5-27b --tokens 32768 --explain",
    )


def _usual_lengths(longest: Sequence[int | None]) -> list[int]:
    """Return the lengths to size unasked: the usual ones that some model can reach."""
    known = [most for most in longest if most is not None]
    if len(known) < len(longest):
        return list(DEFAULT_TOKENS)
    return [n for n in DEFAULT_TOKENS if n <= max(known)] or [max(known)]


def run(values: Values) -> None:
    """Size every model under every block size."""
    notes: list[str] = []
    models = inputs.models(values, notes)
    wanted = values["tokens"] or ()
    lengths = values.at("tokens", lambda: [parse_tokens(text) for text in wanted])
    plans = inputs.plans(models, inputs.deployments(values, notes), notes)
    longest = [m.max_position_embeddings for m in models]
    if not lengths:
        lengths = _usual_lengths(longest)
    notes.extend(
        f"{m.name}: {format_number_of(max(lengths), 'token')} are more than the"
        f" {format_count(most)} that the model was made for"
        for m, most in zip(models, longest, strict=True)
        if most is not None and max(lengths) > most
    )
    results = [per_token(p, tokens=lengths, explain=values["explain"]) for p in plans]
    emit("per-token", values, inputs.echo(values, plans), results, notes)
