"""Host memory against the container's limit, or against the memory that a GPU shares with it."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.models.presets import load_gpu
from kvcalc.models.sources import load_model
from kvcalc.sizing import Question, answer

_GIB = 2**30
_MIB = 2**20


def asked(model: str, host_bytes: int | None = None, **settings: Any) -> CapacityAnswer:
    settings["gpu"] = load_gpu(settings.get("gpu", "h100-80gb"))
    question = Question(load_model(model), Deployment(**settings), host_bytes=host_bytes)
    return answer(question)


def parts(found: CapacityAnswer) -> dict[str, tuple[int, int | None]]:
    return {part.name: (part.low_bytes, part.high_bytes) for part in found.host}


def test_nothing_is_said_where_nobody_limits_it() -> None:
    """Without a limit the parts stand there, and nothing is compared."""
    found = asked("llama-3.1-8b", engine="vllm", max_model_len=8192)
    assert (found.host_limit_bytes, found.host_fits, found.host_may_fit) == (None, None, None)
    assert "host memory" not in found.verdict
    assert parts(found) == {"processes": (2 * _GIB, 10 * _GIB)}


@pytest.mark.parametrize(
    ("limit", "fits", "may_fit"),
    [(8192 * _MIB, False, True), (8192 * _MIB + _GIB, True, True), (32 * _MIB, False, False)],
)
def test_a_prompt_cache_in_its_container(limit: int, fits: bool, may_fit: bool) -> None:
    """llama-server fills 8,192 MiB unless told, beside itself and its output buffer."""
    found = asked(
        "qwen2.5-7b", limit, engine="llama.cpp", engine_args={"ctx_size": 8192, "parallel": 1}
    )
    assert parts(found)["prompt cache"] == (0, 8192 * _MIB)
    assert (found.host_fits, found.host_may_fit) == (fits, may_fit)
    assert ("But host memory may grow" in found.verdict) == (may_fit and not fits)
    assert found.verdict.startswith("No: at least" if not may_fit else "Yes")
    assert found.fits == may_fit


def test_a_cache_without_a_limit_outgrows_any() -> None:
    """--cache-ram -1 has no limit of its own."""
    args: dict[str, str | int | float | bool | None] = {
        "ctx_size": 8192, "parallel": 1, "cache_ram": -1,
    }  # fmt: skip
    found = asked("qwen2.5-7b", 2**40, engine="llama.cpp", engine_args=args)
    assert (found.host_fits, found.host_may_fit) == (False, True)
    assert "without a limit" in found.verdict


def test_swap_space_is_taken_at_once() -> None:
    """V0 takes 4 GiB a GPU when it starts: in 8 GiB two GPUs cannot."""
    settings: dict[str, Any] = {
        "engine": "vllm", "engine_version": "0.6.4", "tensor_parallel_size": 2,
        "max_model_len": 4096,
    }  # fmt: skip
    found = asked("llama-3.1-8b", 8 * _GIB, **settings)
    assert parts(found)["swap space"] == (8 * _GIB, 8 * _GIB)
    assert found.verdict.startswith("No: at least 11 GiB of host memory are taken, and 8 GiB")
    assert not found.fits
    assert not found.may_fit
    assert found.missing_bytes == 0  # of a GPU, nothing
    assert asked("llama-3.1-8b", 12 * _GIB, **settings).fits


def test_hicache_grows_with_the_cache_of_the_gpus() -> None:
    """Two tokens on the host for each on the GPU, where no size is given."""
    args: dict[str, Any] = {"enable_hierarchical_cache": True, "hicache_ratio": 2}
    found = asked("llama-3.1-8b", engine="sglang", engine_args=args)
    low, high = parts(found)["HiCache"]
    assert low == 2 * (found.low.kv_cache_bytes or 0)
    assert high == 2 * (found.high.kv_cache_bytes or 0)
    assert low > 64 * _GIB
    assert not asked("llama-3.1-8b", 64 * _GIB, engine="sglang", engine_args=args).may_fit


def test_inputs_are_cached_in_two_processes() -> None:
    """4 GiB in the API server and in the engine core, unless no images are taken."""
    found = asked("qwen2.5-vl-7b", engine="vllm", max_model_len=8192)
    assert parts(found)["processed inputs"] == (0, 8 * _GIB)
    without = asked(
        "qwen2.5-vl-7b", engine="vllm", max_model_len=8192,
        engine_args={"limit_mm_per_prompt": '{"image": 0, "video": 0, "audio": 0}'},
    )  # fmt: skip
    assert "processed inputs" not in parts(without)
    less = asked(
        "qwen2.5-vl-7b", engine="vllm", max_model_len=8192,
        engine_args={"mm_processor_cache_gb": 1},
    )  # fmt: skip
    assert parts(less)["processed inputs"] == (0, 2 * _GIB)


class TestSharedMemory:
    def test_one_budget_for_both(self) -> None:
        """What the GPU takes of a DGX Spark, its host has no more."""
        gpu = load_gpu("dgx-spark")
        found = asked("llama-3.1-8b", engine="vllm", gpu="dgx-spark", max_model_len=8192)
        assert found.host_limit_bytes == gpu.memory_bytes
        assert parts(found)["GPU memory"][0] >= int(0.9 * 119 * _GIB)
        assert found.host_may_fit

    def test_a_share_that_leaves_the_host_nothing(self) -> None:
        found = asked(
            "llama-3.1-8b", engine="vllm", gpu="dgx-spark", max_model_len=8192,
            gpu_memory_utilization=1.0,
        )  # fmt: skip
        assert not found.host_may_fit
        assert not found.fits

    def test_a_machine_with_more_than_its_gpu_may_have(self) -> None:
        """Metal may have 107.5 of 128 GiB: the rest is the host's."""
        gpu = load_gpu("m4-max-128gb")
        assert isinstance(gpu, GpuSpec)
        found = asked("qwen2.5-7b", engine="mlx-lm", gpu="m4-max-128gb", max_model_len=8192)
        assert found.host_limit_bytes == 128 * _GIB
        assert found.host_fits
