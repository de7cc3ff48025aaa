"""The plans of models under deployments, and what an answer repeats of the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvcalc.cli.inputs.deployments import PARALLEL, Combination
from kvcalc.cli.inputs.numbers import number
from kvcalc.cli.settings import ALL_SWITCHES
from kvcalc.cli.values import Values
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.lengths import EXAMPLE_LENGTHS, Lengths, parse_lengths
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.units import format_number_of
from kvcalc.engines import plan
from kvcalc.models.text import printable

__all__ = ["DEFAULT_TOKENS", "Planned", "Refused", "Workload", "echo", "plans", "workload"]


DEFAULT_TOKENS = 8192
_NO_SETTINGS = ("engine", "engine_version", "gpu", "engine_args")
"""Fields of a deployment that --engine-arg does not set."""


class Planned(NamedTuple):
    """A plan, the model and what of the values it was made of."""

    plan: CachePlan
    model: ModelSpec
    asked: Combination


class Refused:
    """What engines refuse of several combinations: a line for each, and the error where all do.

    Args:
        deployed: all combinations.
        lines: those of one engine alone raise; of several there is a line for each that is refused.
    """

    def __init__(self, deployed: Sequence[Combination], lines: list[str]) -> None:
        self.deployed = deployed
        self.lines = lines
        self.faults: list[KvcalcError] = []
        engines = {one.deployment.engine for one in deployed}
        self.several = len(engines) > 1 or any(one.values.apart for one in deployed)

    def add(self, model: ModelSpec, one: Combination, error: KvcalcError) -> None:
        """Keep what is refused of a model.

        Raises:
            KvcalcError: the same, where nothing else was asked for.
        """
        error.where = error.where or model.name
        if not self.several:
            raise error
        self.faults.append(error)
        hint = f" ({error.hint})" if error.hint else ""
        self.lines.append(f"{one.name}: refused: {error}{hint}")

    def close(self, *, any_left: bool) -> None:
        """Say how one engine alone is given a setting, where that is why others refuse.

        Raises:
            KvcalcError: the first, where nothing is left to answer for.
        """
        if self.faults and not any_left:
            raise self.faults[0]
        self.lines += _for_one_alone(self.faults, [one.deployment for one in self.deployed])


def plans(
    models: Sequence[ModelSpec],
    deployed: Sequence[Combination],
    notes: list[str],
    *,
    tell: bool = True,
    refused: list[str] | None = None,
) -> list[Planned]:
    """Return the plan of every model under every deployment; an error names the model.

    Args:
        models: the models.
        deployed: the deployments.
        notes: the plans' own are added, and which stage is shown where stages differ.
        tell: add the plans' own notes (False: the command shows them itself).
        refused: where several combinations are asked, a line for each that is refused is added, and
            the others are planned for; None to let every refusal be an error.

    Raises:
        UnsupportedError: a model and a deployment that do not go together (with `refused`: all).
    """
    made: list[Planned] = []
    faults = Refused(deployed, [] if refused is None else refused)
    for model in models:
        for one in deployed:
            try:
                made.append(Planned(plan(model, one.deployment), model, one))
            except KvcalcError as error:
                if refused is None:
                    error.where = error.where or model.name
                    raise
                faults.add(model, one, error)
    faults.close(any_left=bool(made))
    _tell([one.plan for one in made], notes, own=tell)
    return made


def _for_one_alone(faults: Sequence[KvcalcError], deployed: Sequence[Deployment]) -> list[str]:
    """Return how one engine alone is given a setting, where a setting is why another refuses."""
    if len({deployment.engine for deployment in deployed}) == 1:
        return []
    plain = Deployment()
    given = {
        name
        for deployment in deployed
        for name in Deployment.__struct_fields__
        if name not in _NO_SETTINGS and getattr(deployment, name) != getattr(plain, name)
    }
    given.update(name for deployment in deployed for name in deployment.engine_args)
    if not any(name in fault.message for fault in faults for name in given):
        return []
    return ["a setting for one engine alone: --engine-arg NAME:KEY=VALUE"]


def _tell(made: Sequence[CachePlan], notes: list[str], *, own: bool) -> None:
    for p in made:
        if own:
            notes.extend(f"{p.model}: {note}" for note in p.notes)
        if len(p.ranks) > 1:
            notes.append(f"{p.model}: figures of {_fullest(p)} at {p.max_model_len:,} tokens")


def _fullest(found: CachePlan) -> str:
    """Say whose figures a plan's are, the host apart from the devices."""
    devices = [rank for rank in found.ranks if not rank.on_host]
    host = next((rank for rank in found.ranks if rank.on_host), None)
    if host is None:
        return f"{found.rank.name} of {len(devices)}, the fullest"
    each = "the device" if len(devices) == 1 else f"each of {len(devices)} devices"
    if found.rank.on_host:
        return f"the host, which keeps more than {each}"
    of = f" of {len(devices)} devices" if len(devices) > 1 else ""
    return f"{found.rank.name}{of}, which keeps more than the host,"


def echo(values: Values, planned: Sequence[Planned] = ()) -> dict[str, Any]:
    """Return the inputs of the JSON document: what was given, by option, and what it came to."""
    given = {
        key: _told(value)
        for key, value in {**values, **values.repeated}.items()
        if (value not in (None, False, [], ()) or (value is False and key in ALL_SWITCHES))
        and key not in ("format", "report", "settings")
    }
    plans = [one.plan for one in planned]
    if not plans:
        return given
    engines = list(dict.fromkeys(plan.engine for plan in plans))
    resolved: dict[str, Any] = {
        "models": list(dict.fromkeys(plan.model for plan in plans)),
        "engine": engines[0] if len(engines) == 1 else None,
        "engines": engines,
        "kv_cache_dtype": list(dict.fromkeys(plan.kv_cache_dtype for plan in plans)),
        "block_size": list(dict.fromkeys(plan.block_size for plan in plans)),
        "max_model_len": list(dict.fromkeys(plan.max_model_len for plan in plans)),
    }
    for short, long in PARALLEL:
        sizes = [int(text) for text in values.repeated.get(short, ())]
        resolved[f"{long}_parallel_size"] = sizes or number(values, short) or 1
    return {**given, "resolved": resolved}


def _told(value: Any) -> Any:
    """Return what was typed in characters that JSON can hold."""
    if isinstance(value, list):
        return [_told(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


# From what was typed to requests: of a trace, as listed, or the example.


class Workload:
    """Requests and what to call them."""

    def __init__(self, name: str, lengths: Lengths) -> None:
        self.name = name
        self.lengths = lengths


def workload(values: Values, notes: list[str]) -> Workload:
    """Return the requests to compare: of a trace, as listed, or the example.

    Raises:
        UsageError: a list and a trace at once, or columns without a trace.
    """
    columns = (values["prompt_column"], values["output_column"])
    if values["trace"] is None:
        if any(columns):
            named = "prompt_column" if columns[0] else "output_column"
            raise UsageError(
                "columns are named but no trace is given",
                hint="name the trace with --trace",
                where=values.places[named],
            )
        if values["lengths"] is None:
            return Workload("the example", Lengths.of(EXAMPLE_LENGTHS))
        return Workload("as listed", values.at("lengths", lambda: parse_lengths(values["lengths"])))
    if values.typed("lengths"):
        raise UsageError(
            "requests were given twice: --lengths and --trace", hint="leave out one of them"
        )
    if not values["trace"]:
        raise UsageError("no file is named", hint="name the trace", where=values.places["trace"])
    from kvcalc.workload.traces import read_trace  # only traces need it

    trace = read_trace(values["trace"], prompt_column=columns[0], output_column=columns[1])
    notes.append(
        f"{trace.name}: {format_number_of(trace.requests, 'request')}, {trace.tokens_told}"
    )
    return Workload(printable(trace.name), trace.lengths)
