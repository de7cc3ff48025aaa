"""Starts that died, written by us in the shapes that engines print: the cause is in line 1."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kvcalc.answers.logs import LogAnswer
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs import Given, answered, read_start
from kvcalc.report.log import log_blocks
from kvcalc.report.table import plain, render

FOLDER = Path(__file__).parent / "written" / "deaths"


class Death(NamedTuple):
    """A log and what is right of it.

    Attributes:
        name: of the file.
        outcome: answers.logs.Outcome.
        first: found in the first line of the answer.
        cure: found in a cure; empty where nobody knows one.
        fix: the flag of a change that a plan confirms; empty where size is not the cause.
        levers: `no` where settings that buy room are beside the point.
    """

    name: str
    outcome: str
    first: str
    cure: str
    fix: str
    levers: str


def deaths() -> list[Death]:
    """Return the rows of the table."""
    with (FOLDER / "right.tsv").open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert tuple(next(rows)) == Death._fields
        return [Death(*row) for row in rows]


def answer_of(path: Path) -> LogAnswer:
    """Return what is said of a log, no more given than its lines."""
    return answered(read_start("-", Given(), None, io.BytesIO(path.read_bytes())))


@pytest.mark.parametrize("death", deaths(), ids=lambda death: death.name)
def test_a_death(death: Death) -> None:
    found = answer_of(FOLDER / f"{death.name}.log")

    assert found.outcome == death.outcome
    assert re.search(death.first, found.verdict.partition("\n")[0]), found.verdict
    assert found.failure
    if death.cure:
        assert any(re.search(death.cure, cure) for cure in found.cures), found.cures
    assert [f for f in found.fixes if f.flags[:1] == (f"--{death.fix}",)] or not death.fix
    if death.levers == "no":
        assert found.levers == ()


@pytest.mark.parametrize("death", deaths(), ids=lambda death: death.name)
def test_no_size_is_offered_where_size_is_not_the_cause(death: Death) -> None:
    """No share, batch or length is told to who has no GPU, no model or no compiler."""
    found = answer_of(FOLDER / f"{death.name}.log")
    if death.name.startswith(("oom-", "neighbour")):
        return
    told = " ".join(found.cures)
    assert not re.search(r"--(gpu-memory-util|max-model-len|max-num|kv-cache)", told), told
    assert found.fixes == ()


def test_weights_that_do_not_fit_are_no_matter_of_the_share() -> None:
    for death in deaths():
        if "loading" in death.name and death.name.startswith("oom"):
            found = answer_of(FOLDER / f"{death.name}.log")
            assert not any("lower" in cure and "no lower" not in cure for cure in found.cures)


def test_the_cause_is_the_first_line_that_is_printed() -> None:
    for death in deaths():
        found = answer_of(FOLDER / f"{death.name}.log")
        lines = render(log_blocks([found], format_bytes), width=10_000, ascii_only=True)
        first = plain(lines).partition("\n")[0]
        assert re.search(death.first, first), first


def test_logs_and_rows_are_the_same() -> None:
    assert {death.name for death in deaths()} == {path.stem for path in FOLDER.glob("*.log")}
    assert len(deaths()) >= 25
