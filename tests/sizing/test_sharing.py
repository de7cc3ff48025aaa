"""A card that is not a server's alone."""

from __future__ import annotations

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.memory import MemoryBudget
from kvcalc.models import load_model
from kvcalc.sizing import Question
from kvcalc.sizing.sharing import held_by_others, largest_share, one_of_several

_GIB = 2**30


def _question(engine: str = "vllm", share: float | None = None, count: int = 2) -> Question:
    deployment = Deployment(engine=engine, gpu_memory_utilization=share)
    return Question(load_model("llama-3.1-8b"), deployment, instances=count)


def _memory(total: int, share: int) -> MemoryBudget:
    return MemoryBudget(
        total_bytes=total, share_bytes=(share, share), share_source="a rule", terms=()
    )


def test_servers_divide_the_share() -> None:
    question, notes = one_of_several(_question(count=3))
    assert question.deployment.gpu_memory_utilization == 0.306  # 0.92 / 3, in thousandths
    assert notes[0].startswith("each of 3 servers has gpu_memory_utilization 0.306:")


def test_one_server_is_asked_as_it_stands() -> None:
    question = _question(count=1)
    assert one_of_several(question) == (question, ())


def test_shares_of_more_than_the_card_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"2 servers .* 0\.6 each take 1\.2 of the card"):
        one_of_several(_question(share=0.6))
    question, _ = one_of_several(_question(share=0.5))
    assert question.deployment.gpu_memory_utilization == 0.5


def test_an_engine_whose_share_is_of_what_is_free() -> None:
    with pytest.raises(UnsupportedError, match="sglang"):
        one_of_several(_question("sglang"))


@pytest.mark.parametrize("free", [80 * _GIB, 72 * _GIB, 72 * _GIB - 1, 10 * _GIB, 1])
def test_the_largest_share_that_starts(free: int) -> None:
    """The share that is told is free; a thousandth more is not."""
    memory = _memory(80 * _GIB, 72 * _GIB)
    share = round(largest_share(memory, free) * 1000)
    assert 80 * _GIB * share <= free * 1000 < 80 * _GIB * (share + 1)


def test_what_others_hold() -> None:
    memory = _memory(80 * _GIB, 72 * _GIB)
    assert held_by_others(memory, 72 * _GIB)[0]
    starts, told = held_by_others(memory, 72 * _GIB - 1)
    assert not starts
    assert told.endswith("the largest share that does is 0.899")
    with pytest.raises(InvalidValueError, match="free of"):
        held_by_others(memory, 81 * _GIB)
