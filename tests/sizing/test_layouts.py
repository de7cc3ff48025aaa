"""The same GPUs in other ways, uneven pipeline stages among them."""

from __future__ import annotations

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.model import PARTITION, stage_partition
from kvcalc.engines import plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from kvcalc.weights.on_rank import weights_on_rank


def _question(model: str, stages: int, **args: str) -> Question:
    deployment = Deployment(
        engine="vllm",
        gpu=load_gpu("l40s"),
        pipeline_parallel_size=stages,
        max_model_len=32768,
        engine_args=args,  # type: ignore[arg-type]  # a subset of what it takes
    )
    return Question(load_model(model), deployment)


def test_layers_are_shared_out_better() -> None:
    """Gemma 3 has a large embedding: the first of four stages binds, and gives two layers away."""
    ways = {way.name: way for way in answer(_question("gemma-3-27b", 4), with_layouts=True).layouts}
    even, better = ways["1 x PP4"], ways["1 x PP4 in 14+16+16+16 layers"]
    assert better.max_concurrency > even.max_concurrency
    assert better.flags[-2:] == ("--engine-arg", f"{PARTITION}=14,16,16,16")
    plain = answer(_question("gemma-3-27b", 4, **{PARTITION: "14,16,16,16"}))
    assert plain.max_concurrency == better.max_concurrency


def test_a_partition_reaches_plan_and_weights() -> None:
    """Llama-3.1-8B in stages of 8 and 24 layers: a block has 24 x 65,536 B on the second."""
    model = load_model("llama-3.1-8b")
    deployment = Deployment(
        engine="vllm", pipeline_parallel_size=2, engine_args={PARTITION: "8,24"}
    )
    first, second = plan(model, deployment).ranks
    assert (first.pools[0].unit_bytes, second.pools[0].unit_bytes) == (8 * 65_536, 24 * 65_536)
    layer = 218_112_000 * 2  # q and o 4,096 squared, k and v 4,096 x 1,024, three of 4,096 x 14,336
    stages = [weights_on_rank(model, pp=2, stage=i, sizes=(8, 24)) for i in range(2)]
    assert stages[1].low_bytes - stages[0].low_bytes == 16 * layer + 4096 * 2  # and the last norm


@pytest.mark.parametrize("told", ["16,15", "32", "16,16,0", "16,17", "a,b", "", "33,-1", 32])
def test_a_partition_that_does_not_add_up_is_refused(told: object) -> None:
    with pytest.raises((InvalidValueError, UnsupportedError)):
        stage_partition(told, 32, 2)


def test_no_partition() -> None:
    assert stage_partition(None, 32, 2) is None
    assert stage_partition("15,17", 32, 2) == (15, 17)
