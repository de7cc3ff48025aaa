"""Errors whose cause is known and is no matter of size, by what their lines say.

A row of the table (known_errors.tsv) is a line's template, the cause in words, and what to change.
The more telling rows come first: of several lines around an end the one with the first row tells
the cause. A row that is marked `ends` ends a start where no exception is raised: a command's own
usage errors.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from kvcalc.core.errors import printable
from kvcalc.measure.logs.shapes import compiled

__all__ = ["KNOWN_NEEDLES", "Known", "known_of"]

_LONG = 4_000  # characters of a line that are looked at


class Known(NamedTuple):
    """What an error's line says.

    Attributes:
        row: of the table: less is more telling.
        cause: in words; "" where the error's own words say it.
        cure: what to change.
        ends: it ends the process, whatever the line begins with.
    """

    row: int
    cause: str
    cure: str
    ends: bool = False


class _Row(NamedTuple):
    ends: bool
    needle: str
    expression: re.Pattern[str]
    cause: str
    cure: str


@cache
def _table() -> tuple[_Row, ...]:
    text = files(__package__).joinpath("known_errors.tsv").read_text(encoding="utf-8")
    return tuple(
        _Row(ends == "ends", needle, compiled(template)[0], cause, cure)
        for ends, needle, template, cause, cure in (
            line.split("\t") for line in text.splitlines()[1:]
        )
    )


KNOWN_NEEDLES = tuple(dict.fromkeys(row.needle for row in _table()))
"""Of each line that the table tells the cause of."""


def known_of(text: str) -> Known | None:
    """Return what the table says of a line; None where it knows nothing of it.

    >>> known_of("RuntimeError: No CUDA GPUs are available").cause
    'no GPU is visible to the process'
    """
    text = text[:_LONG]
    for number, row in enumerate(_table()):
        if row.needle in text and (match := row.expression.search(text)):
            told = {name: printable(value.rstrip(".,;: ")) for name, value in
                    match.groupdict(default="").items()}  # fmt: skip
            return Known(number, row.cause.format(**told), row.cure.format(**told), row.ends)
    return None
