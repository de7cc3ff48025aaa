from __future__ import annotations

import math
from typing import Any

import pytest

from kvcalc.core.deployment import MAX_BYTES, Deployment, GpuSpec
from kvcalc.core.errors import InvalidValueError


@pytest.mark.parametrize(
    "name",
    [
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "decode_context_parallel_size",
        "block_size",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "num_gpu_blocks_override",
        "num_speculative_tokens",
        "kv_cache_memory_bytes",
    ],
)
@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "8", 2**61])
def test_no_count_is_nothing(name: str, bad: Any) -> None:
    """Every count is a whole number of at least one, and the error names it."""
    Deployment(**{name: 1})  # type: ignore[arg-type]  # names of counts
    with pytest.raises(InvalidValueError, match=name):
        Deployment(**{name: bad})


@pytest.mark.parametrize("share", [0, -0.1, 1.01, math.nan, math.inf])
def test_share_of_memory(share: float) -> None:
    assert Deployment(gpu_memory_utilization=1.0).gpu_memory_utilization == 1.0
    with pytest.raises(InvalidValueError, match="gpu_memory_utilization"):
        Deployment(gpu_memory_utilization=share)


def test_context_parallelism_shares_tensor_parallel_ranks() -> None:
    Deployment(tensor_parallel_size=8, decode_context_parallel_size=4)
    with pytest.raises(InvalidValueError, match="3 does not divide tensor_parallel_size 8"):
        Deployment(tensor_parallel_size=8, decode_context_parallel_size=3)
    with pytest.raises(InvalidValueError, match="2 does not divide tensor_parallel_size 1"):
        Deployment(decode_context_parallel_size=2)


def test_number_of_gpus() -> None:
    """Ranks x stages x replicas; context parallelism adds none."""
    deployment = Deployment(
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        data_parallel_size=3,
        decode_context_parallel_size=8,
    )

    assert deployment.num_gpus == 48


def test_changed() -> None:
    assert Deployment().changed() == {}
    assert Deployment(block_size=32, engine="none").changed() == {"block_size": 32}
    assert Deployment(engine_args={"x": 1}).changed() == {"engine_args": {"x": 1}}


@pytest.mark.parametrize("size", [0, -1, MAX_BYTES + 1])
def test_memory_of_a_gpu(size: int) -> None:
    assert GpuSpec(name="x", title="X", memory_bytes=MAX_BYTES).memory_kind == "dedicated"
    with pytest.raises(InvalidValueError, match="memory_bytes"):
        GpuSpec(name="x", title="X", memory_bytes=size)
