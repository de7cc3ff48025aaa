"""With the cache of a log, a capacity answer is what that server printed."""

from __future__ import annotations

import msgspec
import pytest

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import Deployment
from kvcalc.sizing import Question, answer
from tests.engines.sglang.log_cases import CASES as SGLANG
from tests.engines.sglang.log_cases import LogCase as Pool
from tests.engines.vllm.log_cases import CASES as VLLM
from tests.engines.vllm.log_cases import LogCase
from tests.engines.vllm.test_logs import _memories, _planned

_PRINTED = [case for case in VLLM if case.tokens or case.blocks or case.concurrency]
_POOLS = [case for case in SGLANG if case.tokens is not None]


def _asked(case: LogCase, memory: int) -> CapacityAnswer:
    deployment = Deployment(engine="vllm", engine_version=case.release, **case.settings)
    deployment = msgspec.structs.replace(deployment, kv_cache_memory_bytes=memory)
    return answer(Question(case.model(), deployment))


def _agrees(case: LogCase, found: CapacityAnswer) -> bool:
    off = 500 if case.loose else 0  # told in thousands
    times = case.concurrency
    return (
        (case.tokens is None or abs(case.tokens - found.kv_cache_tokens) <= off)
        and case.blocks in (None, found.num_blocks)
        and (times is None or f"{found.max_concurrency:.2f}" == f"{times:.2f}")
    )


@pytest.mark.parametrize("case", _PRINTED, ids=[f"{c.release}-{i}" for i, c in enumerate(_PRINTED)])
def test_vllm(case: LogCase) -> None:
    """Some memory that rounds to the printed GiB gives tokens, blocks and concurrency at once."""
    planned = _planned(case)
    assert any(_agrees(case, _asked(case, memory)) for memory in _memories(case, planned))


@pytest.mark.parametrize("case", _POOLS, ids=[case.case for case in _POOLS])
def test_sglang(case: Pool) -> None:
    """The tokens of a pool that was printed are what a server with that pool holds."""
    args = {**case.args, "max_total_tokens": case.tokens}
    deployment = Deployment(
        engine="sglang", engine_args=args, kv_cache_memory_bytes=2**45, **case.settings
    )
    assert answer(Question(case.model(), deployment)).kv_cache_tokens == case.tokens
