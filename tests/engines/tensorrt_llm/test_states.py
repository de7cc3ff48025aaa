"""Hybrids: attention layers alone in the blocks, states in slots beside them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.memory import Term
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.engines.tensorrt_llm.budget import budgets
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu

_NANO_LAYER = (64 * 64 + 2 * 8 * 128) * 3 * 2 + 64 * 64 * 128 * 4
"""conv_dim x (d_conv - 1) in bfloat16; heads x head_dim x d_state in float32."""
_IN_FLOAT32 = {"mamba_ssm_cache_dtype": "float32"}
_NEXT_LAYER = (2 * 16 * 128 + 32 * 128) * 3 * 2 + 32 * 128 * 128 * 2


def _plan(name: str, args: dict[str, Any] | None = None, **settings: Any) -> CachePlan:
    deployment = Deployment(engine="tensorrt-llm", engine_args=args or {}, **settings)
    return plan(load_model(name), deployment)


@pytest.mark.parametrize(
    ("name", "args", "layers", "layer", "token"),
    [
        (
            "nemotron-3-nano-30b-a3b",
            {"mamba_ssm_cache_dtype": "float32"},
            23,
            _NANO_LAYER,
            6 * 1024,
        ),
        ("qwen3-next-80b-a3b", {}, 36, _NEXT_LAYER, 12 * 2048),
    ],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_slots(
    name: str, args: dict[str, Any], layers: int, layer: int, token: int, tp: int
) -> None:
    """MambaHybridCacheManager: (layers, max_batch_size, ...) of each tensor, divided by the tp."""
    found = _plan(name, {**args, "max_batch_size": 16}, tensor_parallel_size=tp)
    blocks, states = found.rank.pools

    assert (states.unit_bytes, states.units) == (layers * layer // tp, 16)
    assert blocks.unit_bytes == 32 * token // tp
    assert found.rank.beside_bytes == 16 * layers * layer // tp
    assert found.reuse_tokens is None


def test_states_are_beside_the_bytes_given() -> None:
    found = _plan("qwen3-next-80b-a3b", {"max_batch_size": 16})
    capacity = found.capacity(2**30)

    assert [pool.units for pool in capacity.pools] == [2**30 // (32 * 12 * 2048), 16]
    assert capacity.max_sequences == 0
    assert found.capacity(2**30, at=32).max_sequences == 16
    assert sum("primary pool" in line for line in start_up_log(found, 2**30)) == 1


def test_max_tokens_bounds_the_blocks_alone() -> None:
    found = _plan("qwen3-next-80b-a3b", {"max_batch_size": 16, "max_tokens": 4096})

    assert [pool.units for pool in found.capacity(2**34).pools] == [128, 16]


def test_wastes_conserve() -> None:
    found = _plan("qwen3-next-80b-a3b", {"max_batch_size": 16})
    for n in (1, 31, 32, 33, 5000):
        wastes = found.wastes(n)
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert wastes.reserved_bytes == found.bytes_held(n)


def test_states_are_taken_before_the_share_of_the_cache() -> None:
    """KvCacheCreator: the peak of the estimation run holds them."""
    model = load_model("qwen3-next-80b-a3b")
    deployment = Deployment(
        engine="tensorrt-llm",
        gpu=load_gpu("h200"),
        tensor_parallel_size=2,
        engine_args={"max_batch_size": 16},
    )
    found = plan(model, deployment)
    weights = Term(name="weights", low_bytes=1, high_bytes=1, source="of the test")
    (budget,) = budgets(model, deployment, found, (weights,))
    (term,) = (term for term in budget.terms if term.name == "other")

    assert term.low_bytes == term.high_bytes == found.rank.beside_bytes


@pytest.mark.parametrize(
    ("name", "args", "settings", "message"),
    [
        ("nemotron-3-nano-30b-a3b", {}, {}, "releases differ in the dtype"),
        ("qwen3.5-27b", {}, {}, "gated_delta_net layers is not modelled"),
        ("granite-4.0-h-small", {}, {}, "layers is not modelled"),
        ("qwen3-next-80b-a3b", {}, {"engine_version": "1.3"}, "rules that were not read"),
        ("qwen3-next-80b-a3b", {}, {"pipeline_parallel_size": 2}, "pipeline parallelism beside"),
        ("qwen3-next-80b-a3b", {"use_kv_cache_manager_v2": True}, {}, "manager_v2 beside states"),
        ("qwen3-next-80b-a3b", {"max_attention_window": 4096}, {}, "window beside states"),
        ("qwen3-next-80b-a3b", {"enable_block_reuse": True}, {}, "blocks are not reused"),
        ("qwen3-next-80b-a3b", {"mamba_ssm_cache_dtype": "fp8"}, {}, "state dtype"),
        (
            "qwen3-next-80b-a3b",
            {"mamba_ssm_cache_dtype": "float32"},
            {"mamba_ssm_cache_dtype": "bfloat16"},
            "contradict",
        ),
    ],
)
def test_refused(name: str, args: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(KvcalcError, match=message):
        _plan(name, args, **settings)
