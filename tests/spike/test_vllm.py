"""vLLM 0.33's own answers, through the one CachePlan: groups that share block ids are one pool."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvcalc.core.capacity import Capacity
from kvcalc.core.layers import Cache
from kvcalc.core.lengths import Lengths
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Grow, Slots, Window
from kvcalc.core.states import VLLM_STATES
from tests.spike import shapes

ROWS = shapes.rows("vllm")
Layout = list[tuple[int, Group]]


def _grow(row: dict[str, Any]) -> Grow:
    return Grow(block_tokens=row["block_size_after_backend"])


def _window(row: dict[str, Any], window: int) -> Window:
    return Window(
        block_tokens=16, window=window, in_flight=row["max_in_flight_tokens"], extra_blocks=1
    )


def _tensor_parallel(cache: Any, row: dict[str, Any]) -> Any:
    return cache.on_rank(row["case"].get("tp", 1))


def _one_group(cache: Any, layers: int, dtype: str = "bfloat16") -> Any:
    def groups(row: dict[str, Any]) -> list[Group]:
        caches = [(layers, _tensor_parallel(cache, row))]
        return [shapes.attention("full", caches, _grow(row), kv_cache_dtype=dtype)]

    return groups


def _deepseek_v32(row: dict[str, Any]) -> list[Group]:
    caches: list[tuple[int, Cache]] = [
        (61, shapes.DEEPSEEK_V3),
        (61, shapes.DEEPSEEK_INDEXER),
    ]
    return [shapes.attention("mla+indexer", caches, _grow(row))]


def _windows(cache: Any, full: Any, window: int, sizes: list[int], layers: int) -> Any:
    """Window layers dealt round robin into groups as wide as the full layers' group."""

    def groups(row: dict[str, Any]) -> list[Group]:
        dealt = [
            shapes.attention(f"window {i}", [(n, cache)], _window(row, window))
            for i, n in enumerate(sizes)
        ]
        return [*dealt, shapes.attention("full", [(layers, full)], _grow(row))]

    return groups


def _qwen3_next(slots: int, *, full_layers: int = 12, proposed: int = 0) -> Any:
    def groups(row: dict[str, Any]) -> list[Group]:
        block = row["block_size_after_backend"]
        page = block * 2048  # two heads of 256, K and V, two bytes: the page states must fit in
        states = [
            shapes.state(
                f"state {i}",
                12,
                shapes.QWEN3_NEXT_STATE,
                Slots(count=slots),
                VLLM_STATES,
                page_bytes=page,
                proposed_tokens=proposed,
            )
            for i in range(3)
        ]
        full = [(full_layers, shapes.QWEN3_NEXT_FULL)]
        return [*states, shapes.attention("full", full, Grow(block_tokens=block))]

    return groups


GROUPS = {
    "dense": _one_group(shapes.LLAMA_8B, 32),
    "dense, an odd length": _one_group(shapes.LLAMA_8B, 32),
    "GQA over 4 ranks": _one_group(shapes.LLAMA_8B, 80),
    "GQA over 8 ranks, fp8": _one_group(shapes.LLAMA_8B, 80, "fp8"),
    "replicated heads": _one_group(shapes.LLAMA_8B, 32),
    "MLA": _one_group(shapes.DEEPSEEK_V3, 61),
    "DSA": _deepseek_v32,
    "Gemma-3": _windows(shapes.GEMMA_3_WINDOW, shapes.GEMMA_3_FULL, 1024, [9, 9, 9, 9, 8, 8], 10),
    "gpt-oss on H100": _windows(shapes.GPT_OSS_WINDOW, shapes.GPT_OSS_FULL, 128, [12], 12),
    "Qwen3-Next on H100": _qwen3_next(3),
    "Qwen3-Next on A100": _qwen3_next(2),
    "Qwen3-Next, prefix caching off": _qwen3_next(1),
    "DCP of MLA": _one_group(shapes.DEEPSEEK_V3, 61),
    "DCP of replicated heads": _one_group(shapes.LLAMA_8B, 32),
    # 62 layers in two stages; every stage has its part of the whole model's groups.
    "PP of Gemma-3": _windows(
        shapes.GEMMA_3_WINDOW, shapes.GEMMA_3_FULL, 1024, [5, 5, 4, 4, 4, 4], 5
    ),
    "speculation, MTP of an MLA model": _one_group(shapes.DEEPSEEK_V3, 62),
    "speculation, MTP of a hybrid": _qwen3_next(3, full_layers=13, proposed=2),
    "refused for memory": _one_group(shapes.LLAMA_8B, 32),
}


def _plan(row: dict[str, Any]) -> CachePlan:
    groups = tuple(GROUPS[row["id"]](row))
    widest = max(group.unit_bytes for group in groups)
    # Block 0 is the null block: counted in num_blocks, never handed out.
    pool = Pool(name="blocks", groups=groups, unit_bytes=widest, reserved_units=1)
    stages = row["case"].get("pp", 1)
    ranks = tuple(
        Rank(
            name=f"stage {i}",
            pools=(pool,),
            multiplicity=row["case"].get("tp", 1),
            token_factor=row["case"].get("dcp", 1),
        )
        for i in range(stages)
    )
    return CachePlan(
        engine="vllm",
        engine_version="0.33.0",
        model=row["model"],
        kv_cache_dtype="bfloat16",
        block_size=row["block_size_after_backend"],
        ranks=ranks,
        split="one_pool",
        max_model_len=row["max_model_len"],
    )


def test_every_row_has_a_plan() -> None:
    """No oracle row of the spike is left out."""
    assert set(GROUPS) == {row["id"] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
class TestSpike:
    def test_groups_and_blocks(self, row: dict[str, Any]) -> None:
        """Layers, pages and blocks of a request are the engine's, group by group."""
        plan = _plan(row)
        rank = plan.rank
        groups = plan.growing_pool.groups  # type: ignore[union-attr]  # every row grows
        n = rank.local(row["max_model_len"])

        assert [g["num_layers"] for g in row["groups"] if g["spec"][:7] != "Uniform"] == [
            g.layers for g in groups if g.name != "mla+indexer"
        ]
        assert [g["blocks_per_max_len_request"] for g in row["groups"]] == [
            g.rule.peak(n) for g in groups
        ]
        assert row["bytes_per_block_total"] == plan.block_bytes

    def test_capacity(self, row: dict[str, Any]) -> None:
        """Blocks, needed bytes, tokens and concurrency are what the engine logs."""
        found: Capacity = _plan(row).capacity(row["available_bytes"])

        assert row["needed_bytes_one_request"] == found.needed_bytes * row["case"].get("pp", 1)
        if "error" in row:
            suggested = re.search(r"maximum model length is (\d+)", row["error"])
            assert suggested is not None
            assert not found.fits
            assert int(suggested[1]) == found.max_model_len_that_fits
        else:
            assert found.fits
            assert row["num_blocks"] == found.num_blocks
            assert row["token_capacity"] == found.kv_cache_tokens
            assert row["max_concurrency"] == found.max_concurrency

    def test_reserved_is_used_plus_wastes(self, row: dict[str, Any]) -> None:
        """Nothing that admission reserves for a request of the maximum length is unexplained."""
        plan = _plan(row)
        n = row["max_model_len"]
        wastes = plan.wastes_at_admission(n)

        assert plan.bytes_needed(n) == wastes.reserved_bytes
        assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        for length in (1, 15, 16, 17, 1000, n // 2, n - 1, n):
            assert plan.wastes(length).reserved_bytes == plan.bytes_held(length)
            assert plan.bytes_held(length) <= plan.bytes_needed(length)
        everywhere = plan.wastes_all_ranks(Lengths.of([n, 700]))
        assert everywhere.reserved_bytes >= plan.wastes([n, 700]).reserved_bytes
