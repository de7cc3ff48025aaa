"""Every test here runs in a folder of its own, with nothing in the environment that steers it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.harness import clean


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean(monkeypatch, tmp_path)
