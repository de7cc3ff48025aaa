"""kvcalc probe: measured against computed."""

from __future__ import annotations

import typer

from kvcalc.answers.probed import ProbeResult
from kvcalc.cli import inputs
from kvcalc.cli.given import idle
from kvcalc.cli.options import (
    DEPLOYMENT,
    ENGINE,
    KV_MEMORY,
    MODEL,
    OUTPUT,
    WORKLOAD,
    flag,
    register,
    text,
)
from kvcalc.cli.output import emit, say, write_file
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.plan import CachePlan
from kvcalc.measure.probe import BACKENDS, KERNELS, KINDS, open_device
from kvcalc.measure.probe.findings import ProbeLog, as_json, found, from_json

_P = "Probe"
_PROBE = (
    text("backend", "--backend", metavar="NAME", panel=_P,
         help="torch measures a device; nvml reads the driver; vllm, llama.cpp and transformers ask"
         " the installed engine what it would allocate."),
    text("device", "--device", metavar="KIND", panel=_P,
         help="auto (the first GPU), cuda, rocm, xpu, mps, or cpu: exact storage bytes on any"
         " machine."),
    text("kernel", "--kernel", metavar="NAME", panel=_P,
         help="auto, flashinfer, flash-attn, flex, or sdpa over gathered blocks."),
    text("limit", "--limit", metavar="SIZE", panel=_P,
         help="The most that the probe may hold at once; half of what is free otherwise."),
    text("repeat", "--repeat", metavar="N", panel=_P, help="Repetitions; 3 otherwise."),
    flag("dry_run", "--dry-run", panel=_P,
         help="No device: PyTorch's allocation rules, on --gpu's memory or 80 GiB."),
    text("log", "--log", metavar="FILE", panel=_P, env=False,
         help="Write every reading as JSON."),
    text("replay", "--replay", metavar="FILE", panel=_P, env=False,
         help="Evaluate such a log again, on any machine."),
)  # fmt: skip


_MEASURED = (
    *("limit", "repeat"),
    *(
        option.name
        for group in (MODEL, DEPLOYMENT, KV_MEMORY, ENGINE, WORKLOAD)
        for option in group
    ),
)
"""Options of what is measured."""


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "probe",
        run,
        MODEL,
        _PROBE,
        DEPLOYMENT,
        KV_MEMORY,
        ENGINE,
        WORKLOAD,
        OUTPUT,
        help="Allocate a cache as an engine would, run a decode step over it, and compare what the"
        " device gives up with what is computed.",
        epilog="Example: kvcalc probe llama-3.1-8b --engine vllm --gpu h100-80gb --dry-run",
    )


def run(values: Values) -> None:
    """Measure, or evaluate a log.

    Raises:
        UsageError: options that do not go together.
    """
    notes: list[str] = []
    backend = inputs.choice(values, "backend", BACKENDS)
    if values["replay"] is not None:
        _alone(values, "replay", ("log", "dry_run", "backend", "device", "kernel"))
        notes += idle(values, _MEASURED, "the log says what was measured")
        results = [found(_read(values["replay"]))]
    elif backend == "nvml":
        from kvcalc.measure.probe.nvml import driver_results

        others = (*_MEASURED, *(option.name for option in _PROBE if option.name != "backend"))
        notes += idle(values, others, "the driver is read, and nothing is measured")
        results = list(driver_results())
    elif backend == "torch":
        results = [_measured(values, notes)]
    else:
        _no_log(values, backend)
        results = [_asked(values, backend, notes)]
    emit("probe", values, inputs.echo(values), results, notes)


def _alone(values: Values, name: str, others: tuple[str, ...]) -> None:
    for other in others:
        if values[other]:
            raise UsageError(
                f"{values.places[other]} does not go with {values.places[name]}",
                hint=f"leave out {values.places[other]}: a log says what was measured",
            )


def _no_log(values: Values, backend: str) -> None:
    for name in ("log", "dry_run", "device", "kernel", "limit", "repeat"):
        if values[name]:
            raise UsageError(
                f"{values.places[name]} is of --backend torch",
                hint=f"{backend} is asked, and nothing is measured: leave it out",
            )


def _plan(values: Values, notes: list[str]) -> tuple[CachePlan, Deployment]:
    models = inputs.models(values, notes)
    deployed = inputs.combinations(values, notes, default_max=inputs.DEFAULT_TOKENS)
    planned = inputs.plans(models, deployed, notes, tell=False)
    if len(planned) > 1:
        raise UsageError("several models or settings", hint="probe one at a time")
    return planned[0].plan, deployed[0].deployment


def _measured(values: Values, notes: list[str]) -> ProbeResult:
    """Measure a pool with torch, or go through the motions without a device."""
    from kvcalc.measure.probe.procedure import ask, measure

    kind = inputs.choice(values, "device", KINDS)
    kernel = inputs.choice(values, "kernel", KERNELS)
    repetitions = inputs.number(values, "repeat") or 3
    limit = inputs.some_size(values, "limit", "a limit", "4GiB")
    plan, deployment = _plan(values, notes)
    card = deployment.gpu
    device = open_device(
        kind,
        kernel,
        dry_run=values["dry_run"],
        memory_bytes=card.memory_bytes if isinstance(card, GpuSpec) else None,
        name=f"{card.title}, dry run" if isinstance(card, GpuSpec) else "",
    )
    lengths = inputs.workload(values, notes).lengths.limited(
        plan.max_model_len, inputs.over_policy(values)
    )
    memory = inputs.some_size(values, "kv_memory", "a cache", "1GiB")
    from kvcalc import __version__

    log = measure(
        device,
        ask(plan, lengths, memory),
        backend="dry-run" if values["dry_run"] else "torch",
        version=__version__,
        repetitions=repetitions,
        limit=limit,
        told=lambda line: say("note", line),
    )
    if values["log"] is not None:
        write_file(values["log"], as_json(log))
    return found(log)


def _asked(values: Values, backend: str, notes: list[str]) -> ProbeResult:
    """Ask an installed engine what it would allocate."""
    from kvcalc.measure.probe.engine_query import ask_engine, require

    require(backend)
    if not values["engine"]:
        values["engine"] = [backend]
    models = inputs.models(values, notes)
    deployed = inputs.deployments(values, notes, default_max=None)
    if len(models) > 1 or len(deployed) > 1:
        raise UsageError("several models or settings", hint="probe one at a time")
    try:
        return ask_engine(
            backend,
            models[0],
            deployed[0],
            kv_cache_bytes=inputs.some_size(values, "kv_memory", "a cache", "1GiB"),
            source=_source(values),
            lengths=inputs.workload(values, notes).lengths,
        )
    except KvcalcError as error:
        error.where = error.where or models[0].name
        raise


def _source(values: Values) -> str | None:
    """Return the model's file or folder, where one was named."""
    for name in ("config", "gguf", "models", "preset"):
        given = values[name]
        if given:
            return str(given[0])
    return None


def _read(path: str) -> ProbeLog:
    from kvcalc.measure.source import named_source, read_bytes

    hint = "name what a probe wrote: kvcalc probe ... --log FILE"
    return from_json(read_bytes(path, hint=hint, large=hint), named_source(path))
