"""kvcalc check: the files that will be deployed, held to what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from kvcalc.cli import inputs
from kvcalc.cli.options import OUTPUT, argument, flag, register, text
from kvcalc.cli.output import emit
from kvcalc.cli.values import Origin, Values
from kvcalc.core.errors import KvcalcError, UsageError

_F, _A = "What is read", "What is asked"

_FILES = (
    argument("files", "FILE",
             "Manifests, scripts, kvcalc.yaml, folders, - for stdin; behind --, a serve command."),
)  # fmt: skip
_READ = (
    text("gpu", "--gpu", metavar="NAME", panel=_F,
         help="The card, whatever the files say of it."),
    text("gpu_memory", "--gpu-memory", metavar="SIZE", panel=_F,
         help="Memory of each card, instead of the card's own."),
    text("host_memory", "--host-memory", metavar="SIZE", panel=_F,
         help="Host memory that each server may have, instead of its container's limit."),
    text("gpu_free", "--gpu-free", metavar="SIZE", panel=_F,
         help="What is free of each card before a server starts."),
    text("engine_version", "--engine-version", metavar="VERSION", panel=_F,
         help="Which version's rules, whatever the files say."),
    text("model", "--model", metavar="[NAME=]MODEL", panel=_F, env=False, many=True,
         help="What a served NAME is (a preset, config.json, GGUF file); without a NAME, what every"
         " unknown one is. Repeatable."),
    text("quantization", "--quantization", metavar="NAME", panel=_F,
         help="What the weights are kept in, whatever the files say: fp8, awq, q4_k_m, ..."),
    flag("show", "--show", panel=_F, help="Print what was read, and from which line."),
)  # fmt: skip
_ASKED = (
    text("asserts", "--assert", metavar="NAME=LIMIT", panel=_A, env=False, many=True,
         help="An assertion for every deployment: min_max_concurrency=32. Repeatable."),
    text("sequences", "--sequences", metavar="N", panel=_A,
         help="The goal of `fits`: so many sequences of the maximum at once."),
    text("baseline", "--baseline", metavar="FILE", panel=_A, env=False,
         help="A `check --format json` of before: what failed there by no less is no failure."),
    flag("fail_on_warn", "--fail-on-warn", panel=_A,
         help="Exit 1 for warnings, too, but for those of the baseline."),
    flag("fail_on_skip", "--fail-on-skip", panel=_A,
         help="Exit 1 for what could not be asked, too: no card, no model that is known."),
    flag("strict", "--strict", panel=_A,
         help="Exit 1 for warnings and skips, too: --fail-on-warn --fail-on-skip."),
    flag("allow_skips", "--allow-skips", panel=_A,
         help="Exit 0 though nothing was checked: no assertion could be asked of any deployment."),
    flag("no_fail", "--no-fail", panel=_A,
         help="Exit 0 though checks fail; 2 stays for what cannot be read."),
)  # fmt: skip
_FORMAT = text(
    "format", "--format", "-f", metavar="FORMAT", panel="Output",
    help="table, json, csv, markdown, github (annotations), junit or gitlab (code quality).",
)  # fmt: skip
_OUTPUT = tuple(_FORMAT if option.name == "format" else option for option in OUTPUT)


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "check",
        run,
        _FILES,
        _READ,
        _ASKED,
        _OUTPUT,
        help="Check deployments before they start: whether they fit, what contradicts itself, and"
        " what kvcalc.yaml asserts of them.",
        epilog="Example: kvcalc check --gpu h100-80gb -- vllm serve meta-llama/Llama-3.1-8B"
        " --max-model-len 8192",
    )


def run(values: Values) -> None:
    """Check everything that is named.

    Raises:
        Exit: 1 where a check failed or nothing was checked, 2 where something could not be read.
    """
    from kvcalc.checks.gather import gather
    from kvcalc.checks.run import run as run_checks

    options = _options(values)
    notes: list[str] = []
    targets = gather(values["files"] or (), values.behind, options, notes=notes)
    found = run_checks(
        targets,
        figures=_for_machines(values),
        show=values["show"],
        allow_skips=values["allow_skips"],
    )
    if values["baseline"] is not None:
        from kvcalc.checks.baseline import against, read_baseline

        found = against(found, read_baseline(values["baseline"]))
    strict = values["strict"]
    found = found.strict(
        fail_on_warn=strict or values["fail_on_warn"],
        fail_on_skip=strict or values["fail_on_skip"],
    )
    members = {"summary": found.summary, "deployments": found.deployments}
    emit("check", values, _echo(values), found.results, notes, members=members)
    code = found.exit_code(no_fail=values["no_fail"])
    if code:
        raise typer.Exit(code)


def _for_machines(values: Values) -> bool:
    """Whether figures are printed, which tables leave out."""
    reports = values["report"] or ()
    return values["format"] == "json" or any(r.startswith("json:") for r in reports)


def _options(values: Values) -> Any:
    from kvcalc.checks.gather import Options, read_settings

    settings = values["settings"]
    path = "kvcalc.yaml" if settings is None else settings
    read = None
    if path and (settings is not None or _is_file(path)):
        read = read_settings(path)

    def said(name: str) -> bool:  # a settings file's own is a default, and not above the files
        return values.origins.get(name) in (Origin.TYPED, Origin.VARIABLE)

    return Options(
        settings=read,
        gpu=_card(values) if said("gpu") else None,
        gpu_memory=inputs.some_size(values, "gpu_memory", "a card", "24GiB"),
        gpu_free=inputs.size(values, "gpu_free"),
        host_memory=inputs.size(values, "host_memory"),
        engine_version=values["engine_version"] if said("engine_version") else None,
        sequences=inputs.number(values, "sequences"),
        quantization=_format(values) if said("quantization") else None,
        models=tuple(values["model"] or ()),
        assertions=_assertions(values["asserts"] or ()),
        folders=tuple(inputs.preset_folders()),
    )


def _is_file(path: str) -> bool:
    import os

    return os.path.isfile(path)


def _card(values: Values) -> str:
    from kvcalc.checks.cards import card_of

    name = str(values["gpu"])
    values.at("gpu", lambda: card_of(name))
    return name


def _assertions(texts: Sequence[str]) -> tuple[Any, ...]:
    """Return the assertions, each once.

    Raises:
        UsageError: two limits of one.
    """
    found: dict[str, Any] = {}
    for given in texts:
        one = _assertion(given)
        if found.setdefault(one.name, one) != one:
            raise UsageError(f"{one.name} has two limits", hint="give it once", where="--assert")
    return tuple(found.values())


def _format(values: Values) -> str:
    from kvcalc.weights.formats import weight_width

    name = str(values["quantization"])
    values.at("quantization", lambda: weight_width(name))
    return name


def _assertion(given: str) -> Any:
    from kvcalc.answers.assertions import parse_assertion

    name, equals, limit = given.partition("=")
    if not equals:
        raise UsageError(
            f"{given!r:.60} is not NAME=LIMIT",
            hint="write --assert min_max_concurrency=32",
            where="--assert",
        )
    try:
        return parse_assertion(name.strip(), limit.strip())
    except KvcalcError as error:
        error.where = "--assert"
        raise


def _echo(values: Values) -> dict[str, Any]:
    """Return the inputs of the document; of a command behind `--`, that there was one."""
    given = inputs.echo(values)
    return {**given, "command": True} if values.behind else given
