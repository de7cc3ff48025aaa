"""What all tests share: where the reference material lies, and no skip that nobody expects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared"
ABSENT = "../shared is absent"

EXPECTED_SKIPS = {
    ABSENT: not SHARED.is_dir(),
    "nothing is unreadable to root, nor by mode on Windows": (
        not hasattr(os, "geteuid") or os.geteuid() == 0
    ),
}
"""Reason of a skip -> whether it is to be expected here; any other fails a CI run."""

LEFT_OUT = "left out: "
"""How the reason of an oracle's row begins that a table in its test lists."""

_unexpected: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note skips without an expected reason."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        if not reason.startswith(LEFT_OUT) and not EXPECTED_SKIPS.get(reason, False):
            _unexpected.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a CI run that skipped something else."""
    if os.environ.get("CI") and _unexpected and session.exitstatus == 0:
        print("\nunexpected skips:", *_unexpected, sep="\n  ")
        session.exitstatus = 1


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No KVCALC_* variable, terminal width or colour of the caller reaches a test."""
    for name in list(os.environ):
        if name.startswith("KVCALC_") or name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
            monkeypatch.delenv(name)
