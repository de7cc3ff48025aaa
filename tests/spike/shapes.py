"""The caches of the spike's models, and the groups of layers that the tests put into plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcalc.core.attention import FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.layers import Cache
from kvcalc.core.plan import Group
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.core.rules import Rule
from kvcalc.core.states import StateLayout

LLAMA_8B = FullAttention(num_kv_heads=8, head_dim=128)  # 32 layers; 80 in the 70B and Qwen2.5-72B
GEMMA_3_FULL = FullAttention(num_kv_heads=16, head_dim=128)  # 10 layers
GEMMA_3_WINDOW = SlidingWindow(num_kv_heads=16, head_dim=128, sliding_window=1024)  # 52 layers
GPT_OSS_FULL = FullAttention(num_kv_heads=8, head_dim=64)  # 12 layers
GPT_OSS_WINDOW = SlidingWindow(num_kv_heads=8, head_dim=64, sliding_window=128)  # 12 layers
QWEN3_NEXT_FULL = FullAttention(num_kv_heads=2, head_dim=256)  # 12 layers
QWEN3_NEXT_STATE = GatedDeltaNet(  # 36 layers
    num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128, conv_kernel=4
)
DEEPSEEK_V3 = Mla(kv_lora_rank=512, qk_rope_head_dim=64)  # 61 layers; 78 in GLM-5
DEEPSEEK_INDEXER = Indexer(index_head_dim=128)


def rows(name: str) -> list[dict[str, Any]]:
    """Return the committed oracle rows of one engine."""
    text = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def attention(
    name: str,
    caches: Sequence[tuple[int, Cache]],
    rule: Rule,
    *,
    kv_cache_dtype: str = "bfloat16",
    page_bytes: int | None = None,
) -> Group:
    """Return a group of attention layers; `page_bytes` is one layer's page where it is widened."""
    dtype = kv_dtype(kv_cache_dtype, "bfloat16")
    payload: dict[str, int] = {}
    for layers, cache in caches:
        for row in cache.rows():
            payload[row.role] = payload.get(row.role, 0) + layers * dtype.bytes_of(row)
    layers = sum(count for count, _ in caches)
    exact = rule.slots_per_unit * sum(payload.values())
    return Group(
        name=name,
        layers=layers,
        rule=rule,
        payload=payload,
        unit_bytes=exact if page_bytes is None else layers * page_bytes,
    )


def state(
    name: str,
    layers: int,
    cache: Cache,
    rule: Rule,
    layout: StateLayout,
    *,
    model_dtype: str = "bfloat16",
    page_bytes: int | None = None,
    proposed_tokens: int = 0,
) -> Group:
    """Return a group of recurrent layers; proposed tokens each widen the convolution by a row."""
    payload: dict[str, int] = {}
    lookahead = 0
    for tensor in cache.states():
        payload[tensor.role] = layers * layout.bytes_of(tensor, model_dtype)
        if tensor.role == "conv":
            lookahead = layers * proposed_tokens * tensor.shape[1] * 2
    exact = sum(payload.values()) + lookahead
    return Group(
        name=name,
        layers=layers,
        rule=rule,
        payload=payload,
        unit_bytes=exact if page_bytes is None else layers * page_bytes,
        lookahead_bytes=lookahead,
    )
