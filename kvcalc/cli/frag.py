"""kvcalc frag: free memory against the largest hole."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from kvcalc.cli import inputs
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
from kvcalc.core.fragmentation import fragmentation, other_reading
from kvcalc.core.plan import CachePlan
from kvcalc.core.results import Fragmentation
from kvcalc.core.units import format_number_of

_P = "Memory"
_MEMORY = (
    text("free", "--free", metavar="SIZE", panel=_P, env=False, help="Free bytes, all holes."),
    text("largest", "--largest", metavar="SIZE", panel=_P, env=False, help="The largest hole."),
    text("holes", "--holes", metavar="SIZE,SIZE,...", panel=_P, env=False,
         help="Every hole instead; 29x512MiB for equal ones."),
    text("request", "--request", metavar="SIZE", panel=_P, env=False,
         help="The allocation asked for. Default: one sequence of the maximum."),
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
        " blocks?",
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
    """Judge one state of memory for every model's sequences."""
    notes: list[str] = []
    memory, units = inputs.memory(values), inputs.unit_system(values)
    other = inputs.memory(values, swapped=True)
    models = inputs.models(values, notes)
    deployed = inputs.deployments(values, notes, default_max=inputs.DEFAULT_TOKENS)
    plans = inputs.plans(models, deployed, notes)
    results = []
    for p in plans:
        result = fragmentation(p, memory, units=units, explain=values["explain"])
        results.append(result)
        notes += _places(p, result)
        if other != memory:
            said = other_reading(result, fragmentation(p, other))
            whose = f"{p.model}, {p.kv_cache_dtype}, block {p.block_size}: " if plans[1:] else ""
            notes.extend(whose + line for line in said)
    emit("frag", values, inputs.echo(values, plans), results, notes)
