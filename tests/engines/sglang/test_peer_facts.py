"""Numbers that SGLang's own tests state: test_pool_configurator.py at 023d5640.

Its common shape: 4 KV heads of 64, bf16, so 1,024 B a token and layer; tokens out of reach are
given back every 4 steps.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.capacity import Capacity
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.engines import plan
from kvcalc.engines.sglang.assemble import request_cap

_FULL = FullAttention(num_kv_heads=4, head_dim=64)
_BUDGET = 10_000_000


def _model(full: int, windows: int = 0, window: int = 8) -> ModelSpec:
    sliding = SlidingWindow(num_kv_heads=4, head_dim=64, sliding_window=window)
    runs = [LayerRun(count=full, caches=(_FULL,))] if full else []
    if windows:
        runs.append(LayerRun(count=windows, caches=(sliding,)))
    return ModelSpec(
        name="common shape",
        architecture="GptOssForCausalLM",
        dtype="bfloat16",
        num_hidden_layers=full + windows,
        layers=tuple(runs),
        max_position_embeddings=4096,
    )


def _capacity(
    model: ModelSpec, page: int, *, budget: int = _BUDGET, args: dict[str, Any], **settings: Any
) -> Capacity:
    deployment = Deployment(engine="sglang", block_size=page, engine_args=args, **settings)
    return plan(model, deployment).capacity(budget, at=1)


@pytest.mark.parametrize(("cap", "page", "tokens"), [(100, 1, 100), (1000, 128, 896)])
def test_a_cap_is_rounded_down_to_pages(cap: int, page: int, tokens: int) -> None:
    found = _capacity(_model(32), page, budget=2**40, args={"max_total_tokens": cap})

    assert found.kv_cache_tokens == tokens


def test_a_budget_is_used_up() -> None:
    """More than 99 % of 10,000,000 B, and no byte too many: 305 tokens of 32,768 B."""
    found = _capacity(_model(32), 1, args={})

    assert found.kv_cache_tokens == 305
    assert 0.99 * _BUDGET < 305 * 32_768 <= _BUDGET


@pytest.mark.parametrize("page", [1, 128])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8, 1.0])
def test_windows_have_a_share_of_the_tokens(page: int, ratio: float) -> None:
    found = _capacity(
        _model(16, 16), page, budget=10 * _BUDGET, args={"swa_full_tokens_ratio": ratio}
    )
    full, window = (pool.units * page for pool in found.pools)

    assert window == int(full * ratio) // page * page
    assert found.kv_cache_tokens == full
    paid = full * 16 * 1024 + window * 16 * 1024
    assert paid <= 10 * _BUDGET < paid + 2 * (page + 1) * 16 * 1024 * 2


def test_a_cap_bounds_the_full_layers() -> None:
    args = {"max_total_tokens": 200, "swa_full_tokens_ratio": 0.5}
    found = _capacity(_model(16, 16), 1, budget=10 * _BUDGET, args=args)

    assert [pool.units for pool in found.pools] == [200, 100]
    assert found.kv_cache_tokens == 200


def test_windows_alone_have_no_ratio() -> None:
    """All 32 layers have windows: what a budget pays for are window tokens; a cap is theirs."""
    found = _capacity(_model(0, 32), 1, args={})
    capped = _capacity(_model(0, 32), 1, budget=2**40, args={"max_total_tokens": 500})

    assert [pool.units for pool in found.pools] == [305]
    assert capped.kv_cache_tokens == 500


def test_layers_that_propose_are_paid_for() -> None:
    """Four more layers for EAGLE: tokens x 1,024 x (32 + 4) fit into the budget."""
    draft = _model(4)
    found = _capacity(_model(32), 1, args={}, draft_model=draft, num_speculative_tokens=3)

    assert found.kv_cache_tokens == _BUDGET // (1024 * 36)


_CAPS = [
    # window, page, requests, then the rest; tokens
    pytest.param(8, 4, 2, {"tree": True, "chunk": 4, "overlap": False}, 104, id="tree"),
    pytest.param(8, 4, 2, {"chunk": 16}, 76, id="prefill"),
    pytest.param(8, 1, 2, {"tree": True, "chunk": 4}, 91, id="tree, pages of one, overlap"),
    pytest.param(4, 1, 10, {"chunk": 1000, "role": "decode"}, 100, id="decode"),
    pytest.param(4, 1, 10, {"chunk": 1000, "role": "decode", "extra": 2}, 110, id="ahead"),
]


@pytest.mark.parametrize(("window", "page", "requests", "rest", "tokens"), _CAPS)
def test_requests_decide_on_windows(
    window: int, page: int, requests: int, rest: dict[str, Any], tokens: int
) -> None:
    """Without kept prefixes the windows' pool is what the requests at once can hold."""
    args: dict[str, Any] = {
        "SGLANG_SWA_EVICTION_INTERVAL": 4,
        "disable_radix_cache": True,
        "max_running_requests": requests,
        "chunked_prefill_size": rest["chunk"],
        "disable_overlap_schedule": not rest.get("overlap", True),
        "disaggregation_mode": rest.get("role", "null"),
        "disaggregation_decode_extra_slots": rest.get("extra", 0),
    }
    settings: dict[str, Any] = {}
    if rest.get("tree"):
        args |= {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 2,
            "speculative_num_draft_tokens": 5,
        }
        settings["draft_model"] = _model(1)
    found = _capacity(_model(1, 1, window), page, budget=1_000_000, args=args, **settings)
    pools = {pool.name: pool for pool in found.pools}

    assert pools["window tokens"].units * page == tokens


def test_a_decoding_server_receives_ahead() -> None:
    """Two slots more for requests on their way: 2 x (4 + 1) window tokens."""
    cap = request_cap(
        window=4,
        page=1,
        requests=10,
        chunk=1000,
        decode_tokens=1,
        eviction_interval=4,
        decode_role=True,
        extra_slots=2,
    )

    assert cap == 110
