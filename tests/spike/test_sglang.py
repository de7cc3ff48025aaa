"""SGLang's own pools, through the one CachePlan: several pools, a ratio, and a dump page on top."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.core.rules import Grow, Slots, Window
from kvcalc.core.states import VLLM_STATES
from tests.spike import shapes

ROWS = {row["id"]: row for row in shapes.rows("sglang")}
MAX = 8192


def _pool(name: str, group: Group, *, share: tuple[int, int] = (1, 1)) -> Pool:
    # One page of padding comes on top of the tokens that the budget pays for.
    return Pool(
        name=name,
        groups=(group,),
        unit_bytes=group.unit_bytes,
        reserved_units=1,
        reserved_is_extra=True,
        share=share,
    )


def _plan(*pools: Pool, fixed_bytes: int = 0, page: int = 1) -> CachePlan:
    return CachePlan(
        engine="sglang",
        engine_version="0.5.23",
        model="spike",
        kv_cache_dtype="bfloat16",
        block_size=page,
        ranks=(Rank(name="rank", pools=pools, fixed_bytes=fixed_bytes),),
        split="ratio",
        max_model_len=MAX,
    )


def _tokens(caches: Any, page: int, dtype: str = "bfloat16", window: int | None = None) -> Group:
    rule = Grow(block_tokens=page)
    if window:
        return shapes.attention("swa", caches, Window(block_tokens=page, window=window, ring=True))
    return shapes.attention("tokens", caches, rule, kv_cache_dtype=dtype)


def _swa(full: Any, window: Any, layers: int, page: int, share: tuple[int, int]) -> CachePlan:
    return _plan(
        _pool("full", _tokens(full, page)),
        _pool("swa", _tokens([(layers, window)], page, window=128), share=share),
        page=page,
    )


def _mamba() -> CachePlan:
    ssm = GatedDeltaNet(
        num_k_heads=16,
        num_v_heads=32,
        head_k_dim=128,
        head_v_dim=128,
        conv_kernel=4,
        state_dtype="float32",
    )
    return _plan(_pool("state", shapes.state("state", 36, ssm, Slots(), VLLM_STATES)))


PLANS = {
    "llama-3.1-8b bf16 page64": _plan(_pool("tokens", _tokens([(32, shapes.LLAMA_8B)], 64))),
    "deepseek-v3 fp8 page64": _plan(
        _pool("tokens", _tokens([(61, shapes.DEEPSEEK_V3)], 64, "fp8"))
    ),
    "glm-5 DSA fp8": _plan(
        _pool(
            "tokens",
            _tokens([(78, shapes.DEEPSEEK_V3), (78, shapes.DEEPSEEK_INDEXER)], 64, "fp8_ds_mla"),
        )
    ),
    "gpt-oss-20b page1 ratio .8": _swa(
        [(12, shapes.GPT_OSS_FULL)], shapes.GPT_OSS_WINDOW, 12, 1, (4, 5)
    ),
    # int(1024 x 0.8) is 819 tokens: 12 pages of 64.
    "gemma-3-27b page64 ratio .8": _swa(
        [(10, shapes.GEMMA_3_FULL)], shapes.GEMMA_3_WINDOW, 52, 64, (4, 5)
    ),
    "qwen3-next-80b tp1 bf16 conv/fp32 ssm": _mamba(),
}
TABLE = "128 reqs x 131072+4"


def test_every_row_has_a_plan() -> None:
    """No oracle row of the spike is left out; the request table is a rank's fixed bytes."""
    assert {*PLANS, TABLE} == set(ROWS)


@pytest.mark.parametrize("name", PLANS)
def test_pools(name: str) -> None:
    """A budget that just pays for the pools gives the engine's tensors to the byte."""
    row, plan = ROWS[name], PLANS[name]
    asked = row["kwargs"]
    page = int(asked.get("page_size", 1))
    first = int(asked.get("size", asked.get("slots", 0))) // page
    pools = plan.rank.pools
    budget = sum(
        int(first * pool.share[0] / pool.share[1] + 0.999) * pool.unit_bytes for pool in pools
    )
    found = plan.capacity(budget)

    assert found.pools[0].units == first
    assert row["bytes"] == sum(pool.total_bytes for pool in found.pools)
    if "swa_bytes" in row:
        assert [row["full_bytes"], row["swa_bytes"]] == [p.total_bytes for p in found.pools]
    for n in (1, 63, 64, 65, 127, 128, 129, 1000):
        wastes = plan.wastes(n)
        assert plan.bytes_held(n) == wastes.reserved_bytes
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())


def test_request_table() -> None:
    """req_to_token and its generations are fixed bytes, taken before the pools."""
    row = ROWS[TABLE]
    requests, context = 128, int(row["kwargs"]["max_context_len"])
    table = (requests + 1) * context * 4 + (requests + 1) * 8
    tokens = _pool("tokens", _tokens([(32, shapes.LLAMA_8B)], 1))

    assert row["bytes"] == table
    with_table = _plan(tokens, fixed_bytes=table).capacity(2**30 + table)
    assert with_table.pools == _plan(tokens).capacity(2**30).pools
