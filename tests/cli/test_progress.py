"""What takes longer than a second says so on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys
from itertools import count

import pytest

from kvcalc.cli.output import progress
from kvcalc.sizing import question
from tests.cli.harness import call


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float) -> str:
    clock = count()
    monkeypatch.setattr("kvcalc.cli.output.time.monotonic", lambda: next(clock) * seconds)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("solving") as step:
        for _ in range(3):
            step()
    return stream.getvalue()


def test_a_line_that_is_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch, _Terminal(), seconds=2)
    assert shown.startswith("\rsolving: 1 settings tried\rsolving: 2 settings tried")
    assert shown.endswith("\r\x1b[K")


def test_nothing_in_the_first_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, _Terminal(), seconds=0.2) == ""


def test_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shown(monkeypatch, io.StringIO(), seconds=2) == ""


def test_solving_takes_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting that is tried is one, so that the line moves."""
    steps = []
    monkeypatch.setattr(question, "_listening", [lambda: steps.append(1)])
    call("capacity", "llama-3.1-70b", "--gpu", "l40s", "--solve", "gpus")
    assert len(steps) > 4
