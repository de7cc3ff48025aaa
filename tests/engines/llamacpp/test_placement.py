"""Where the cache lies: layers over devices, the host, and CUDA's padding."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.api import load_gpu, load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.llamacpp.placement import HOST, devices
from kvcalc.engines.llamacpp.placing import Placing

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
    found = _plan(deepseek, args={"fit": "off"}, kv_cache_dtype="q8_0", gpu=card)
    assert found.rank.fixed_bytes == 61 * (512 - 64) // 32 * 34
    assert found.rank.name == "GPU 0"
    assert _plan(deepseek, args={"fit": "off"}, gpu=card).rank.fixed_bytes == 0
    assert _plan(deepseek, kv_cache_dtype="q8_0").rank.fixed_bytes == 0


def test_unequal_devices_without_a_split() -> None:
    """load_tensors: by free memory, in single precision; equal cards get equal parts."""
    assert _layers(_plan(args={"device_memory": "24GiB,24GiB", "fit": "off"})) == {
        "GPU 0": 17,
        "GPU 1": 15,
    }
    found = _plan(args={"device_memory": "30GiB,10GiB", "fit": "off"})
    assert _layers(found) == _layers(_plan(args={"tensor_split": "3,1"}))
    one = _plan(args={"device_memory": "24GiB", "fit": "off"}, pipeline_parallel_size=2)
    assert _layers(one) == {"GPU 0": 17, "GPU 1": 15}


def test_devices_by_name() -> None:
    found = _plan(args={"device": "CUDA1,Vulkan0", "tensor_split": "3,1"})
    assert _layers(found) == {"CUDA1": 25, "Vulkan0": 7}
    assert _layers(_plan(args={"dev": "none"})) == {"host": 32}
    assert _layers(_plan(args={"dev": "CUDA0"})) == {"CUDA0": 32}


def test_main_gpu_is_the_one_where_nothing_is_split() -> None:
    args = {"device_memory": "8GiB,24GiB", "fit": "off", "split_mode": "none"}
    assert _layers(_plan(args={**args, "main_gpu": 1})) == {"GPU 1": 32}
    assert _layers(_plan(args=args)) == {"rank": 32}
    assert _layers(_plan(args={**args, "main_gpu": -1})) == {"host": 32}
    # Split by layer, it decides nothing.
    split = {"tensor_split": "1,1"}
    assert _layers(_plan(args={**split, "mg": 1})) == _layers(_plan(args=split))


def test_moved_weights_move_no_cache() -> None:
    for args in (
        {"override_tensor": "ffn_.*=CPU"},
        {"ot": r"blk\.1\.=CUDA0,exps=CUDA_Host"},
        {"cpu_moe": True},
        {"n_cpu_moe": 3},
        {"n_cpu_ffn": 3},
    ):
        found = _plan(args=args)
        assert [rank.pools for rank in found.ranks] == [rank.pools for rank in _plan().ranks]
        assert any("each layer's cache stays" in note for note in found.notes)


class TestByHead:
    """split_mode tensor: llama_meta_device_get_split_state, whose figures are worked out here."""

    def _heads(self, found: CachePlan) -> dict[str, int]:
        head = 2 * 128 * 2
        return {rank.name: rank.pools[0].unit_bytes // head for rank in found.ranks}

    def test_heads_that_divide(self) -> None:
        found = _plan(args={"split_mode": "tensor"}, pipeline_parallel_size=2)
        assert self._heads(found) == {"GPU 0": 32 * 4, "GPU 1": 32 * 4}
        assert _layers(found) == {"GPU 0": 32, "GPU 1": 32}

    def test_heads_left_over_rotate(self) -> None:
        """8 heads on three devices: 2, 3 and 3, the 2 on device `layer % 3`."""
        found = _plan(args={"split_mode": "tensor"}, pipeline_parallel_size=3)
        assert self._heads(found) == {
            "GPU 0": 32 * 3 - 11,
            "GPU 1": 32 * 3 - 11,
            "GPU 2": 32 * 3 - 10,
        }

    def test_parts(self) -> None:
        """3,1 of 8 heads: 6 and 2 where device 0 is cut first; 2 and 6 where device 1 is."""
        found = _plan(args={"split_mode": "tensor", "tensor_split": "3,1"})
        assert self._heads(found) == {"GPU 0": 32 * 6, "GPU 1": 32 * 2}

    def test_more_devices_than_heads(self) -> None:
        """8 heads on 12 devices: four of them keep nothing of a layer."""
        found = _plan(args={"split_mode": "tensor"}, pipeline_parallel_size=12)
        assert sum(self._heads(found).values()) == 32 * 8

    def test_states_are_cut_at_key_heads(self) -> None:
        """qwen3.5: 16 key heads of 128, 3 value heads follow each."""
        qwen = load_model("qwen3.5-27b")
        found = _plan(qwen, args={"split_mode": "tensor"}, pipeline_parallel_size=2)
        whole = _plan(qwen)
        for rank in found.ranks:
            assert [2 * pool.unit_bytes for pool in rank.pools] == [
                pool.unit_bytes for pool in whole.rank.pools
            ]

    def test_what_stays_on_the_host(self) -> None:
        found = _plan(args={"split_mode": "tensor", "n_gpu_layers": 11}, pipeline_parallel_size=2)
        assert _layers(found) == {"GPU 0": 10, "GPU 1": 10, "host": 22}

    def test_a_deepseek_v4_cache_is_on_every_device_whole(self) -> None:
        model = load_model("deepseek-v4-flash")
        found = _plan(model, args={"split_mode": "tensor"}, pipeline_parallel_size=2)
        assert [rank.pools for rank in found.ranks] == [_plan(model).rank.pools] * 2

    def test_default_context_is_the_models_own_in_all(self) -> None:
        """Fit gives up at once in this mode, so nothing multiplies the context by the streams."""
        args = {"split_mode": "tensor", "ctx_size": None, "parallel": 2}
        found = _plan(args=args, pipeline_parallel_size=2)
        assert found.rank.pools[0].units == 131072

    @pytest.mark.parametrize(
        ("model", "said"),
        [
            ("deepseek-v3", "no split_mode tensor for deepseek2"),
            ("jamba-v0.1", "no split_mode tensor for jamba"),
        ],
    )
    def test_refusals(self, model: str, said: str) -> None:
        with pytest.raises(UnsupportedError, match=said):
            _plan(load_model(model), args={"split_mode": "tensor"}, pipeline_parallel_size=2)


def test_rows_are_refused_on_cuda_and_keep_the_cache_with_its_layer_elsewhere() -> None:
    with pytest.raises(UnsupportedError, match="split_mode row"):
        _plan(args={"split_mode": "row", "tensor_split": "1,1"}, gpu=load_gpu("h100-80gb"))
    found = _plan(args={"split_mode": "row", "tensor_split": "1,1"})
    assert _layers(found) == {"GPU 0": 17, "GPU 1": 15}
