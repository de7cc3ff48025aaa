"""What a run of checks came to: results, the deployments they are about, and the count."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvcalc.answers.assertions import Check, CheckSummary, summary, told, worst_first
from kvcalc.core.errors import ChecksFailed
from kvcalc.core.values import Value

__all__ = ["CheckReport", "Deployed", "ReadSetting"]

_SHOWN = 20  # failures that an exception lists


class ReadSetting(Value, frozen=True, kw_only=True):
    """One setting as it was read, and where it stands.

    Attributes:
        name: of the setting; `model`, `gpu` and `replicas` among them.
        value: as kvcalc takes it; null where a variable without a value leaves it open.
        kind: field, arg (the engine's own), other (shown, decides nothing).
        written: the flag, key or variable that it was written as.
        where: `file:line`.
    """

    name: str
    value: str | int | float | bool | None
    kind: Literal["field", "arg", "other"]
    written: str
    where: str


class Deployed(Value, frozen=True, kw_only=True):
    """One deployment that was checked.

    Attributes:
        engine, engine_version, model, gpu: null where nothing says them.
        figures: metric -> value, of those that there are without a workload.
        read: what was read of it, where that was asked for.
    """

    name: str
    file: str
    line: int
    engine: str | None
    engine_version: str | None
    model: str | None
    gpu: str | None
    figures: dict[str, bool | int | float] = {}
    read: tuple[ReadSetting, ...] = ()


class CheckReport(Value, frozen=True, kw_only=True):
    """Results of a run.

    Attributes:
        results: one entry an assertion or finding, in the order of the files.
        deployments: what they are about.
        summary: how many there are of each status.
    """

    results: tuple[Check, ...]
    deployments: tuple[Deployed, ...]
    summary: CheckSummary

    @property
    def failures(self) -> tuple[Check, ...]:
        """What failed, or was refused."""
        return tuple(r for r in self.results if r.status in ("fail", "refused"))

    @property
    def ok(self) -> bool:
        """Whether nothing failed; warnings are allowed."""
        return not self.failures

    def exit_code(
        self, *, fail_on_warn: bool = False, fail_on_skip: bool = False, no_fail: bool = False
    ) -> int:
        """Return the exit code: 2 where something could not be read, 1 where a check failed.

        Args:
            fail_on_warn: warnings are failures, but those that the baseline has, too.
            fail_on_skip: what could not be asked is a failure, but what the baseline has, too.
            no_fail: failures are told and count as none; what could not be read still does.
        """
        if self.summary.refused:
            return 2
        strict = self.strict(fail_on_warn=fail_on_warn, fail_on_skip=fail_on_skip)
        return 1 if strict.summary.failed and not no_fail else 0

    def strict(self, *, fail_on_warn: bool = False, fail_on_skip: bool = False) -> CheckReport:
        """Return the report with warnings, or what was skipped, as failures.

        What the baseline has by no less stays what it is. So every format agrees with the exit
        code.
        """
        strict = {
            *(("warn",) if fail_on_warn else ()),
            *(("skip",) if fail_on_skip else ()),
        }
        results = tuple(
            msgspec.structs.replace(r, status="fail") if r.status in strict and not r.known else r
            for r in self.results
        )
        return msgspec.structs.replace(self, results=results, summary=summary(results))

    def raise_for_failures(self) -> None:
        """Do nothing where all checks passed: one line in a test.

        Raises:
            ChecksFailed: an AssertionError that lists what failed, and what would pass.
        """
        failures = self.failures
        if not failures:
            return
        lines = [
            f"{r.name}: {told(r)}" + (f" ({r.hint})" if r.hint else "")
            for r in worst_first(failures)[:_SHOWN]
        ]
        more = len(failures) - len(lines)
        raise ChecksFailed("; ".join(lines) + (f"; and {more} more" if more else ""))
