"""What failed before by no less is no failure now: a run held against an earlier one."""

from __future__ import annotations

from typing import Any

import msgspec

from kvcalc.answers.assertions import Check, Status
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.compared import read_check
from kvcalc.checks.run import report_of

__all__ = ["Known", "against", "read_baseline"]

Known = dict[tuple[str, str, str | None], list[dict[str, Any]]]
"""(deployment, assertion, workload) -> what was found of it."""

_EXCUSED: dict[Status, tuple[Status, tuple[str, ...]]] = {
    # status now -> what it becomes, and what it may have been before
    "fail": ("warn", ("fail",)),
    "warn": ("note", ("fail", "warn")),
    "skip": ("skip", ("skip",)),
}
_WAS = {"warn": "fail", "note": "warn"}
"""What a result was that an earlier baseline excused -> what it would have been without."""


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

    Warnings that were there before are notes, and what was skipped before may be again. Each
    earlier result excuses one of now, so that a second fault of a kind is a new one.
    """
    left = {key: list(results) for key, results in known.items()}
    results = [_held(result, left) for result in report.results]
    return report_of(results, report.deployments)


def _held(result: Check, left: Known) -> Check:
    becomes, before = _EXCUSED.get(result.status, (result.status, ()))
    earlier = left.get((result.name, result.assertion, result.workload), [])
    excusing = [each for each in earlier if _was(each) in before and _no_worse(result, each)]
    if not excusing:
        return result
    # the one that excuses least, so that the others excuse more of what follows
    earlier.remove(min(excusing, key=lambda each: each.get("amount") or 0))
    return msgspec.structs.replace(result, status=becomes, known=True)


def _was(earlier: dict[str, Any]) -> str:
    status = str(earlier.get("status"))
    return _WAS.get(status, status) if earlier.get("known") is True else status


def _no_worse(result: Check, earlier: dict[str, Any]) -> bool:
    """Whether what is found now is no worse than what was found before.

    A figure is compared by its assertion's side, a fault by its amount; where neither is a number
    it is the same fault only while the same is said of it.
    """
    if result.status == "skip":
        return True
    was, now = earlier.get("actual"), result.actual
    if result.operator in (">=", "<=") and now is not None and was is not None:
        return bool(now >= was if result.operator == ">=" else now <= was)
    if result.operator is not None and (now != was or type(now) is not bool):
        return now == was
    if result.amount is not None and earlier.get("amount") is not None:
        return bool(result.amount <= earlier["amount"])
    return result.amount is None and result.message == earlier.get("message")
