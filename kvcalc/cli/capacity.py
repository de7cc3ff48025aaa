"""kvcalc capacity: will it fit, how much will there be, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import typer

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.cli import inputs
from kvcalc.cli.cards import card_settings
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
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, KvcalcError, UsageError
from kvcalc.core.lengths import Lengths, Over
from kvcalc.core.model import ModelSpec
from kvcalc.core.units import format_bytes, format_count, format_number_of
from kvcalc.engines import engine_of, plan
from kvcalc.engines.changes import changed
from kvcalc.sizing import SETTINGS, Question, answer
from kvcalc.sizing.question import listen
from kvcalc.sizing.valid import checked

__all__ = []


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


# From what was typed to capacity questions: the card, its memory, and the engine's default.

_T = TypeVar("_T")
_ASSUMED = "h100-80gb"
"""Whose kernels are taken where memory is given and no card is named."""


def answered(
    values: Values,
    notes: list[str],
    refused: list[str],
    ask: Callable[[Question, inputs.Combination], _T],
) -> list[_T]:
    """Return the answer for every model under every deployment; an error names the model.

    Args:
        values: what was given.
        notes: lines are added for defaults, and for requests that are longer than the maximum.
        refused: where several combinations are asked, a line for each that is refused is added.
        ask: answers one question, of one combination.

    Raises:
        UsageError: no memory to answer for.
        KvcalcError: what a model or the one engine refuses (of several combinations: all are).
    """
    models = inputs.models(values, notes, weights=True)
    _engine(values, notes)
    _nothing_in_vain(values)
    deployed = inputs.combinations(values, notes, several=True)
    at = tuple(
        values.at("at", lambda text=text: inputs.token_count(text))  # type: ignore[misc]  # its default
        for text in values["at"] or ()
    )
    load = _load(values, notes)
    found: list[_T] = []
    faults = inputs.Refused(deployed, refused)
    for model in models:
        for one in deployed:
            given = _given(one.values, notes, at, load)
            try:
                found.append(ask(_question(model, one, given, notes), one))
            except KvcalcError as error:
                faults.add(model, one, error)
    faults.close(any_left=bool(found))
    return found


def _given(
    values: Values, notes: list[str], at: tuple[int, ...], load: inputs.Workload | None
) -> _Given:
    return _Given(
        memory=_card(values, notes),
        cache=_meant(values, "kv_memory", "a cache", "15GiB"),
        weights=_meant(values, "weights", "weights", "15GiB", up=True),
        free=_meant(values, "gpu_free", "", "66GiB"),
        host=_meant(values, "host_memory", "host memory", "64GiB"),
        at=at,
        load=load,
    )


class _Given(NamedTuple):
    """What was given for all questions: bytes of the card, of the cache, ..., and requests."""

    memory: int | None
    cache: int | None
    weights: int | None
    free: int | None
    host: int | None
    at: tuple[int, ...]
    load: inputs.Workload | None


_LEAST = 1_048_576
"""Bytes; fewer, without a unit, are a size whose unit was forgotten."""


def _meant(values: Values, name: str, what: str, example: str, *, up: bool = False) -> int | None:
    """Read a size in bytes as somebody means it.

    Args:
        values: what was given.
        name: whose.
        what: what of 0 B holds nothing; empty where 0 B may be.
        example: a size that would do.
        up: round a fraction of a byte up.

    Raises:
        InvalidValueError: nothing, or a number that is missing its unit.
    """
    found = inputs.size(values, name, up=up)
    if found is None:
        return None
    if found == 0 and what:
        raise InvalidValueError(
            f"{what} of 0 B hold{'' if what.endswith('s') else 's'} nothing",
            hint=f"give a size such as {example}",
            where=values.places[name],
        )
    bare = str(values[name]).replace(",", "").strip()
    if 0 < found < _LEAST and bare.isdigit():
        raise InvalidValueError(
            f"{bare} without a unit are {format_bytes(found)}",
            hint=f"write {bare}GiB or {bare}GB, or {bare}B if that is meant",
            where=values.places[name],
        )
    return found


def _nothing_in_vain(values: Values) -> None:
    """Refuse what is said of requests where none are given.

    Raises:
        UsageError: a column, or what becomes of long requests.
    """
    if values["lengths"] is not None or values["trace"] is not None:
        return
    for name in ("prompt_column", "output_column", "over"):
        if values[name] is not None and values.typed(name):
            raise UsageError(
                "no requests are given that this could be said of",
                hint="give them with --trace FILE or --lengths, or leave it out",
                where=values.places[name],
            )


def _load(values: Values, notes: list[str]) -> inputs.Workload | None:
    """Return the requests, read once: a trace may come from stdin."""
    if values["lengths"] is None and values["trace"] is None:
        return None
    return inputs.workload(values, notes)


def _question(
    model: ModelSpec, one: inputs.Combination, given: _Given, notes: list[str]
) -> Question:
    values = one.values
    deployment = _completed(one.deployment, values, given.memory, given.cache)
    load = None
    if given.load is not None:
        lengths = _limited(given.load, plan(model, deployment).max_model_len, values, notes)
        load = (given.load.name, lengths)
    return checked(
        Question(
            model=model,
            deployment=deployment,
            weights_bytes=given.weights,
            quantization=values["quantization"],
            sequences=inputs.number(values, "sequences") or 1,
            lengths=given.at,
            workload=load,
            instances=inputs.number(values, "instances") or 1,
            free_bytes=given.free,
            host_bytes=given.host,
            all_layouts=bool(values.get("all_layouts")),
        )
    )


_OVER: dict[Over, str] = {
    "clip": "cut to it",
    "exclude": "left out",
    "keep": "kept as they are, though the engine refuses them",
}


def _limited(load: inputs.Workload, longest: int, values: Values, notes: list[str]) -> Lengths:
    """Return the requests under a maximum; a note tells how many were longer.

    Raises:
        InvalidValueError: none is left.
    """
    over = inputs.over_policy(values)
    count = load.lengths.requests_over(longest)
    found = load.lengths.limited(longest, over)
    if count:
        requests = format_number_of(load.lengths.requests, "request")
        notes.append(
            f"{load.name}: {format_count(count)} of {requests} are longer than the maximum of"
            f" {format_count(longest)} tokens: {_OVER[over]} (--over {over})"
        )
    if not found.requests:
        raise InvalidValueError(
            f"no request of {load.name} is within {format_count(longest)} tokens",
            hint="raise the maximum (--max), or cut longer requests to it (--over clip)",
        )
    return found


def _engine(values: Values, notes: list[str]) -> None:
    """Take vLLM where no engine is named, and llama.cpp for GGUF files."""
    if values["engine"]:
        return
    names = [*(values["models"] or ()), *(values["preset"] or ())]
    files = bool(values["gguf"]) or any(name.lower().endswith(".gguf") for name in names)
    values["engine"] = ["llama.cpp" if files else "vllm"]
    notes.append(f"no engine was named: {values['engine'][0]}")


def _card(values: Values, notes: list[str]) -> int | None:
    """Return the memory of the card where it is given by itself."""
    memory = _meant(values, "gpu_memory", "a card", "24GiB")
    if memory is not None and values["gpu"] is None:
        notes.append(f"no card was named: kernels are chosen as on {_ASSUMED}")
    return memory


def _completed(
    deployment: Deployment, values: Values, memory: int | None, cache: int | None
) -> Deployment:
    """Return a deployment with its card, its share and its cache."""
    gpu = deployment.gpu
    fixed = engine_of(deployment.engine).settings_fix_cache
    if memory is None and gpu is None and cache is None and not fixed:
        raise UsageError(
            "capacity of what memory?",
            hint="name the card (--gpu h100-80gb), its memory (--gpu-memory) or the cache's"
            " (--kv-memory)",
        )
    changes = card_settings(deployment, values, memory)
    if cache is not None:
        changes["kv_cache_memory_bytes"] = cache
    return changed(deployment, changes, {})
