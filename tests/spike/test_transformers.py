"""transformers' own caches, through the one CachePlan: a step of one token, or reserved whole."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import FullAttention
from kvcalc.core.layers import Cache
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Grow, Rule, Slots, Whole, Window
from kvcalc.core.states import TRANSFORMERS_STATES
from tests.spike import shapes

ROWS = shapes.rows("transformers")
QWEN2 = FullAttention(num_kv_heads=2, head_dim=128)
CACHES: dict[str, list[tuple[int, Cache]]] = {
    "Qwen--Qwen2-1.5B-Instruct": [(28, QWEN2)],
    "Qwen--Qwen3-Next-80B-A3B-Instruct": [
        (36, shapes.QWEN3_NEXT_STATE),
        (12, shapes.QWEN3_NEXT_FULL),
    ],
    "google--gemma-3-27b-it": [(52, shapes.GEMMA_3_WINDOW), (10, shapes.GEMMA_3_FULL)],
    "openai--gpt-oss-20b": [(12, shapes.GPT_OSS_WINDOW), (12, shapes.GPT_OSS_FULL)],
}
LONG = 1 << 20


def _rule(cache: Cache, max_cache_len: int | None) -> Rule:
    window = getattr(cache, "sliding_window", None)
    if max_cache_len:
        return Whole(slots=min(max_cache_len, window or max_cache_len), limit=window)
    if window is None:
        return Grow(block_tokens=1)
    # A prompt is stored whole until the next step drops what has left the window.
    return Window(block_tokens=1, window=window, in_flight=LONG, ring=True)


def _plan(row: dict[str, Any]) -> CachePlan:
    groups: list[Group] = []
    for layers, cache in CACHES[row["model"]]:
        if cache.states():
            groups.append(shapes.state("state", layers, cache, Slots(), TRANSFORMERS_STATES))
        else:
            rule = _rule(cache, row["max_cache_len"])
            groups.append(shapes.attention(cache.kind, [(layers, cache)], rule))
    pools = tuple(Pool(name=g.name, groups=(g,), unit_bytes=g.unit_bytes) for g in groups)
    return CachePlan(
        engine="transformers",
        engine_version="5.24.0",
        model=row["model"],
        kv_cache_dtype="bfloat16",
        block_size=None,
        ranks=(Rank(name="rank", pools=pools),),
        split="fungible",
        max_model_len=row["max_cache_len"] or LONG,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_bytes(row: dict[str, Any]) -> None:
    """Storage kept alive and bytes visible are transformers' own, after prefill or a step."""
    plan, n = _plan(row), row["tokens"]
    stored = plan.bytes_held(n) if "decode" in row["steps"] else plan.bytes_needed(n)

    assert row["storage_bytes"] == stored
    if row["cache"] == "DynamicCache":
        assert row["bytes"] == plan.bytes_readable(n)
    else:
        assert row["bytes"] == stored


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["id"])
def test_reserved_is_used_plus_wastes(row: dict[str, Any]) -> None:
    """What a sequence holds, now or while its prompt is stored, is explained to the byte."""
    plan = _plan(row)
    for n in (1, 100, 127, 128, 129, 1000):
        for wastes, held in (
            (plan.wastes(n), plan.bytes_held(n)),
            (plan.wastes_at_admission(n), plan.bytes_needed(n)),
        ):
            assert held == wastes.reserved_bytes
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
