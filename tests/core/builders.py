"""Models and plans that the tests of the core share."""

from __future__ import annotations

from typing import Any

from kvcalc.core.attention import (
    CompressedAttention,
    FullAttention,
    Indexer,
    Mla,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines import plan

GIB = 2**30


def model(*runs: tuple[int, tuple[Cache, ...]], dtype: str = "bfloat16") -> ModelSpec:
    """Return a model of runs of (layers, caches)."""
    return ModelSpec(
        name="test",
        num_hidden_layers=sum(count for count, _ in runs),
        dtype=dtype,
        layers=tuple(LayerRun(count=count, caches=caches) for count, caches in runs),
    )


def plan_of(spec: ModelSpec, **settings: Any) -> CachePlan:
    """Return the plan of engine none."""
    return plan(spec, Deployment(**settings))


FULL = FullAttention(num_kv_heads=8, head_dim=128)
ARTICLE = model((16, (FullAttention(num_kv_heads=4, head_dim=256),)))
LLAMA_8B = model((32, (FULL,)))
LLAMA_70B = model((80, (FULL,)))
MLA = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
DEEPSEEK_V3 = model((61, (MLA,)))
DEEPSEEK_V32 = model((61, (MLA, Indexer(index_head_dim=128))))

WINDOW = SlidingWindow(num_kv_heads=16, head_dim=128, sliding_window=1024)
GLOBAL = FullAttention(num_kv_heads=16, head_dim=128)
_SIX_LAYERS: tuple[tuple[int, tuple[Cache, ...]], ...] = ((5, (WINDOW,)), (1, (GLOBAL,)))
GEMMA_3_27B = model(*_SIX_LAYERS * 10, (2, (WINDOW,)))

GDN_27B = GatedDeltaNet(
    num_k_heads=16,
    num_v_heads=48,
    head_k_dim=128,
    head_v_dim=128,
    conv_kernel=4,
    state_dtype="float32",
)
FULL_27B = FullAttention(num_kv_heads=4, head_dim=256)
_FOUR_LAYERS: tuple[tuple[int, tuple[Cache, ...]], ...] = ((3, (GDN_27B,)), (1, (FULL_27B,)))
QWEN35_27B = model(*_FOUR_LAYERS * 16)

RAW = SlidingMla(head_dim=512, qk_rope_head_dim=64, sliding_window=128)
CSA = CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=4, overlap=True)
HCA = CompressedAttention(head_dim=512, qk_rope_head_dim=64, compress_ratio=128)
LID = Indexer(index_head_dim=128, compress_ratio=4, overlap=True)
DEEPSEEK_V4 = model((2, (RAW,)), (21, (RAW, CSA, LID)), (20, (RAW, HCA)))
