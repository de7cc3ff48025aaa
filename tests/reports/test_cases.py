"""What people met and what is right there: each row of the table, by the command as it is typed."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.harness import call, clean
from tests.reports.conditions import broken

HERE = Path(__file__).parent


class Case(NamedTuple):
    """A row: the kind of fault, a command, what is right of its outcome, and who says so."""

    kind: str
    command: str
    right: str
    source: str


def _cases() -> list[Case]:
    with (HERE / "cases.tsv").open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert tuple(next(rows)) == Case._fields
        return [Case(*row) for row in rows]


CASES = _cases()


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c.kind}" for i, c in enumerate(CASES)])
def test_right(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command answers what is right, whatever it answered before."""
    shutil.copytree(HERE / "inputs", tmp_path / "inputs")
    clean(monkeypatch, tmp_path)
    outcome = call(*shlex.split(case.command)[1:])
    assert "Traceback" not in outcome.err
    assert not broken(case.right, outcome), "\n".join(
        [case.command, case.source, *broken(case.right, outcome)]
    )


def test_every_row_says_what_is_right_and_who_says_so() -> None:
    """A row without a condition could not fail."""
    for case in CASES:
        assert case.command.startswith("kvcalc "), case
        assert case.right, case
        assert case.source, case
