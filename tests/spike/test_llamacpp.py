"""llama.cpp's own answers, through the one CachePlan: pools whose units the settings fix."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    SlidingMla,
)
from kvcalc.core.plan import CachePlan, Group, Pool, Rank
from kvcalc.core.rules import Compressed, Grow, Slots, Whole, Window
from kvcalc.core.states import LLAMA_CPP_STATES
from tests.spike import shapes

ROWS = {row["id"]: row for row in shapes.rows("llamacpp")}


def _pool(name: str, group: Group, units: int) -> Pool:
    return Pool(name=name, groups=(group,), unit_bytes=group.unit_bytes, units=units)


def _plan(pools: list[Pool], n_ctx_seq: int) -> CachePlan:
    return CachePlan(
        engine="llama.cpp",
        engine_version="b11549",
        model="spike",
        kv_cache_dtype="float16",
        block_size=None,
        ranks=(Rank(name="rank", pools=tuple(pools)),),
        split="fixed",
        max_model_len=n_ctx_seq,
    )


def _cell(caches: Any, dtype: str = "float16", **rule: Any) -> Group:
    return shapes.attention(
        "kv", caches, rule.get("rule", Grow(block_tokens=1)), kv_cache_dtype=dtype
    )


def _llama(row: dict[str, Any], dtype: str = "float16") -> CachePlan:
    cache = row["caches"][0]
    cells, streams = cache["cells"], cache["streams"]
    # Split sequences own a stream each, reserved whole; a single stream is shared cell by cell.
    rule = Whole(slots=cells) if streams > 1 else Grow(block_tokens=1)
    group = _cell([(32, shapes.LLAMA_8B)], dtype, rule=rule)
    return _plan([_pool("kv", group, cells * streams)], cells)


def _gemma_3(_row: dict[str, Any]) -> CachePlan:
    full = _cell([(10, shapes.GEMMA_3_FULL)])
    # window x sequences + micro-batch, padded to 256, for four sequences in one stream.
    room = Window(block_tokens=1, window=1024, in_flight=512, ring=True)
    window = _cell([(52, shapes.GEMMA_3_WINDOW)], rule=room)
    return _plan([_pool("base", full, 131072), _pool("swa", window, 4 * 1024 + 512)], 131072)


def _deepseek(row: dict[str, Any], indexer: bool) -> CachePlan:
    cells = row["caches"][0]["cells"]
    pools = [_pool("mla", _cell([(61, shapes.DEEPSEEK_V3)], "q8_0"), cells)]
    if indexer:  # llama.cpp keeps the indexer's key in the cache type, not in the reference's fp8
        key = Indexer(index_head_dim=128, index_dtype="q8_0")
        pools.append(_pool("indexer", _cell([(61, key)], "q8_0"), cells))
    return _plan(pools, cells)


def _qwen3_next(_row: dict[str, Any]) -> CachePlan:
    kv = _cell([(12, shapes.QWEN3_NEXT_FULL)], rule=Whole(slots=65536))
    state = shapes.state("state", 36, shapes.QWEN3_NEXT_STATE, Slots(), LLAMA_CPP_STATES)
    return _plan([_pool("attn", kv, 4 * 65536), _pool("recr", state, 4)], 65536)


def _deci(_row: dict[str, Any]) -> CachePlan:
    heads = [(1, FullAttention(num_kv_heads=n, head_dim=128)) for n in (8, 4, 2)]
    exact = _cell(heads)
    # Without flash attention every layer's V row, even one with no KV head, is as wide as the
    # widest: four rows of 8 x 128.
    widened = exact.payload["k"] + 4 * 8 * 128 * 2
    group = Group(name="kv", layers=4, rule=exact.rule, payload=exact.payload, unit_bytes=widened)
    return _plan([_pool("kv", group, 8192)], 8192)


def _deepseek_v4(_row: dict[str, Any]) -> CachePlan:
    def compressed(ratio: int, *, overlap: bool) -> CompressedAttention:
        return CompressedAttention(
            head_dim=512, qk_rope_head_dim=64, compress_ratio=ratio, overlap=overlap
        )

    raw = SlidingMla(head_dim=512, qk_rope_head_dim=64, sliding_window=128)
    csa, hca = compressed(4, overlap=True), compressed(128, overlap=False)
    lid = Indexer(index_head_dim=128, index_dtype="float16", compress_ratio=4, overlap=True)
    window = Window(block_tokens=1, window=128, in_flight=640, ring=True)
    pools = [
        _pool("raw.swa", _cell([(43, raw)], rule=window), 2 * 768),
        _pool("csa", _cell([(21, csa)], rule=Compressed(block_entries=1, ratio=4)), 2 * 8192),
        _pool("hca", _cell([(20, hca)], rule=Compressed(block_entries=1, ratio=128)), 2 * 256),
        _pool("lid", _cell([(21, lid)], rule=Compressed(block_entries=1, ratio=4)), 2 * 8192),
    ]
    for name, layers, cache in (("csa", 21, csa), ("hca", 20, hca), ("lid", 21, lid)):
        state = shapes.state(f"{name} state", layers, cache, Slots(), LLAMA_CPP_STATES)
        pools.append(_pool(f"{name} state", state, 2))
    return _plan(pools, 32768)


PLANS: dict[str, Any] = {
    "llama3.1-8b/n_ctx=10000,seqs=3,unified=True": _llama,
    "llama3.1-8b/n_ctx=10000,seqs=3,unified=False": _llama,
    "gemma3-27b/seqs=4,unified=True,swa_full=False,f16": _gemma_3,
    "llama3.1-8b/q8_0": lambda row: _llama(row, "q8_0"),
    "llama3.1-8b/k-q8_0-v-q4_0": lambda row: _llama(row, "q8_0:q4_0"),
    "deepseek-v3 MLA/q8_0": lambda row: _deepseek(row, indexer=False),
    "qwen3next-80b/seqs=4,unified=False,f16": _qwen3_next,
    "deepseek-v3.2 DSA/q8_0": lambda row: _deepseek(row, indexer=True),
    "deci: per-layer KV heads, FA off (V padded to max)": _deci,
    "deepseek-v4-flash-like/seqs=2": _deepseek_v4,
}
NOT_V = ("v", "conv", "recurrent", "compressor")


def test_every_row_has_a_plan() -> None:
    """No oracle row of the spike is left out."""
    assert set(PLANS) == set(ROWS)


@pytest.mark.parametrize("name", PLANS)
class TestSpike:
    def test_bytes(self, name: str) -> None:
        """Every cache's K, V and state, and the whole context, are llama.cpp's to the byte."""
        row = ROWS[name]
        plan = PLANS[name](row)
        for cache in row["caches"]:
            if not cache.get("num_layers", 1):
                continue
            pool = next(
                p for p in plan.rank.pools if p.name == cache["cache"] or len(row["caches"]) == 1
            )
            group = pool.groups[0]
            if "r_bytes" in cache:
                assert cache["r_bytes"] == pool.units * group.payload["conv"]
                assert cache["s_bytes"] == pool.units * group.payload["recurrent"]
                continue
            assert cache["cells"] * cache["streams"] == pool.units
            k = sum(size for role, size in group.payload.items() if role not in NOT_V)
            assert cache["k_bytes"] == pool.units * k
            assert cache["v_bytes"] == pool.units * (group.unit_bytes - k)
        total = sum(p.total_bytes(p.units or 0) for p in plan.rank.pools)
        assert row["context_bytes"] == total

    def test_reserved_is_used_plus_wastes(self, name: str) -> None:
        """One sequence's share is explained to the byte; a sequence of the whole context fits."""
        plan = PLANS[name](ROWS[name])
        for n in (1, 127, 128, 129, 1000, plan.max_model_len):
            wastes = plan.wastes(n)
            assert plan.bytes_held(n) == wastes.reserved_bytes
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert plan.capacity().fits
        assert plan.capacity().max_model_len_that_fits == plan.max_model_len
