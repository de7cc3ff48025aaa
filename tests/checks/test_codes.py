"""The codes of findings: kvcalc.yaml knows those that the sources use, and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvcalc
from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.checks.file import read_check_file
from kvcalc.core.errors import InputFaults
from kvcalc.engines.refusals import TABLES, rows

ROOT = Path(kvcalc.__file__).parent
MAKERS = {"Finding", "find", "_find", "_finding", "_stopped", "_faulty", "fault", "Fault"}
"""What makes a finding: its code is an argument."""


def _is_code(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.replace("-", "").isalpha()
        and node.value.islower()
    )


def codes_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name not in MAKERS:
            continue
        for given in node.args[:3]:
            branches = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
            found = [b.value for b in branches if _is_code(b)]  # type: ignore[attr-defined]
            if found:
                yield from found
                break


def test_every_code_is_known() -> None:
    """A code that a source tells is in the table, so that its level can be set."""
    files = [*ROOT.glob("manifests/**/*.py"), *ROOT.glob("checks/*.py")]
    told = {code for path in files for code in codes_of(path) if "-" in code or code in _WORDS}

    assert len(told) > 50
    assert told - set(FINDING_CODES) == set()


_WORDS = ("contradiction", "unreadable")


def test_every_code_is_told() -> None:
    """A code of the table is in a source, outside of the table, or in an engine's refusals."""
    files = [
        path for part in ("manifests", "checks", "engines") for path in ROOT.glob(f"{part}/**/*.py")
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    refused = {row.code for engine in TABLES for row in rows(engine)}

    assert refused - set(FINDING_CODES) == set()
    assert [c for c in FINDING_CODES if f'"{c}"' not in text and c not in refused] == []


_OF_ONE = "deployments:\n  - name: a\n    model: llama-3.1-8b\n    findings: {%s: warn}\n"


@pytest.mark.parametrize("place", ["findings: {%s: warn}\n", _OF_ONE])
def test_unknown_codes(place: str) -> None:
    """A code that there is not is a slip, told with the nearest and its line."""
    with pytest.raises(InputFaults) as caught:
        read_check_file(place % "idle-gpu", "kvcalc.yaml")

    assert "unknown finding 'idle-gpu'" in caught.value.errors[0].message
    assert "idle-gpus" in caught.value.errors[0].hint
    assert read_check_file(place % "idle-gpus", "kvcalc.yaml")
