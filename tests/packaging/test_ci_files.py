"""What other repositories use of this one: the pre-commit hooks and the GitHub action."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.harness import ROOT, validate

HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
ACTION = yaml.safe_load((ROOT / ".github/actions/kvcalc/action.yml").read_text(encoding="utf-8"))
CHECK = "deployments: [{name: a, model: llama-3.1-70b, gpu: h100-80gb, tp: %d, max: 32768}]\n"


def test_hooks() -> None:
    """Each hook has what pre-commit asks for, and starts kvcalc check."""
    for hook in HOOKS:
        assert {"id", "name", "entry", "language", "files"} <= {*hook}
        assert hook["entry"] == "kvcalc check"
        assert hook["language"] == "python"
        re.compile(hook["files"])


@pytest.mark.parametrize(
    ("path", "taken"),
    [
        ("kvcalc.yaml", True),
        ("deploy/kvcalc.yml", True),
        ("prod.kvcalc.yaml", True),
        ("mykvcalc.yaml", False),
        ("kvcalc.yaml.bak", False),
        ("deploy.yaml", False),
    ],
)
def test_files_of_the_hook(path: str, taken: bool) -> None:
    """The first hook takes every kvcalc.yaml, wherever it lies."""
    assert bool(re.search(HOOKS[0]["files"], path)) == taken


def test_action() -> None:
    """The action is composite; no input is written into a script, where it would be run."""
    steps = ACTION["runs"]["steps"]

    assert ACTION["runs"]["using"] == "composite"
    for step in steps:
        assert "uses" in step or step["shell"] == "bash"
        assert "${{ inputs" not in step.get("run", "")
    used = json.dumps(ACTION["runs"])
    for name, described in ACTION["inputs"].items():
        assert described["description"]
        assert f"inputs.{name} " in used


@pytest.mark.skipif(sys.platform == "win32", reason="the action's shell is bash")
@pytest.mark.parametrize(("tp", "code"), [(2, 1), (4, 0)])
def test_action_runs(tp: int, code: int, tmp_path: Path) -> None:
    """Its script annotates, writes the summary and the JSON, and fails as the check does."""
    (tmp_path / "kvcalc.yaml").write_text(CHECK % tp, encoding="utf-8")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "kvcalc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvcalc "$@"\n')
    (bin_ / "kvcalc").chmod(0o755)
    step: dict[str, Any] = next(s for s in ACTION["runs"]["steps"] if s.get("id") == "check")
    given = {"FILES": "kvcalc.yaml", "GPU": "", "ARGUMENTS": "--fail-on-warn", "BASELINE": ""}
    files = {"RUNNER_TEMP": tmp_path, "GITHUB_OUTPUT": tmp_path / "output",
             "GITHUB_STEP_SUMMARY": tmp_path / "summary"}  # fmt: skip
    assert {*step["env"]} == {*given}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", step["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            **given,
            **{name: str(path) for name, path in files.items()},
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == code, done.stderr
    assert ("::error file=kvcalc.yaml,line=1" in done.stdout) == bool(code)
    assert (tmp_path / "summary").read_text(encoding="utf-8").startswith("### kvcalc check: ")
    name, _, path = (tmp_path / "output").read_text(encoding="utf-8").strip().partition("=")
    assert name == "json"
    assert validate("check", json.loads(Path(path).read_text(encoding="utf-8"))) == []
