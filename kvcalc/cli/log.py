"""kvcalc log: what a server said when it started, and whether it is right."""

from __future__ import annotations

import re
from typing import Any

import typer

from kvcalc.cli import inputs
from kvcalc.cli.cards import card_settings
from kvcalc.cli.given import idle
from kvcalc.cli.options import (
    CARD,
    DEPLOYMENT,
    ENGINE,
    MODEL,
    OUTPUT,
    argument,
    register,
    text,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Origin, Values
from kvcalc.core.errors import InvalidValueError, UsageError, printable

_TWO = 2
_MODEL_SOURCES = ("preset", "config", "gguf", "hf", "layers", "kv_heads", "head_dim", "v_head_dim")
_PRESENTATION = ("format", "units", "report", "settings", "files", "start")
_LOG = (
    argument("files", "FILE", "A start-up log, or two to compare; - for stdin, gzip too."),
    text("start", "--start", metavar="N", panel="Log", env=False, many=True,
         help="Which start of a log that holds several, from 1; with two logs once for each."
         " Default: the last."),
)  # fmt: skip
_OF_PREDICTION = tuple(
    option.name
    for group in (DEPLOYMENT, CARD, ENGINE)
    for option in group
    if option.name not in ("engine", "engine_version", "gpu", "gpu_memory", "gpu_free")
)
"""Options that matter to what is predicted alone."""
_NAMED = tuple(option for option in MODEL if option.name != "models")
_CARD = tuple(option for option in CARD if option.name != "gpu_free")


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "log",
        run,
        _LOG,
        _NAMED,
        DEPLOYMENT,
        _CARD,
        ENGINE,
        OUTPUT,
        help="What a server's start-up log says, what kvcalc says to it, and what to change; of two"
        " logs, what changed and how many tokens that cost.",
        epilog="Example: kvcalc log serve.log --gpu h100-80gb",
    )


def run(values: Values) -> None:
    """Read one start, or compare two.

    Raises:
        UsageError: no log, more than two, or stdin twice.
    """
    from kvcalc.measure.logs import answered, compared, read_start

    files = values["files"] or ()
    if not 1 <= len(files) <= _TWO:
        raise UsageError(
            f"{len(files)} logs" if files else "no log was named",
            hint="give one, or two to compare; - reads stdin",
            where=values.places["files"],
        )
    if list(files).count("-") > 1:
        raise UsageError("stdin is asked for twice", hint="name a file", where="FILE")
    notes: list[str] = []
    _without_settings_file(values, notes)
    wanted: list[int | None] = [
        values.at("start", lambda given=given: _number(given))  # type: ignore[misc]  # its default
        for given in values["start"] or ()
    ]
    if len(wanted) > len(files):
        raise UsageError("more starts than logs", hint="give one for each log", where="--start")
    numbers = [*wanted, *(None for _ in files)]
    given = _given(values, notes)
    reads = [read_start(file, given, number) for file, number in zip(files, numbers, strict=False)]
    if len(reads) == _TWO:
        emit("log-diff", values, inputs.echo(values), [compared(*reads)], notes)
    else:
        result = answered(reads[0], given)
        if not result.predicted:
            notes += idle(values, _OF_PREDICTION, "nothing is predicted of this log")
        emit("log", values, inputs.echo(values), [result], notes)


def _number(text: str) -> int:
    """Read the number of a start.

    Raises:
        InvalidValueError: no whole number from 1.
    """
    digits = text.strip()
    number = int(digits) if re.fullmatch("[0-9]{1,9}", digits) else 0
    if not number:
        raise InvalidValueError(
            f"{printable(text)[:40]!r} is not the number of a start",
            hint="starts count from 1",
        )
    return number


def _without_settings_file(values: Values, notes: list[str]) -> None:
    """Leave out what a settings file says of a deployment: a log tells its own."""
    dropped = [
        name
        for name, origin in values.origins.items()
        if origin is Origin.SETTINGS and name not in _PRESENTATION
    ]
    for name in dropped:
        values[name] = None
    if dropped:
        notes.append(
            f"not taken from the settings file: {', '.join(dropped)}; a log tells its own settings"
        )


def _given(values: Values, notes: list[str]) -> Any:
    """Return what was given of the server, whatever its log says."""
    from kvcalc.measure.logs import Given

    values["models"] = None
    model = None
    if any(values[name] is not None and values[name] != [] for name in _MODEL_SOURCES):
        found = inputs.models(values, notes, weights=True)
        if len(found) > 1:
            raise UsageError("a log is of one model", hint="name one of them", where="--model")
        model = found[0]
    engines = values["engine"]
    if not engines:
        # Engine arguments are read by the engine's own names; llama.cpp's flags are its alone.
        values["engine"] = ["llama.cpp" if values["ctx_size"] or values["parallel"] else "vllm"]
    deployed = inputs.deployments(values, [], warn=False)  # its engine is not known yet
    if len(deployed) > 1:
        raise UsageError(
            "a log is of one deployment", hint="give one KV cache dtype and one block size"
        )
    (deployment,) = deployed
    memory = inputs.some_size(values, "gpu_memory", "a card", "24GiB")
    settings: dict[str, Any] = {**deployment.changed(), **card_settings(deployment, values, memory)}
    args = settings.pop("engine_args", {})
    asked = settings.pop("engine", None)
    if not engines:
        asked = values["engine"] = None
    return Given(
        model=model,
        settings=settings,
        args=args,
        weights_bytes=inputs.some_size(values, "weights", "weights", "15GiB", up=True),
        quantization=values["quantization"],
        folders=tuple(inputs.preset_folders()),
        engine=asked,
    )
