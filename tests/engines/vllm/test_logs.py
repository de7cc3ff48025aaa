"""What real servers printed at start-up is what kvcalc says, within the rounding of the figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvcalc.core.capacity import Capacity, longest, start_up_need
from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.conftest import ABSENT, SHARED
from tests.engines.vllm.log_cases import CASES, LISTED, LogCase

_GIB = 2**30


def _planned(case: LogCase) -> CachePlan:
    deployment = Deployment(engine="vllm", engine_version=case.release, **case.settings)
    return plan(case.model(), deployment)


def _memories(case: LogCase, planned: CachePlan) -> Iterator[int]:
    """Yield a memory for every number of blocks that the printed figures allow."""
    unit = planned.rank.pools[0].unit_bytes
    if case.memory is not None:
        off = 0.5 if case.loose else 0.005
        first, last = (int((case.memory + sign * off) * _GIB) // unit for sign in (-1, 1))
    else:
        first = _fewest_blocks(planned, case.tokens or 0)
        last = first + 12  # several numbers of blocks can give the same tokens
    for blocks in range(max(1, first), last + 1):
        yield blocks * unit


def _fewest_blocks(planned: CachePlan, tokens: int) -> int:
    low, high = 1, 10**8
    while low < high:
        middle = (low + high) // 2
        if planned.capacity(middle * planned.rank.pools[0].unit_bytes).kv_cache_tokens < tokens:
            low = middle + 1
        else:
            high = middle
    return low


def _agrees(case: LogCase, found: Capacity) -> bool:
    """Whether a capacity has the printed figures ("~55k" is told in thousands)."""
    off = 500 if case.loose else 0
    times = case.concurrency
    return (
        (case.tokens is None or abs(case.tokens - found.kv_cache_tokens) <= off)
        and case.blocks in (None, found.num_blocks)
        and (times is None or f"{found.max_concurrency:.2f}" == f"{times:.2f}")
    )


@pytest.mark.parametrize("case", CASES, ids=[f"{c.case}-{c.release}" for c in CASES])
def test_a_log_is_reproduced(case: LogCase) -> None:
    planned = _planned(case)

    if case.tokens is not None:
        assert any(_agrees(case, planned.capacity(m)) for m in _memories(case, planned))
    if case.needed is not None:
        needed = start_up_need(planned, planned.rank, planned.max_model_len)
        assert round(needed / _GIB, 2) == case.needed
    if case.length is not None:
        assert case.memory is not None
        low, high = (
            longest(planned, planned.rank, int((case.memory + off) * _GIB), planned.max_model_len)
            for off in (-0.005, 0.005)
        )
        assert low <= case.length <= high
    if case.refused:
        assert not any(planned.capacity(memory).fits for memory in _memories(case, planned))
    if case.block is not None:
        assert planned.block_size == case.block
    if case.padding is not None:
        groups = planned.rank.groups()
        widest = max(group.layers for group in groups)
        assert sum(widest - group.layers for group in groups) == case.padding


def test_every_range_of_versions_has_a_log() -> None:
    """V0, V1's first years, and each change of the token line, the groups and the states."""
    lines = {tuple(map(int, case.release.split("+")[0].split(".")[:2])) for case in CASES}

    assert {(0, 5), (0, 6), (0, 7), (0, 9), (0, 10), (0, 11), (0, 12), (0, 13), (0, 18)} <= lines
    assert {(0, 19), (0, 20), (0, 21), (0, 22), (0, 24), (0, 28), (0, 31), (0, 33)} <= lines


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced_or_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    verifiable = {
        case["id"]: case
        for case in cases
        if case["engine"].startswith("vllm") and case.get("verifiable")
    }

    known = {case.case for case in CASES}
    assert set(verifiable) == known | set(LISTED)
    assert not known & set(LISTED)
    for case in CASES:
        if not case.loose:
            _same_figures(case, verifiable[case.case])


def _same_figures(case: LogCase, told: dict[str, Any]) -> None:
    """Compare the figures of a case with those of the list."""
    if case.tokens is not None:
        assert case.tokens == told["tokens"]
    if case.concurrency is not None:
        assert case.concurrency == told["max_concurrency"]
    if case.memory is not None and told.get("available_kv_gib") is not None:
        assert case.memory == told["available_kv_gib"]
    if case.blocks is not None:
        assert case.blocks == (told.get("blocks") or told["other"].get("num_blocks"))
