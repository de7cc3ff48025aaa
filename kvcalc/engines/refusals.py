"""Start-up refusals that hang on sizes or settings: each engine's table, refusals.tsv beside it.

A rule in an engine's folder asks its table whether the check stands in a release, so that the table
that is printed and what is refused cannot differ.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from kvcalc.core.tables import read_table

__all__ = ["TABLES", "Row", "by_code", "rows"]

TABLES = {
    "llama.cpp": "kvcalc.engines.llamacpp",
    "sglang": "kvcalc.engines.sglang",
    "tensorrt-llm": "kvcalc.engines.tensorrt_llm",
    "vllm": "kvcalc.engines.vllm",
}
"""Engine -> the package whose refusals.tsv is its table."""

_NUMBERS = re.compile(r"\d+")


class Row(NamedTuple):
    """A refusal.

    Attributes:
        code: the finding that it is reported as.
        since, until: the first and the last release with the check; "" for as old as is known,
            and for still there.
        what: what is refused, in a sentence.
        settings: that it is about, by commas.
        example: what `kvcalc check` reads and finds refused.
        line: what the engine logs.
        source: file and symbol of the engine.
    """

    code: str
    since: str
    until: str
    what: str
    settings: str
    example: str
    line: str
    source: str

    def stands(self, release: tuple[int, ...]) -> bool:
        """Whether a release has the check, which is given by its numbers."""
        since, until = _numbers(self.since), _numbers(self.until)
        return since <= release and (not until or release <= until)


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, _NUMBERS.findall(release)))


@cache
def rows(engine: str) -> tuple[Row, ...]:
    """Return an engine's refusals, in the order of its table; none for an engine without one."""
    if engine not in TABLES:
        return ()
    heads, *read = read_table(TABLES[engine], "refusals.tsv")
    assert tuple(heads) == Row._fields  # noqa: S101 - the table is the package's own
    return tuple(Row(*cells) for cells in read)


@cache
def by_code(engine: str) -> dict[str, tuple[Row, ...]]:
    """Return an engine's refusals by their codes: one code may stand for several releases."""
    found: dict[str, tuple[Row, ...]] = {}
    for row in rows(engine):
        found[row.code] = (*found.get(row.code, ()), row)
    return found
