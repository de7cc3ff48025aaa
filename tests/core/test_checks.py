"""Assertions as data: names, limits, levels, and the boundary of every operator."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.assertions import (
    STATUSES,
    Check,
    Found,
    assertion_names,
    check,
    parse_assertion,
    skipped,
    summary,
    told,
    worst_first,
)
from kvcalc.answers.check_report import CheckReport
from kvcalc.answers.metrics import METRICS, Figure, metric_of, read_figure, shown
from kvcalc.core.errors import ChecksFailed, InvalidValueError, UnknownNameError

LIMITS: dict[str, Figure] = {
    # kind: a limit with room on both sides
    "count": 32,
    "bytes": 40 * 2**30,
    "number": 32.5,
    "ratio": 0.25,
    "price": 2.5,
}
STEPS: dict[str, float] = {"count": 1, "bytes": 1, "number": 0.01, "ratio": 1e-9, "price": 1e-6}
NUMBERS = {name: metric for name, metric in METRICS.items() if metric.kind != "bool"}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    ("prefix", "below", "above"), [("min", "fail", "pass"), ("max", "pass", "fail")]
)
def test_bounds_are_inclusive(name: str, prefix: str, below: str, above: str) -> None:
    """`min_X` passes from its limit on, `max_X` up to it: the limit itself passes both."""
    kind = NUMBERS[name].kind
    limit, step = LIMITS[kind], STEPS[kind]
    assertion = parse_assertion(f"{prefix}_{name}", limit)

    def status(value: Figure) -> str:
        return check("x", assertion, Found(value)).status

    assert assertion.operator == {"min": ">=", "max": "<="}[prefix]
    assert status(limit) == "pass"
    assert status(limit - step) == below
    assert status(limit + step) == above


EQUALS = [name for name in assertion_names() if name in METRICS]


@pytest.mark.parametrize("name", EQUALS)
def test_equality(name: str) -> None:
    """A bare name is an equality: nothing beside the limit passes."""
    limit: Figure = True if METRICS[name].kind == "bool" else 16
    assertion = parse_assertion(name, limit)
    others: list[Figure] = [False] if limit is True else [15, 17]

    assert assertion.operator == "=="
    assert check("x", assertion, Found(limit)).status == "pass"
    for other in others:
        assert check("x", assertion, Found(other)).status == "fail"


def test_false_may_be_asked_for() -> None:
    """What must not fit can be asserted, too."""
    assertion = parse_assertion("fits", given=False)

    assert check("x", assertion, Found(value=False)).status == "pass"
    assert check("x", assertion, Found(value=True)).status == "fail"


@pytest.mark.parametrize(
    ("name", "given", "limit", "level"),
    [
        ("min_max_concurrency", 32, 32, "error"),
        ("min_max_concurrency", {"limit": 32, "level": "warn"}, 32, "warn"),
        ("min_max_concurrency", "off", None, "off"),
        ("min_max_concurrency", {"limit": 32, "level": "off"}, 32, "off"),
        ("min_max_concurrency", {"level": "off"}, None, "off"),
        ("max_kv_cache_bytes", "40GiB", 40 * 2**30, "error"),
        ("max_kv_cache_bytes", "40GB", 40 * 10**9, "error"),
        ("max_kv_cache_bytes", 123, 123, "error"),
        ("max_paged_waste_ratio", "4 %", 0.04, "error"),
        ("max_paged_waste_ratio", "4%", 0.04, "error"),
        ("max_paged_waste_ratio", 0.04, 0.04, "error"),
        ("min_kv_cache_tokens", "131,072", 131072, "error"),
        ("min_concurrency_at_4096", "1.5", 1.5, "error"),
        ("fits", True, True, "error"),
        ("fits", "true", True, "error"),
        ("fits", "warn", True, "warn"),
        ("fits", "off", True, "off"),
        ("fits", {"level": "warn"}, True, "warn"),
        ("block_size", 16, 16, "error"),
    ],
)
def test_read(name: str, given: object, limit: Figure | None, level: str) -> None:
    """Limits have units, and levels stand beside them or instead of them."""
    found = parse_assertion(name, given)

    assert (found.limit, found.level) == (limit, level)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("max_kv_cache_bytes", "40G", "40GiB (2^30) or 40GB (10^9)"),
        ("min_kv_cache_tokens", "32k", "write 32000 or 32768"),
        ("max_paged_waste_ratio", 4, "0.04, or 4 %"),
        ("max_paged_waste_ratio", "101 %", "0.04, or 4 %"),
        ("min_max_concurrency", -1, "number from 0"),
        ("min_max_concurrency", True, "number from 0"),
        ("min_max_concurrency", float("nan"), "number from 0"),
        ("min_max_concurrency", float("inf"), "number from 0"),
        ("min_max_concurrency", {"level": "warn"}, "{limit: 32, level: warn}"),
        ("min_kv_cache_tokens", 1.5, "8192"),
        ("fits", "yes", "true or false"),
        ("fits", 1, "true or false"),
        ("max_concurrency", 32, "min_max_concurrency (at least)"),
        ("kv_cache_tokens", 1.5, "8192"),
        ("min_fits", True, "write fits: true"),
    ],
)
def test_refused(name: str, given: object, said: str) -> None:
    """What can be read in two ways, or in none, is refused with what to write."""
    with pytest.raises(InvalidValueError) as caught:
        parse_assertion(name, given)

    assert said in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("min_max_concurency", 1, "min_max_concurrency"),
        ("max_waste_ratio", 1, "max_paged_waste_ratio"),
        ("concurrency", 1, "max_concurrency"),
        ("min_concurrency_at_0", 1, "min_"),
        ("min_concurrency_at_4k", 1, "min_"),
        ("min_max_concurrency", {"limit": 1, "level": "fatal"}, "error"),
        ("min_max_concurrency", {"limit": 1, "lvel": "warn"}, "level"),
    ],
)
def test_unknown(name: str, given: object, said: str) -> None:
    """An unknown name is refused with the nearest that there is."""
    with pytest.raises(UnknownNameError) as caught:
        parse_assertion(name, given)

    assert said in caught.value.hint


def test_levels_decide_the_status() -> None:
    """The same failure is a failure, a warning or nothing at all."""
    for level, status in (("error", "fail"), ("warn", "warn"), ("off", "off")):
        assertion = parse_assertion("min_max_concurrency", {"limit": 32, "level": level})
        assert check("x", assertion, Found(17.0)).status == status


@pytest.mark.parametrize(
    ("name", "limit", "found", "status"),
    [
        ("min_max_concurrency", 16, Found(17.25, 15.0, 19.5), "warn"),
        ("min_max_concurrency", 18, Found(17.25, 15.0, 19.5), "warn"),
        ("min_max_concurrency", 15, Found(17.25, 15.0, 19.5), "pass"),
        ("min_max_concurrency", 19.6, Found(17.25, 15.0, 19.5), "fail"),
        ("max_host_bytes", 16, Found(17, 15, 17), "warn"),
        ("max_host_bytes", 17, Found(17, 15, 17), "pass"),
        ("max_host_bytes", 14, Found(17, 15, 17), "fail"),
        ("num_blocks", 16, Found(16, 15, 17), "warn"),
        ("num_blocks", 18, Found(16, 15, 17), "fail"),
        ("fits", True, Found(value=False, low=False, high=True), "warn"),
        ("fits", False, Found(value=False, low=False, high=True), "warn"),
    ],
)
def test_an_estimate_whose_ends_disagree_is_a_warning(
    name: str, limit: Figure, found: Found, status: str
) -> None:
    """Certain no fails, certain yes passes, and what lies between says so with both ends."""
    result = check("x", parse_assertion(name, limit), found, hint="a cure", detail="why")

    assert result.status == status
    assert ("not certain" in result.message) == (status == "warn")
    assert (result.hint == "") == (status == "pass")
    assert (result.low, result.high) == (found.low, found.high)


@pytest.mark.parametrize(
    ("figures", "limit", "status", "actual"),
    [
        ("low", 15.5, "fail", 15.0),
        ("low", 15.0, "pass", 15.0),
        ("high", 19.5, "pass", 19.5),
        ("high", 19.6, "fail", 19.5),
    ],
)
def test_an_end_that_is_named_decides_alone(
    figures: str, limit: float, status: str, actual: float
) -> None:
    """`figures: low` asks for certainty, `figures: high` for what may be."""
    assertion = parse_assertion("min_max_concurrency", limit)
    result = check("x", assertion, Found(17.25, 15.0, 19.5), figures=figures)

    assert (result.status, result.actual) == (status, actual)


def test_said() -> None:
    """A result says what was found, on which side of which limit, and within which bounds."""
    failed = check("x", parse_assertion("min_max_concurrency", 32), Found(17.25, 15.0, 19.5))
    unsure = check("x", parse_assertion("min_max_concurrency", 16), Found(17.25, 15.0, 19.5))
    passed = check("x", parse_assertion("max_kv_cache_bytes", "40GiB"), Found(20 * 2**30))

    assert failed.message == told(failed) == "max_concurrency 17.25 < 32 (15.00 to 19.50)"
    assert unsure.message == "max_concurrency 17.25 >= 16 is not certain (15.00 to 19.50)"
    assert passed.message == "kv_cache_bytes 20 GiB <= 40 GiB"
    assert told(passed, "decimal") == "kv_cache_bytes 21.47 GB <= 42.95 GB"


@pytest.mark.parametrize(
    ("name", "limit", "found"),
    [
        ("min_max_concurrency", 32, 31.999),
        ("max_kv_cache_bytes", 40 * 2**30, 40 * 2**30 + 1),
        ("max_paged_waste_ratio", 0.04, 0.0400001),
        ("max_cost_per_sequence_hour", 2.5, 2.50000001),
    ],
)
def test_equal_texts(name: str, limit: Figure, found: Figure) -> None:
    """Where limit and figure would print as the same while they differ, every digit is printed."""
    result = check("x", parse_assertion(name, limit), Found(found))
    kind = METRICS[name[4:]].kind

    assert result.status == "fail"
    assert shown(kind, found) == shown(kind, type(found)(limit))
    assert repr(found) in result.message


def results(*statuses: str) -> list[Check]:
    return [
        Check(name=f"d{i}", assertion="a", level="error", status=status, message="m")  # type: ignore[arg-type]
        for i, status in enumerate(statuses)
    ]


def test_order_and_count() -> None:
    """The worst come first, else nothing moves; each is counted once."""
    found = results("pass", "warn", "fail", "off", "refused", "skip", "note", "fail")

    assert [r.status for r in worst_first(found)] == sorted(
        (r.status for r in found), key=STATUSES.index
    )
    assert [r.name for r in worst_first(found)][1:3] == ["d2", "d7"]
    counted = summary(found)
    assert (counted.passed, counted.failed, counted.warned, counted.skipped, counted.refused) == (
        *(1, 2, 1, 1, 1),
    )


def report(*statuses: str) -> CheckReport:
    found = results(*statuses)
    return CheckReport(results=tuple(found), deployments=(), summary=summary(found))


@pytest.mark.parametrize(
    ("statuses", "flags", "code"),
    [
        (("pass",), {}, 0),
        ((), {}, 0),
        (("skip", "off", "note"), {}, 0),
        (("warn",), {}, 0),
        (("warn",), {"fail_on_warn": True}, 1),
        (("fail",), {}, 1),
        (("fail",), {"no_fail": True}, 0),
        (("warn", "fail"), {"fail_on_warn": True, "no_fail": True}, 0),
        (("refused", "fail"), {}, 2),
        (("refused",), {"no_fail": True}, 2),
        (("refused",), {"fail_on_warn": True}, 2),
    ],
)
def test_exit_codes(statuses: tuple[str, ...], flags: dict[str, Any], code: int) -> None:
    """An exit code means the same under every flag: 1 for failures, 2 for what cannot be read."""
    assert report(*statuses).exit_code(**flags) == code


def test_exception() -> None:
    """A program gets an AssertionError that lists what failed, and nothing where all passed."""
    report("pass", "warn", "skip").raise_for_failures()
    with pytest.raises(ChecksFailed, match="d1: m; d0: m") as caught:
        report("fail", "refused").raise_for_failures()

    assert isinstance(caught.value, AssertionError)
    with pytest.raises(AssertionError, match="and 5 more"):
        report(*("fail",) * 25).raise_for_failures()


def test_skipped() -> None:
    """What could not be asked says why; what is off stays off."""
    asked = skipped("x", parse_assertion("fits", given=True), "no card", "name it")
    off = skipped("x", parse_assertion("fits", "off"), "no card", "name it")

    assert (asked.status, asked.message, asked.hint) == ("skip", "no card", "name it")
    assert off.status == "off"
    assert asked.actual is None


def test_metrics_are_told() -> None:
    """Every metric says what it is, and no name is a prefix away from another's assertion."""
    names = assertion_names()

    assert len(names) == len(set(names))
    assert all(metric.meaning for metric in METRICS.values())
    assert metric_of("concurrency_at_2147483647") is not None
    assert metric_of("concurrency_at_2147483648") is None
    assert metric_of("concurrency_at_01") is None


def test_percent_is_exact() -> None:
    """A percentage is the decimal number that it says."""
    for percent in ("0.1", "7", "14.5", "33.3", "100"):
        assert read_figure("ratio", f"{percent} %") == float(f"{percent}e-2")
