"""What failed before by no less is no failure now: a run held against an earlier one."""

from __future__ import annotations

from typing import Any

import msgspec

from kvcalc.checks.compared import read_check
from kvcalc.checks.run import report_of
from kvcalc.core.check_report import CheckReport
from kvcalc.core.checks import Check

__all__ = ["Known", "against", "read_baseline"]

Known = dict[tuple[str, str, str | None], list[dict[str, Any]]]
"""(deployment, assertion, workload) -> what was found of it."""


def read_baseline(path: str) -> Known:
    """Read what an earlier run found.

    Raises:
        InputError: no document of kvcalc check.
    """
    known: Known = {}
    for result in read_check(path):
        key = (str(result["name"]), str(result["assertion"]), result.get("workload"))
        known.setdefault(key, []).append(result)
    return known


def against(report: CheckReport, known: Known) -> CheckReport:
    """Return a report in which a failure that was there before, by no less, is a warning.

    Warnings that were there before are notes, so that `--fail-on-warn` fails on new ones alone.
    """
    results = [_held(result, known) for result in report.results]
    return report_of(results, report.deployments)


def _held(result: Check, known: Known) -> Check:
    if result.status not in ("fail", "warn"):
        return result
    earlier = known.get((result.name, result.assertion, result.workload), ())
    if not any(_no_better(result, each) for each in earlier):
        return result
    status = "warn" if result.status == "fail" else "note"
    return msgspec.structs.replace(result, status=status, known=True)


def _no_better(result: Check, earlier: dict[str, Any]) -> bool:
    """Whether an earlier failure was by as much, or more."""
    before = ("fail",) if result.status == "fail" else ("fail", "warn")
    kept = earlier.get("status") in before or (
        earlier.get("known") is True and earlier.get("status") in ("warn", "note")
    )
    if not kept:
        return False
    was, now = earlier.get("actual"), result.actual
    if result.operator is None or now is None or was is None:
        return True
    if result.operator == ">=":
        return bool(now >= was)
    if result.operator == "<=":
        return bool(now <= was)
    return bool(now == was)
