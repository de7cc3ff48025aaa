"""kvcalc plan: what an engine allocates and holds, and why."""

from __future__ import annotations

import typer

from kvcalc.answers.differences import differences
from kvcalc.answers.plan_summary import summarise, too_much
from kvcalc.answers.results import Difference
from kvcalc.cli import inputs
from kvcalc.cli.options import (
    COMPARED,
    DEPLOYMENT,
    ENGINE,
    KV_MEMORY,
    MODEL,
    OUTPUT,
    register,
)
from kvcalc.cli.output import emit
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import start_up_log


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "plan",
        run,
        MODEL,
        DEPLOYMENT,
        ENGINE,
        KV_MEMORY,
        OUTPUT,
        help="What an engine allocates and holds for a model: groups of layers, pages, blocks a"
        " request, and the reason for every number.",
        epilog="Example: kvcalc plan qwen3.5-27b --engine vllm --gpu h100-80gb --max 8192"
        " --kv-memory 15GiB",
        compared=COMPARED,
    )


def run(values: Values) -> None:
    """Plan every model under every deployment."""
    notes: list[str] = []
    models = inputs.models(values, notes)
    refused: list[str] = []
    deployed = inputs.combinations(values, notes, several=True)
    planned = inputs.plans(models, deployed, notes, tell=False, refused=refused)
    first: dict[str, CachePlan] = {}
    results = []
    for found, model, (each, deployment) in planned:
        memory = inputs.some_size(each, "kv_memory", "a cache", "15GiB")
        card = deployment.gpu
        card_bytes = card.memory_bytes if isinstance(card, GpuSpec) else None
        log = start_up_log(found, memory) if found.sized or memory is not None else ()
        base = first.setdefault(found.model, found)
        apart: tuple[Difference, ...] = ()
        if base.engine != found.engine:
            apart = differences(found, base, memory)
        results.append(
            summarise(
                found,
                kv_cache_bytes=memory,
                card_bytes=card_bytes,
                longest_that_fits=_longest(found, model, deployment, memory),
                log=log,
                differences=apart,
                flags=each.apart,
            )
        )
    emit("plan", values, inputs.echo(values, planned), results, notes, refused)


def _longest(
    found: CachePlan, model: ModelSpec, deployment: Deployment, memory: int | None
) -> int | None:
    """Return the longest sequence of a plan that fits where this one's fixed size does not."""
    if found.split != "fixed" or not too_much(found, memory):
        return None
    # Only plans that fail need it.
    from kvcalc.sizing.question import Question
    from kvcalc.sizing.solve.lengths import longest_planned

    question = Question(model, deployment)
    return longest_planned(question, found.max_model_len, lambda p: not too_much(p, memory))
