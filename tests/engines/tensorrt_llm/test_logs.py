"""What real servers printed at start-up is what kvcalc says, within the rounding of the figures."""

from __future__ import annotations

import json

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.models import load_model
from tests.conftest import ABSENT, SHARED
from tests.engines.tensorrt_llm.log_cases import CASES, LISTED, LogCase

_GIB = 2**30


def _planned(case: LogCase) -> CachePlan:
    deployment = Deployment(engine="tensorrt-llm", engine_version=case.release, **case.settings)
    return plan(load_model(case.model), deployment)


@pytest.mark.parametrize("case", CASES, ids=[case.case for case in CASES])
def test_a_log_is_reproduced(case: LogCase) -> None:
    planned = _planned(case)

    if case.free is not None:
        low, high = (int((case.free + off) * 0.9 * _GIB) for off in (-0.005, 0.005))
        fewest, most = (planned.capacity(memory).kv_cache_tokens for memory in (low, high))
        assert fewest <= case.tokens <= most
    if case.pool is not None:
        size = case.tokens // (planned.block_size or 1) * (planned.block_bytes or 0)
        *_, line = start_up_log(planned, size)
        assert line == (
            f"[MemUsageChange] Allocated {case.pool:.2f} GiB for max tokens in paged KV cache"
            f" ({case.tokens})."
        )


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_every_verifiable_case_is_reproduced_or_listed() -> None:
    path = SHARED / "logs" / "cases.jsonl"
    told = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["engine"] == "tensorrt-llm" and case.get("verifiable"):
            told[case["id"]] = case

    assert set(told) == {case.case for case in CASES} | set(LISTED)
    for case in CASES:
        assert case.tokens == told[case.case]["tokens"]
