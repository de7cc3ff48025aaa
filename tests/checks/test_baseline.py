"""A baseline: what it holds no worse does not fail, and anything worse does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import kvcalc
from kvcalc.answers.assertions import Check, Found, check, parse_assertion, summary
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.baseline import Known, against, read_baseline
from kvcalc.core.errors import InputError

NEED = "vllm serve meta-llama/Llama-3.1-70B --max-model-len {} --tensor-parallel-size {}"


def report(*results: Check) -> CheckReport:
    return CheckReport(results=results, deployments=(), summary=summary(results))


def known_of(results: tuple[Check, ...], tmp_path: Path) -> Known:
    """Return results as a later run reads them."""
    document = {
        "schema": "kvcalc.check/1",
        "results": [{name: getattr(r, name) for name in Check.__struct_fields__} for r in results],
    }
    path = tmp_path / "base.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return read_baseline(str(path))


def fault(amount: float | None, message: str = "m", *, level: str = "error") -> Check:
    status = "fail" if level == "error" else "warn"
    return Check(
        name="a", assertion="too-few-gpus", level=level, status=status,  # type: ignore[arg-type]
        message=message, amount=amount,
    )  # fmt: skip


def asserted(name: str, limit: object, value: float) -> Check:
    return check("a", parse_assertion(name, limit), Found(value))


@pytest.mark.parametrize("seed", range(60))
def test_no_worse_and_worse(seed: int, tmp_path: Path) -> None:
    """By amounts or by figures: all that is no worse is excused, one that is worse is not."""
    dice = random.Random(seed)
    before = [dice.randint(1, 9) for _ in range(dice.randint(1, 4))]
    same = [max(1, each - dice.randint(0, 2)) for each in before]
    dice.shuffle(same)
    known = known_of(tuple(fault(each) for each in before), tmp_path)
    now = against(report(*(fault(each) for each in same)), known)
    assert now.exit_code(fail_on_warn=True) == 0, (before, same)
    assert all(each.known for each in now.results)

    worse = [*sorted(before)[:-1], max(before) + 1]
    assert against(report(*(fault(each) for each in worse)), known).exit_code() == 1
    assert against(report(*(fault(each) for each in [*before, 1])), known).exit_code() == 1


@pytest.mark.parametrize(
    ("name", "limit", "was", "now", "code"),
    [
        ("min_max_concurrency", 32, 17.0, 17.0, 0),
        ("min_max_concurrency", 32, 17.0, 16.9, 1),
        ("min_max_concurrency", 32, 17.0, 20.0, 0),
        ("max_needed_bytes", 10, 20, 21, 1),
        ("max_needed_bytes", 10, 20, 19, 0),
        ("num_gpus", 4, 5, 5, 0),
        ("num_gpus", 4, 5, 6, 1),
    ],
)
def test_figures(
    name: str, limit: object, was: float, now: float, code: int, tmp_path: Path
) -> None:
    """A figure is compared on its assertion's side."""
    known = known_of((asserted(name, limit, was),), tmp_path)

    assert against(report(asserted(name, limit, now)), known).exit_code() == code


def test_other_faults_of_a_kind(tmp_path: Path) -> None:
    """Without a number it is the same fault only while the same is said of it."""
    known = known_of((fault(None, "--max-model-len is '32q'"),), tmp_path)

    assert against(report(fault(None, "--max-model-len is '32q'")), known).exit_code() == 0
    assert against(report(fault(None, "--max-model-len is '64q'")), known).exit_code() == 1
    assert against(report(fault(None, "--block-size is 'x'")), known).exit_code() == 1


def test_what_does_not_fit_may_not_fit_by_no_more(tmp_path: Path) -> None:
    """`fits` has no figure: the bytes that are missing decide."""

    def run(length: int, tp: int = 2) -> CheckReport:
        return kvcalc.check(command=NEED.format(length, tp), gpu="h100-80gb")

    known = known_of(run(32768).results, tmp_path)
    found = {length: against(run(length), known).exit_code() for length in (16384, 32768, 65536)}

    assert found == {16384: 0, 32768: 0, 65536: 1}
    assert against(run(32768, 1), known).exit_code() == 1
    assert against(run(8192, 8), known).exit_code() == 0


def test_gpus(tmp_path: Path) -> None:
    """More GPUs that are missing are worse, and fewer are not."""

    def run(tp: int) -> CheckReport:
        return kvcalc.check(
            command="CUDA_VISIBLE_DEVICES=0 " + NEED.format(8192, tp), gpu="h100-80gb"
        )

    known = known_of(run(4).results, tmp_path)
    assert against(run(4), known).exit_code() == 0
    assert against(run(8), known).exit_code() == 1
    known = known_of(run(8).results, tmp_path)
    assert [r.status for r in against(run(4), known).results] == ["warn", "pass"]


def test_warnings_stay_what_they_were(tmp_path: Path) -> None:
    """A warning of before is a note: --fail-on-warn fails for new ones alone, again and again."""
    known = known_of((fault(1, level="warn"),), tmp_path)
    again = against(report(fault(1, level="warn")), known)

    assert [r.status for r in again.results] == ["note"]
    assert again.exit_code(fail_on_warn=True) == 0
    twice = known_of(again.results, tmp_path)
    assert against(report(fault(1, level="warn")), twice).exit_code(fail_on_warn=True) == 0
    assert against(report(fault(1)), known).exit_code() == 1  # a failure now
    assert against(report(fault(1, level="warn")), {}).exit_code(fail_on_warn=True) == 1


def test_failures_of_a_strict_run_are_a_baseline(tmp_path: Path) -> None:
    """What --fail-on-warn made a failure is excused by no less."""
    strict = report(fault(1, level="warn")).strict(fail_on_warn=True)
    assert [r.status for r in strict.results] == ["fail"]
    known = known_of(strict.results, tmp_path)

    assert against(report(fault(1, level="warn")), known).exit_code(fail_on_warn=True) == 0


@pytest.mark.parametrize("key", ["actual", "amount"])
@pytest.mark.parametrize("value", ['"x"', "[1]"])
def test_figures_that_are_none(key: str, value: str, tmp_path: Path) -> None:
    """A document whose figures are no numbers was not written by kvcalc."""
    path = tmp_path / "base.json"
    path.write_text(
        '{"schema": "kvcalc.check/1", "results": [{"name": "a", "assertion": "fits",'
        f' "status": "fail", "{key}": {value}}}]}}',
        encoding="utf-8",
    )
    with pytest.raises(InputError, match="not as kvcalc wrote it"):
        read_baseline(str(path))
