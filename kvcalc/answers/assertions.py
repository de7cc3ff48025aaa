"""Assertions as data: a metric, an operator by the name's prefix, a limit, and a level.

`min_X` passes where X >= limit, `max_X` where X <= limit, a bare `X` where X == limit: every bound
is inclusive. A result says what was expected, what was found, and what would pass. An estimate
whose two ends disagree about a limit neither passes nor fails: it is a warning with both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import eq, ge, le
from typing import Literal, NamedTuple

import msgspec

from kvcalc.answers.metrics import METRICS, Figure, Metric, metric_of, read_figure, shown
from kvcalc.core.errors import InvalidValueError, UnknownNameError, nearest
from kvcalc.core.units import UnitSystem
from kvcalc.core.values import Value

__all__ = [
    "LEVELS",
    "STATUSES",
    "Assertion",
    "Check",
    "CheckLevel",
    "CheckSummary",
    "Found",
    "Status",
    "assertion_names",
    "check",
    "holds",
    "parse_assertion",
    "skipped",
    "summary",
    "told",
    "worst_first",
]

CheckLevel = Literal["off", "note", "warn", "error"]
LEVELS: tuple[CheckLevel, ...] = ("off", "warn", "error")
"""What an assertion can be set to; findings may be notes, too."""

Status = Literal["refused", "fail", "warn", "skip", "note", "pass", "off"]
STATUSES: tuple[Status, ...] = ("refused", "fail", "warn", "skip", "note", "pass", "off")
"""The worst first. `refused`: the file or its model could not be read, exit 2."""

Operator = Literal[">=", "<=", "=="]
_PREFIXES: dict[str, Operator] = {"min_": ">=", "max_": "<="}
_PASSES: dict[Operator, Callable[[Figure, Figure], bool]] = {">=": ge, "<=": le, "==": eq}
_FAILS = {">=": "<", "<=": ">", "==": "!="}
_BY_LEVEL: dict[str, Status] = {"error": "fail", "warn": "warn", "note": "note", "off": "off"}


class Assertion(NamedTuple):
    """One assertion.

    Attributes:
        name: as it is written: `min_max_concurrency`.
        metric: what it is about: `max_concurrency`.
        operator: what must hold between the figure and the limit.
        limit: None where it is switched off without one.
        level: what a failure counts as.
        file, line: where it stands; "" and 0 for an option or a default.
    """

    name: str
    metric: str
    operator: Operator
    limit: Figure | None
    level: CheckLevel
    file: str = ""
    line: int = 0


class Found(NamedTuple):
    """A figure of a deployment, with its bounds where it is not exact."""

    value: Figure
    low: Figure | None = None
    high: Figure | None = None

    def at(self, figures: str) -> Figure:
        """Return the figure that is compared: expected, low or high."""
        bound = {"low": self.low, "high": self.high}.get(figures)
        return self.value if bound is None else bound


class Check(Value, frozen=True, kw_only=True):
    """The result of one assertion, or one finding.

    Attributes:
        name: of the deployment.
        assertion: as it is written (`min_max_concurrency`), or a finding's code (`gpus-requested`).
        workload: whose requests it is about; None for none.
        operator, limit, actual: `actual operator limit` must hold; None for a finding.
        low, high: bounds of `actual` where it is an estimate.
        level: what a failure counts as.
        status: pass, warn, fail, note, off; skip: it could not be asked, the message says why;
            refused: the file or the model could not be read.
        message: what is the matter, in one line; `detail` is a part of it.
        hint: what would pass, or what to write instead.
        where: `file:line`; "" for a command.
        file, line: the same apart; line from 1, 0 where there is none.
        amount: how bad it is, of what has no figure of its own (bytes that are missing, GPUs that
            are idle): the more the worse; None where that is no number.
        known: it failed in the baseline too, by no less.
    """

    name: str
    assertion: str
    workload: str | None = None
    operator: Operator | None = None
    limit: bool | int | float | None = None
    actual: bool | int | float | None = None
    low: bool | int | float | None = None
    high: bool | int | float | None = None
    level: CheckLevel
    status: Status
    message: str
    detail: str = ""
    hint: str = ""
    where: str = ""
    file: str = ""
    line: int = 0
    amount: int | float | None = None
    known: bool = False


class CheckSummary(Value, frozen=True, kw_only=True):
    """How many results there are of each status; notes and what is off are not counted."""

    passed: int
    failed: int
    warned: int
    skipped: int
    refused: int


def assertion_names() -> list[str]:
    """Return every name that an assertion can have, of the metrics with a name of their own."""
    names = []
    for name, metric in METRICS.items():
        if metric.kind == "bool":
            names.append(name)
            continue
        names += [f"{prefix}{name}" for prefix in _PREFIXES]
        if _has_equality(name, metric):
            names.append(name)
    return names


def _has_equality(name: str, metric: Metric) -> bool:
    """Whether `name: limit` is an assertion: not of estimates, nor where it looks like a bound."""
    return metric.kind in ("count", "bytes") and not name.startswith(tuple(_PREFIXES))


def parse_assertion(name: str, given: object, *, file: str = "", line: int = 0) -> Assertion:
    """Read an assertion: `min_max_concurrency: 32`, or `{limit: 32, level: warn}`, or `off`.

    Args:
        name: its name.
        given: the limit, a mapping of limit and level, or a level alone (`off`; of what is true or
            false, `warn` and `error` too).
        file: where it stands.
        line: where it stands.

    Raises:
        UnknownNameError: no such metric or level.
        InvalidValueError: a limit that is none of its kind, or a name with two readings.
    """
    metric_name, operator, metric = _named(name)
    level: CheckLevel = "error"
    if isinstance(given, Mapping):
        unknown = next((key for key in given if key not in ("limit", "level")), None)
        if unknown is not None:
            raise UnknownNameError("key", str(unknown), ("limit", "level"))
        if "level" in given:
            level = _level(given["level"])
        if "limit" not in given and metric.kind != "bool" and level != "off":
            raise InvalidValueError(
                f"{name} has no limit", hint=f"write {name}: {{limit: 32, level: warn}}"
            )
        given = given.get("limit", True if metric.kind == "bool" else None)
    elif given == "off" or (metric.kind == "bool" and given in LEVELS):
        level = _level(given)
        given = True if metric.kind == "bool" else None
    limit = None if given is None and level == "off" else read_figure(metric.kind, given)
    return Assertion(name, metric_name, operator, limit, level, file, line)


def _level(given: object) -> CheckLevel:
    for level in LEVELS:
        if given == level:
            return level
    raise UnknownNameError("level", f"{given!s:.40}", LEVELS)


def _named(name: str) -> tuple[str, Operator, Metric]:
    """Return the metric, the operator and what the metric is, of an assertion's name."""
    metric = metric_of(name)
    if metric is not None and (metric.kind == "bool" or _has_equality(name, metric)):
        return name, "==", metric
    if metric is not None:
        raise InvalidValueError(
            f"{name} does not say which side its limit is on",
            hint=f"write min_{name} (at least) or max_{name} (at most)",
        )
    for prefix, operator in _PREFIXES.items():
        rest = name.removeprefix(prefix)
        metric = metric_of(rest) if rest != name else None
        if metric is not None and metric.kind == "bool":
            raise InvalidValueError(f"{rest} is true or false", hint=f"write {rest}: true")
        if metric is not None:
            return rest, operator, metric
    raise UnknownNameError("assertion", f"{name:.60}", assertion_names(), hint=_guess(name))


def _guess(name: str) -> str:
    short, known = name[:60], assertion_names()
    close = nearest(short, known, 2) or nearest(f"min_{short}", known, 2)
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{guess}assertions are min_ or max_ before a figure: kvcalc schema kvcalc-yaml"


def check(
    name: str,
    assertion: Assertion,
    found: Found,
    *,
    figures: str = "expected",
    workload: str | None = None,
    hint: str = "",
    detail: str = "",
    amount: float | None = None,
) -> Check:
    """Hold a figure to an assertion.

    Args:
        name: of the deployment.
        assertion: what must hold.
        found: the figure.
        figures: `low` or `high` where that end decides; else both ends must agree.
        workload: whose requests it is about.
        hint: what would pass, where it does not surely pass.
        detail: why it does not.
        amount: how far it fails, where the figure does not say it.
    """
    held = holds(assertion, found, figures)
    found = found._replace(value=found.at(figures))
    if assertion.limit is None or assertion.level == "off":
        return _result(name, assertion, workload, "off", "switched off", "", found)
    status: Status = "warn" if held is None else "pass" if held else _BY_LEVEL[assertion.level]
    made = _result(name, assertion, workload, status, "", "" if held else hint, found)
    if not held:
        made = msgspec.structs.replace(made, detail=detail, amount=amount)
    return msgspec.structs.replace(made, message=told(made))


def holds(assertion: Assertion, found: Found, figures: str = "expected") -> bool | None:
    """Return whether a figure is within an assertion's limit; None where its two ends disagree.

    The limit itself is within it.

    Args:
        assertion: what must hold.
        found: the figure.
        figures: `low` or `high` where that end alone decides.
    """
    limit = assertion.limit
    if limit is None:
        return True
    passes = _PASSES[assertion.operator]
    if figures in ("low", "high") or found.low is None or found.high is None:
        return passes(found.at(figures), limit)
    within = {passes(end, limit) for end in (found.low, found.value, found.high)}
    between = min(found.low, found.high) <= limit <= max(found.low, found.high)
    if len(within) > 1 or (assertion.operator == "==" and between and found.low != found.high):
        return None
    return within.pop()


def skipped(
    name: str, assertion: Assertion, reason: str, hint: str, workload: str | None = None
) -> Check:
    """Return the result of an assertion that could not be asked."""
    status: Status = "off" if assertion.level == "off" else "skip"
    return _result(name, assertion, workload, status, reason, hint, None)


def _result(
    name: str,
    assertion: Assertion,
    workload: str | None,
    status: Status,
    message: str,
    hint: str,
    found: Found | None,
) -> Check:
    place = f"{assertion.file}:{assertion.line}" if assertion.line else assertion.file
    return Check(
        name=name,
        assertion=assertion.name,
        workload=workload,
        operator=assertion.operator,
        limit=assertion.limit,
        actual=None if found is None else found.value,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        level=assertion.level,
        status=status,
        message=message,
        hint=hint,
        where=place,
        file=assertion.file,
        line=assertion.line,
    )


def told(result: Check, units: UnitSystem = "binary") -> str:
    """Say a result in one line: `max_concurrency 17.25 < 32`.

    Where the two would print as the same though they differ, every digit is printed.
    """
    if result.operator is None or result.actual is None or result.limit is None:
        return result.message
    metric_name, _, metric = _named(result.assertion)
    passed = _PASSES[result.operator](result.actual, result.limit)
    sign = result.operator if passed else _FAILS[result.operator]
    actual, limit = (shown(metric.kind, v, units) for v in (result.actual, result.limit))
    if _bare(actual) == _bare(limit) and result.actual != result.limit:
        actual, limit = f"{result.actual!r}", f"{result.limit!r}"
    if metric.kind == "bool":
        said = f"{metric_name} is {'not certain' if _is_open(result) else actual}"
        return f"{said}: {result.detail}" if result.detail else said
    said = f"{metric_name} {actual} {sign} {limit}"
    if _is_open(result):
        said = f"{metric_name} {actual} {result.operator} {limit} is not certain"
    if result.low is not None and result.high is not None and result.low != result.high:
        low, high = (shown(metric.kind, v, units) for v in (result.low, result.high))
        said += f" ({low} to {high})"
    return f"{said}: {result.detail}" if result.detail else said


def _is_open(result: Check) -> bool:
    """Whether the ends of an estimate disagree about a limit, of a result that is no pass."""
    if result.status == "pass" or result.limit is None or result.actual is None:
        return False
    _, operator, _ = _named(result.assertion)
    given = Assertion(result.assertion, "", operator, result.limit, result.level)
    return holds(given, Found(result.actual, result.low, result.high)) is None


def _bare(text: str) -> str:
    """Return a number's text as an equal one may be written: 32 for 32.00."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def worst_first(results: Iterable[Check]) -> list[Check]:
    """Return results with the worst first, else in their order."""
    return sorted(results, key=lambda result: STATUSES.index(result.status))


def summary(results: Iterable[Check]) -> CheckSummary:
    """Count results by status."""
    counts = dict.fromkeys(STATUSES, 0)
    for result in results:
        counts[result.status] += 1
    return CheckSummary(
        passed=counts["pass"],
        failed=counts["fail"],
        warned=counts["warn"],
        skipped=counts["skip"],
        refused=counts["refused"],
    )
