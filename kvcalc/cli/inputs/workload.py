"""From what was typed to requests: of a trace, as listed, or the example."""

from __future__ import annotations

from kvcalc.cli.inputs.numbers import MAX_LISTED, cut, whole
from kvcalc.cli.values import Values
from kvcalc.core.errors import InvalidValueError, UsageError
from kvcalc.core.lengths import EXAMPLE_LENGTHS, Lengths
from kvcalc.core.units import format_number_of, parse_tokens
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
        return Workload("as listed", values.at("lengths", lambda: _listed(values["lengths"])))
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


_MOST_REQUESTS = 100_000_000_000_000_000_000  # of one length


def _listed(text: str) -> Lengths:
    """Read `200,1200,700` or `3x200,1200`: a request each, or as many as the factor says."""
    counts: dict[int, int] = {}
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MAX_LISTED:
        raise InvalidValueError(
            f"{len(parts)} lengths in one list", hint="write them to a file and use --trace"
        )
    for part in parts:
        factor, times, length = part.rpartition("x")
        if not length or (times and not factor):
            raise InvalidValueError(
                f"{cut(part)!r} is no length", hint="write lengths such as 200,1200 or 50x700"
            )
        n = parse_tokens(length)
        counts[n] = counts.get(n, 0) + (whole(factor, _MOST_REQUESTS) if times else 1)
    return Lengths(counts)
