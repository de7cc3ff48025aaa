"""From what was typed to requests: of a trace, as listed, or the example."""

from __future__ import annotations

from kvcalc.cli.values import Values
from kvcalc.core.errors import UsageError
from kvcalc.core.lengths import EXAMPLE_LENGTHS, Lengths
from kvcalc.core.listed import parse_lengths
from kvcalc.core.units import format_number_of
from kvcalc.models.text import printable

__all__ = ["Workload", "workload"]


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
