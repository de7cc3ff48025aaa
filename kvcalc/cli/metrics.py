"""kvcalc metrics: what a running server says of its cache, its use, and the waste now."""

from __future__ import annotations

import typer

from kvcalc.answers.server_metrics import ServerMetrics
from kvcalc.cli import inputs
from kvcalc.cli.given import idle
from kvcalc.cli.options import (
    DEPLOYMENT,
    ENGINE,
    KV_MEMORY,
    MODEL,
    OUTPUT,
    argument,
    flag,
    register,
    text,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from kvcalc.measure.source import named_source, read_page

_P = "Page"
_PAGE = (
    argument("source", "URL|FILE|-",
             "The server's metrics: http://HOST:PORT (its /metrics), a saved page, or - for stdin.",
             str | None),
)  # fmt: skip
_READING = (
    text("timeout", "--timeout", metavar="SECONDS", panel=_P,
         help="For the server's whole answer; 5 otherwise."),
    text("running_tokens", "--running-tokens", metavar="TOKENS", panel=_P, env=False,
         help="Tokens of the requests that run now, to tell what of their blocks is empty."),
    flag("strict", "--strict", panel=_P,
         help="Refuse a page with a line that is not in the format."),
)  # fmt: skip

_NAMED = ("models", "preset", "config", "gguf", "hf", "layers")
_OF_MODEL = tuple(
    option.name for group in (MODEL, DEPLOYMENT, KV_MEMORY, ENGINE) for option in group
)


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "metrics",
        run,
        _PAGE,
        MODEL,
        _READING,
        DEPLOYMENT,
        KV_MEMORY,
        ENGINE,
        OUTPUT,
        help="What a running server says of its cache: capacity, use, waste now, and with a MODEL"
        " whether that is what it should have.",
        epilog="Example: kvcalc metrics http://localhost:8000 llama-3.1-8b",
    )


def run(values: Values) -> None:
    """Read a page, and compare it with the model where one is named.

    Raises:
        UsageError: no page, or several models or deployments.
    """
    notes: list[str] = []
    source = values["source"]
    if not source:
        raise UsageError(
            "whose metrics?", hint="kvcalc metrics http://localhost:8000, a saved page, or -"
        )
    # What a settings file of the folder says is not asked of a page.
    named = any(values[name] for name in _NAMED[2:]) or values.typed(*_NAMED)
    timeout = inputs.seconds(values, "timeout", 5.0)
    tokens = inputs.tokens(values, "running_tokens")
    if not named:
        notes += idle(values, _OF_MODEL, "no model is named to compare the page with")
    page = read_page(source, timeout=timeout)
    reading = read_metrics(page, strict=values["strict"], where=named_source(source))
    servers = list(reading.servers)
    if named:
        servers = [
            _compared(values, server, settings, notes)
            for server, settings in zip(reading.servers, reading.settings, strict=True)
        ]
    results = [judged(server, tokens) for server in servers]
    emit("metrics", values, inputs.echo(values), results, notes, reading.warnings)


def _compared(
    values: Values, server: ServerMetrics, settings: dict[str, str], notes: list[str]
) -> ServerMetrics:
    """Return a server beside what is predicted of it."""
    asked = values
    if not values["engine"]:
        asked = Values({**values, "engine": [server.engine]}, values.origins, values.places)
    models = inputs.models(asked, notes)
    deployed = inputs.deployments(asked, notes)
    if len(models) > 1 or len(deployed) > 1:
        raise UsageError(
            "a server has one model and one way of serving it", hint="name one of each"
        )
    if deployed[0].engine != server.engine:
        raise UsageError(
            f"the page is {server.engine}'s, not {deployed[0].engine}'s",
            hint="leave out --engine",
            where=values.places.get("engine", ""),
        )
    memory = inputs.some_size(values, "kv_memory", "a cache", "15GiB")
    try:
        return compared(server, models[0], deployed[0], settings, memory)
    except KvcalcError as error:
        error.where = error.where or models[0].name
        raise
