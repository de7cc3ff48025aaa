"""Start-up logs: read whatever the container, rank or colour, and held against kvcalc's plan."""

from __future__ import annotations

from kvcalc.measure.logs.answer import answered, compared
from kvcalc.measure.logs.lines import lines_of
from kvcalc.measure.logs.reading import ReadStart, chosen, read_start
from kvcalc.measure.logs.resolve import Given
from kvcalc.measure.logs.starts import Start, starts_of

__all__ = [
    "Given",
    "ReadStart",
    "Start",
    "answered",
    "chosen",
    "compared",
    "lines_of",
    "read_start",
    "starts_of",
]
