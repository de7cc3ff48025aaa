"""Results of checks as GitLab's Code Quality report: one entry a result that is not well.

docs.gitlab.com, "Code Quality report format": description, check_name, fingerprint, severity,
location.path (relative, without a leading ./), location.lines.begin.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Sequence

from kvcalc.answers.assertions import Check, told, worst_first
from kvcalc.core.units import UnitSystem

__all__ = ["as_code_quality"]

_SEVERITIES = {
    "refused": "critical",
    "fail": "major",
    "warn": "minor",
    "skip": "info",
    "note": "info",
}
_NO_FILE = "kvcalc.yaml"
"""Where an entry is put that belongs to no file: each must have a path."""


def as_code_quality(results: Sequence[Check], units: UnitSystem) -> str:
    """Return the report as JSON, the worst first.

    A fingerprint stays the same while a result is about the same thing: it holds the deployment,
    the assertion and the file, and no measured value nor line.
    """
    seen: dict[str, int] = {}
    entries = []
    for result in worst_first(results):
        severity = _SEVERITIES.get(result.status)
        if severity is None:
            continue
        path = _path(result.file)
        about = "\0".join((path, result.name, result.assertion, result.workload or ""))
        number = seen[about] = seen.get(about, 0) + 1  # two findings of one kind differ
        mark = hashlib.sha256(f"{about}\0{number}".encode("utf-8", "surrogatepass")).hexdigest()
        entries.append(
            {
                "description": _description(result, units),
                "check_name": f"kvcalc/{result.assertion}",
                "fingerprint": mark,
                "severity": severity,
                "location": {"path": path, "lines": {"begin": max(1, result.line)}},
            }
        )
    return json.dumps(entries, indent=2, ensure_ascii=True) + "\n"


def _path(file: str) -> str:
    if file in ("", "-"):
        return _NO_FILE
    return posixpath.normpath(file.replace("\\", "/"))


def _description(result: Check, units: UnitSystem) -> str:
    of = f" of {result.workload}" if result.workload else ""
    hint = f" -> {result.hint}" if result.hint else ""
    return f"{result.name}{of}: {told(result, units)}{hint}"
