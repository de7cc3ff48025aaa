"""kvcalc compare: contiguous reservation against paging."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from kvcalc.answers.compare import compare
from kvcalc.answers.plan_summary import notes_without
from kvcalc.cli import inputs
from kvcalc.cli.options import (
    COMPARED,
    DEPLOYMENT,
    ENGINE,
    EXPLAIN,
    MODEL,
    OUTPUT,
    WORKLOAD,
    register,
    text,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.capacity import short_of
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_count

_MEMORY = (
    text("kv_memory", "--kv-memory", metavar="SIZE", panel="Deployment",
         help="Cache of each rank: how many requests it holds each way."),
)  # fmt: skip


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "compare",
        run,
        MODEL,
        WORKLOAD,
        _MEMORY,
        DEPLOYMENT,
        ENGINE,
        OUTPUT,
        EXPLAIN,
        help="What requests reserve in one piece and in blocks, what they use, and why the rest"
        " is wasted.",
        epilog="Example: kvcalc compare llama-3.1-8b --max 4096 --trace requests.csv --block 16"
        " --block 32",
        compared=COMPARED,
    )


def run(values: Values) -> None:
    """Compare every model under every block size, over the same requests."""
    notes: list[str] = []
    models = inputs.models(values, notes)
    load = inputs.workload(values, notes)
    over = inputs.over_policy(values)
    refused: list[str] = []
    deployed = inputs.combinations(values, notes, default_max=inputs.DEFAULT_TOKENS)
    planned = inputs.plans(models, deployed, notes, refused=refused)
    results = []
    for found, _, (each, _) in planned:
        memory = inputs.size(each, "kv_memory")
        if memory:
            short = short_of(found, memory)
            told = notes_without(short, tuple(notes), f"{found.model}: ")
            notes[:] = (*told, *_does_not_start(found, memory))
        result = compare(
            found,
            load.lengths,
            workload=load.name,
            over=over,
            kv_cache_bytes=memory,
            explain=values["explain"],
            flags=each.apart,
        )
        results.append(result)
    emit("compare", values, inputs.echo(values, planned), results, notes, refused)


def _does_not_start(plan: CachePlan, memory: int) -> Iterator[str]:
    """Say so where the engine would not start with that memory, or not serve the maximum."""
    if plan.engine == "none":
        return  # nothing starts
    found = plan.capacity(memory)
    if found.starts and found.max_model_len_served < plan.max_model_len:
        yield (
            f"{plan.model}: with {format_count(memory)} B {plan.engine} serves no sequence over"
            f" {format_count(found.max_model_len_served)} tokens"
        )
    elif not found.starts:
        short = short_of(plan, memory) if found.needed_bytes <= memory else None
        why = (
            f"one sequence of {format_count(plan.max_model_len)} needs"
            f" {format_count(found.needed_bytes)} B"
            if short is None
            else short[0].told(short[1])
        )
        yield f"{plan.model}: {plan.engine} does not start with {format_count(memory)} B: {why}"
