"""Where the cache lies: layers over devices, the host, and CUDA's padding."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import load_gpu, load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.llamacpp.placement import HOST, devices
from kvcalc.engines.llamacpp.settings import Placing

LLAMA = load_model("llama-3.1-8b")
LAYER = 2 * 8 * 128 * 2


def _plan(model: Any = LLAMA, **rest: Any) -> CachePlan:
    args = {"ctx_size": 8192, "parallel": 1, **rest.pop("args", {})}
    return plan(model, Deployment(engine="llama.cpp", engine_args=args, **rest))


def _layers(found: CachePlan) -> dict[str, int]:
    return {rank.name: rank.pools[0].groups[0].layers for rank in found.ranks}


@pytest.mark.parametrize(
    ("args", "layers"),
    [
        ({}, {"rank": 32}),
        ({"n_gpu_layers": 0}, {"host": 32}),
        ({"n_gpu_layers": 1}, {"host": 32}),  # the output comes first
        ({"n_gpu_layers": 11}, {"GPU 0": 10, "host": 22}),
        ({"n_gpu_layers": 33}, {"rank": 32}),
        ({"n_gpu_layers": "all"}, {"rank": 32}),
        ({"no_kv_offload": True}, {"host": 32}),
        ({"kv_offload": False}, {"host": 32}),
        ({"tensor_split": "1,1"}, {"GPU 0": 17, "GPU 1": 15}),
        ({"tensor_split": "3,1"}, {"GPU 0": 25, "GPU 1": 7}),
        ({"tensor_split": "1,0,1"}, {"GPU 0": 17, "GPU 2": 15}),
        ({"tensor_split": "1,1", "n_gpu_layers": 17}, {"GPU 0": 9, "GPU 1": 7, "host": 16}),
    ],
)
def test_layers_by_device(args: dict[str, Any], layers: dict[str, int]) -> None:
    """By upper_bound of (layer - first) / layers that leave the host, the output counted as one."""
    found = _plan(args=args)
    assert _layers(found) == layers
    for rank in found.ranks:
        assert rank.pools[0].unit_bytes == layers[rank.name] * LAYER
    total = sum(pool.total_bytes(8192) for rank in found.ranks for pool in rank.pools)
    assert total == 8192 * 32 * LAYER


def test_equal_parts_by_a_number_of_devices() -> None:
    assert _layers(_plan(pipeline_parallel_size=2)) == {"GPU 0": 17, "GPU 1": 15}


def test_reserved_is_used_plus_wastes_on_every_device() -> None:
    found = _plan(load_model("gemma-3-27b"), args={"tensor_split": "2,1", "n_gpu_layers": 40})
    for rank in found.ranks:
        for n in (1, 1000, 8192):
            wastes = rank.wastes(Lengths.of([n]))
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())


def test_draft_layers_count_where_layers_are_shared_out() -> None:
    """n_layer_all has the draft layers in it, which the main context keeps nothing for."""
    deepseek = load_model("deepseek-v3")
    whole = devices(62, Placing((1.0, 1.0), None, False, False, False), None)
    found = _plan(deepseek, args={"tensor_split": "1,1"})
    assert _layers(found) == {"GPU 0": whole.count(0), "GPU 1": 61 - whole.count(0)}


def test_nothing_on_a_device() -> None:
    assert devices(3, Placing((1.0,), 0, False, False, False), 0) == (HOST,) * 3


def test_cuda_pads_quantised_rows() -> None:
    """A piece of a row for each tensor whose rows are no multiple of 512 elements."""
    card = load_gpu("h100-80gb")
    llama = _plan(kv_cache_dtype="q8_0", gpu=card)
    assert llama.rank.fixed_bytes == 0  # rows of 1,024
    deepseek = load_model("deepseek-v3")
    found = _plan(deepseek, kv_cache_dtype="q8_0", gpu=card)
    assert found.rank.fixed_bytes == 61 * (512 - 64) // 32 * 34
    assert found.rank.name == "GPU 0"
    assert _plan(deepseek, gpu=card).rank.fixed_bytes == 0
    assert _plan(deepseek, kv_cache_dtype="q8_0").rank.fixed_bytes == 0
