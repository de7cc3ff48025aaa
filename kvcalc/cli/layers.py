"""kvcalc layers: which layer keeps what, and where two models differ."""

from __future__ import annotations

import typer

from kvcalc.answers.layer_map import layer_diff, layer_map
from kvcalc.cli import inputs
from kvcalc.cli.options import MODEL, OUTPUT, register, text
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values

_DTYPE = (
    text(
        "kv_cache_dtype",
        "--kv-cache-dtype",
        help="auto (the model's own), bf16, fp8, ...; or K:V. Repeatable.",
        panel="Deployment",
        metavar="DTYPE",
        many=True,
    ),
)
_TWO = 2


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "layers",
        run,
        MODEL,
        _DTYPE,
        OUTPUT,
        help="Which layer keeps what; of two models, where they differ.",
        epilog="Example: kvcalc layers gemma-3-27b",
    )


def run(values: Values) -> None:
    """Show every model's layers, and the differences of two."""
    notes: list[str] = []
    models = inputs.models(values, notes)
    own = values["dtype"] or "auto"
    dtypes = [own if dtype == "auto" else dtype for dtype in inputs.cache_dtypes(values)]
    if len(models) == _TWO:
        emit(
            "layers-diff",
            values,
            inputs.echo(values),
            [layer_diff(*models, kv_cache_dtype=dtype) for dtype in dtypes],
            notes,
        )
    else:
        emit(
            "layers",
            values,
            inputs.echo(values),
            [layer_map(model, dtype) for model in models for dtype in dtypes],
            notes,
        )
