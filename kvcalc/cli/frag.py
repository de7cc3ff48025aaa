"""kvcalc frag: free memory against the largest hole."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from kvcalc.answers.fragmentation import fragmentation, other_reading
from kvcalc.answers.results import Fragmentation
from kvcalc.cli import inputs
from kvcalc.cli.given import idle
from kvcalc.cli.inputs import holes
from kvcalc.cli.options import (
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
from kvcalc.core.errors import UsageError
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_number_of

_P, _F = "Memory", "Measured memory"
_MEMORY = (
    text("free", "--free", metavar="SIZE", panel=_P, env=False, help="Free bytes, all holes."),
    text("largest", "--largest", metavar="SIZE", panel=_P, env=False, help="The largest hole."),
    text("holes", "--holes", metavar="SIZE,SIZE,...", panel=_P, env=False,
         help="Every hole instead; 29x512MiB for equal ones."),
    text("request", "--request", metavar="SIZE", panel=_P, env=False,
         help="The allocation asked for. Default: one sequence of the maximum."),
    text("snapshot", "--snapshot", metavar="FILE", panel=_F, env=False,
         help="PyTorch's memory snapshot, pickle or JSON; - for stdin. Nothing in it is run."),
    text("device_free", "--device-free", metavar="SIZE", panel=_F, env=False,
         help="What the device has free beside the snapshot."),
    text("oom", "--oom", metavar="FILE", panel=_F, env=False,
         help="An out-of-memory text, or a log with one; - for stdin."),
    text("jax_stats", "--jax-stats", metavar="FILE", panel=_F, env=False,
         help="What JAX's device.memory_stats() returned; - for stdin."),
    text("bfc_log", "--bfc-log", metavar="FILE", panel=_F, env=False,
         help="A log with a BFC allocator's dump (TensorFlow, XLA); - for stdin."),
)  # fmt: skip


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "frag",
        run,
        _MEMORY,
        MODEL,
        DEPLOYMENT,
        ENGINE,
        OUTPUT,
        EXPLAIN,
        help="Does a request fit into the largest hole, and what would the free memory hold in"
        " blocks? Or what an allocator's snapshot or an out-of-memory text says of it.",
        epilog="Example: kvcalc frag --free 15GiB --largest 1.9GiB --request 2GiB",
    )


def _places(plan: CachePlan, result: Fragmentation) -> Iterator[str]:
    """Say so where a cache of a fixed size has fewer places than the free memory would hold."""
    free, places = result.sequences_of_max.in_free, plan.max_sequences
    if plan.split == "fixed" and places is not None and free > places:
        yield (
            f"{plan.model}: {plan.engine} has {format_number_of(places, 'place')} for sequences,"
            " and its cache a fixed size, however much memory is free"
        )


def run(values: Values) -> None:
    """Judge one state of memory for every model's sequences, or one out-of-memory text."""
    match holes.holes_file(values):
        case None:
            _sizes(values)
        case "oom":
            _oom(values)
        case name:
            _told(values, name)


def _oom(values: Values) -> None:
    """Judge the out-of-memory texts of a log; no model matters to them."""
    from kvcalc.measure.oom import read_oom_file

    for name in ("models", "preset", "config", "gguf", "hf", "layers"):
        if values[name]:
            raise UsageError(
                "an out-of-memory text is judged without a model",
                hint="leave the model out",
                where=values.places[name],
            )
    results = read_oom_file(values["oom"], units=inputs.unit_system(values))
    notes = ["the first is the cause of most that follow it"] if len(results) > 1 else []
    others = (option.name for group in (MODEL, DEPLOYMENT, ENGINE, EXPLAIN) for option in group)
    notes += idle(values, others, "an out-of-memory text is judged by itself")
    emit("frag-oom", values, inputs.echo(values), results, notes)


def _told(values: Values, name: str) -> None:
    """Judge what an allocator tells of its own memory."""
    from kvcalc.answers.allocator_fit import pool_fragmentation, snapshot_fragmentation

    notes: list[str] = []
    units, request = inputs.unit_system(values), inputs.size(values, "request", up=True)
    explain = values["explain"]
    snapshot, pools, free = None, [], None
    if name == "snapshot":
        snapshot, free = holes.snapshot(values, notes)
    else:
        pools = holes.pools(values, name)
    models = inputs.models(values, notes)
    deployed = inputs.combinations(values, notes, default_max=inputs.DEFAULT_TOKENS)
    planned = inputs.plans(models, deployed, notes)
    results = [
        pool_fragmentation(p, pool, request_bytes=request, units=units, explain=explain)
        for p, _, _ in planned
        for pool in pools
    ]
    if snapshot is not None:
        results = [
            snapshot_fragmentation(
                p,
                snapshot,
                device,
                request_bytes=request,
                device_free_bytes=free,
                units=units,
                explain=explain,
            )
            for p, _, _ in planned
            for device in snapshot.devices or (0,)  # an allocator that took nothing has none
        ]
    emit("frag", values, inputs.echo(values, planned), results, notes)


def _sizes(values: Values) -> None:
    notes: list[str] = []
    memory, units = holes.memory(values), inputs.unit_system(values)
    other = holes.memory(values, swapped=True)
    models = inputs.models(values, notes)
    deployed = inputs.combinations(values, notes, default_max=inputs.DEFAULT_TOKENS)
    planned = inputs.plans(models, deployed, notes)
    results = []
    for p, _, _ in planned:
        result = fragmentation(p, memory, units=units, explain=values["explain"])
        results.append(result)
        notes += _places(p, result)
        if other != memory:
            said = other_reading(result, fragmentation(p, other))
            whose = f"{p.model}, {p.kv_cache_dtype}, block {p.block_size}: " if planned[1:] else ""
            notes.extend(whose + line for line in said)
    emit("frag", values, inputs.echo(values, planned), results, notes)
