"""kvcalc capacity: will it fit, how much will there be, and what to change."""

from __future__ import annotations

import typer

from kvcalc.cli import inputs
from kvcalc.cli.options import (
    CARD,
    COMPARED,
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
from kvcalc.cli.output import emit, progress
from kvcalc.cli.questions import answered
from kvcalc.cli.values import Values
from kvcalc.core.answers import CapacityAnswer
from kvcalc.core.errors import UsageError
from kvcalc.sizing import SETTINGS, Question, answer
from kvcalc.sizing.question import listen

_Q = "Question"
_UNMET = 1
_QUESTION = (
    text("sequences", "--sequences", metavar="N", panel=_Q,
         help="The goal: so many sequences of the maximum at once, on all replicas. Default 1."),
    text("at", "--at", metavar="TOKENS", panel=_Q, many=True,
         help="Also sequences of so many tokens at once; repeatable."),
    flag("levers", "--levers", panel=_Q, help="What each setting would buy, the best first."),
    text("solve", "--solve", metavar="SETTING", panel=_Q, env=False, many=True,
         help=f"Turn the question round: {', '.join(SETTINGS)}. Repeatable."),
    flag("all_layouts", "--all-layouts", panel=_Q,
         help="Solve for gpus and tp among all splits: 13 stages, 64 tensor ranks, too."),
    flag("layouts", "--layouts", panel=_Q,
         help="The same GPUs in other ways: 2 x TP4 against 1 x TP8."),
    text("instances", "--instances", metavar="N", panel=_Q,
         help="Servers of this kind on each card."),
    flag("suggest", "--suggest", panel=_Q, help="The engine's own command for this."),
    flag("require_fit", "--require-fit", panel=_Q,
         help="Exit 1 unless it surely fits."),
)  # fmt: skip


def add(app: typer.Typer) -> None:
    """Add the command."""
    register(
        app,
        "capacity",
        run,
        MODEL,
        _QUESTION,
        DEPLOYMENT,
        KV_MEMORY,
        CARD,
        ENGINE,
        WORKLOAD,
        OUTPUT,
        help="Whether a model fits on a card, with how many tokens and sequences, and what each"
        " setting would change.",
        epilog="Example: kvcalc capacity llama-3.1-8b --gpu l40s --max 32768 --levers",
        compared=(*COMPARED, "sequences", "instances"),
    )


def run(values: Values) -> None:
    """Answer for every model under every deployment.

    Raises:
        Exit: with 1 where --require-fit is not met.
    """
    notes: list[str] = []
    wanted = tuple(
        inputs.one_of(name, tuple(SETTINGS), values.places["solve"])
        for name in dict.fromkeys(values["solve"] or ())
    )
    refused: list[str] = []

    def ask(question: Question, one: inputs.Combination) -> CapacityAnswer:
        deployment = question.deployment
        nothing = deployment.gpu is None and deployment.kv_cache_memory_bytes is None
        if values["require_fit"] and nothing:
            raise UsageError(
                "whether it fits into what memory?",
                hint="name the GPU (--gpu h100-80gb), its memory (--gpu-memory) or the cache's"
                " (--kv-memory)",
                where="--require-fit",
            )
        return answer(
            question,
            with_levers=values["levers"],
            solve_for=wanted,
            with_layouts=values["layouts"],
            suggest=values["suggest"],
            flags=one.values.apart,
        )

    with progress("solving") as step, listen(step):
        results = answered(values, notes, refused, ask)
    emit("capacity", values, inputs.echo(values), results, notes, refused)
    if values["require_fit"] and (refused or not all(result.fits for result in results)):
        raise typer.Exit(_UNMET)
