"""What real servers printed at start-up is what kvcalc says, within the rounding of the figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.engines.sglang.memory import cache_bytes, minimum_fraction
from tests.conftest import ABSENT, SHARED
from tests.engines.sglang.log_cases import CASES, ELSEWHERE, LogCase
from tests.engines.sglang.rows import PLENTY

_GIB = 2**30


def _planned(case: LogCase) -> CachePlan:
    args = case.args if case.tokens is None else {**case.args, "max_total_tokens": case.tokens}
    return plan(case.model(), Deployment(engine="sglang", engine_args=args, **case.settings))


@pytest.mark.parametrize("case", CASES, ids=[case.case for case in CASES])
def test_a_log_is_reproduced(case: LogCase) -> None:
    planned = _planned(case)
    lines = start_up_log(planned, PLENTY)

    for part in case.parts:
        assert any(part in line for line in lines)
    if case.tokens is not None:
        assert planned.capacity(PLENTY).kv_cache_tokens == case.tokens
    if case.bytes_per_token is not None:
        assert planned.block_bytes == case.bytes_per_token
    if case.proposed is not None:
        (made,) = (p for p in planned.capacity(PLENTY).pools if p.name == "proposed states")
        assert abs(made.total_bytes / _GIB - case.proposed) <= 0.01


def test_states_and_tokens_share_the_memory_as_logged() -> None:
    """sglang-028: the one budget that gives 186 slots and 327,310 tokens gives both at once."""
    (case,) = (case for case in CASES if case.case == "sglang-028")
    free = plan(case.model(), Deployment(engine="sglang", tensor_parallel_size=2))
    tokens, states = free.rank.pools
    budget = 327_310 * tokens.unit_bytes + 187 * states.unit_bytes
    found = free.capacity(budget)

    assert [pool.units for pool in found.pools] == [327_310, 186]


def test_what_is_left_for_the_cache() -> None:
    """sglang-054: 17.94 GiB free of 138.17 with 0.9 leave 4.13 GiB, as logged."""
    low, high = (
        cache_bytes(int((17.94 + off) * _GIB), int((138.17 - off) * _GIB), 0.9)
        for off in (-0.005, 0.005)
    )

    assert low / _GIB <= 4.13 <= high / _GIB + 0.005


def test_the_fraction_that_a_refusal_names() -> None:
    """sglang-216: 12.25 GiB free of 138.17 are left at 0.9113 and not below."""
    told = minimum_fraction(int(12.25 * _GIB), int(138.17 * _GIB))

    assert f"{told:.4f}" == "0.9113"
    assert cache_bytes(int(12.25 * _GIB), int(138.17 * _GIB), 0.88) < 0


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced_or_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    told: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["engine"] == "sglang" and case.get("verifiable"):
            told[case["id"]] = case

    known = {case.case for case in CASES}
    assert set(told) == known | set(ELSEWHERE)
    for case in CASES:
        if told[case.case]["tokens"] is not None:
            assert case.tokens == told[case.case]["tokens"]
