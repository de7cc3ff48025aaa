"""Start-up logs of real llama.cpp servers, in the figures that they printed, and how to ask kvcalc.

A case's number is the one of the project's list of cases. Figures are MiB with two decimals, as
llama.cpp prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvcalc.api import load_model
from kvcalc.core.attention import FullAttention, Indexer, SlidingWindow
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet

__all__ = ["CASES", "LISTED", "LogCase"]


class LogCase(NamedTuple):
    """A start: the model, the settings, and the lines about caches.

    Attributes:
        case: number in the list of cases.
        args: llama.cpp's settings.
        settings: kvcalc's own.
        cells: cells of a stream by cache.
        mib: MiB by cache: in all, K and V; of states in all, R and S; a figure that was not
            printed is None.
    """

    case: str
    model: Callable[[], ModelSpec]
    args: dict[str, Any]
    cells: dict[str, int]
    mib: dict[str, tuple[float | None, float | None, float | None]]
    settings: dict[str, Any] = {}


def _model(architecture: str, *pattern: tuple[int, tuple[Cache, ...]], times: int) -> ModelSpec:
    runs = tuple(LayerRun(count=count, caches=caches) for count, caches in pattern) * times
    return ModelSpec(
        name=architecture,
        num_hidden_layers=sum(run.count for run in runs),
        dtype="bfloat16",
        layers=runs,
        architecture=architecture,
    )


def _qwen35_9b() -> ModelSpec:
    state = GatedDeltaNet(
        num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128, conv_kernel=4
    )
    full = FullAttention(num_kv_heads=4, head_dim=256)
    return _model("qwen35", (3, (state,)), (1, (full,)), times=8)


def _qwen4() -> ModelSpec:
    state = GatedDeltaNet(
        num_k_heads=16, num_v_heads=48, head_k_dim=128, head_v_dim=128, conv_kernel=4
    )
    full = FullAttention(num_kv_heads=2, head_dim=256)
    key = Indexer(index_head_dim=128, index_dtype="float16")
    return _model("qwen4exp", (3, (state,)), (1, (full, key)), times=12)


def _gemma_3_270m() -> ModelSpec:
    heads = {"num_kv_heads": 1, "head_dim": 256}
    window = SlidingWindow(sliding_window=512, **heads)
    return _model("gemma3", (5, (window,)), (1, (FullAttention(**heads),)), times=3)


_FOUR_IN_ONE = {"parallel": 4, "kv_unified": True}

CASES = (
    LogCase("llamacpp-065", lambda: load_model("gpt-oss-20b"),
            {"ctx_size": 8192, "parallel": 1, "ubatch_size": 128, "cache_type_k": "q8_0",
             "cache_type_v": "q8_0"},
            {"kv": 8192, "swa": 256}, {"kv": (102.0, 51.0, 51.0), "swa": (3.19, None, None)}),
    LogCase("llamacpp-128", _qwen35_9b, {"ctx_size": 135168, **_FOUR_IN_ONE}, {"kv": 135168},
            {"kv": (4224.0, 2112.0, 2112.0), "state": (201.0, 9.0, 192.0)}),
    LogCase("llamacpp-129", lambda: load_model("qwen3.5-27b"), {"ctx_size": 8192, "parallel": 1},
            {"kv": 8192}, {"kv": (512.0, None, None), "state": (448.88, 16.88, 432.0)},
            {"speculative_method": "mtp", "num_speculative_tokens": 2}),
    LogCase("llamacpp-130", lambda: load_model("qwen3.5-27b"),
            {"ctx_size": 8192, "parallel": 3, "kv_unified": True}, {},
            {"state": (448.88, 16.88, 432.0)}),
    LogCase("llamacpp-131", _qwen4, {"ctx_size": 262144, "parallel": 1}, {"kv": 262144},
            {"kv": (6144.0, 3072.0, 3072.0), "indexer": (None, 768.0, None)}),
    LogCase("llamacpp-136", _gemma_3_270m, {"ctx_size": 1024, "parallel": 3}, {"kv": 512},
            {"kv + swa": (27.0, None, None)}),
    LogCase("llamacpp-136", _gemma_3_270m, {"ctx_size": 1024, "parallel": 4}, {"kv": 256},
            {"kv + swa": (18.0, None, None)}),
)  # fmt: skip
"""131 was printed by a build whose indexer cache had a V of 256 elements beside it (1,536 MiB), as
MiniMax-M3's still has; b11434 keeps none for this architecture. The rest of it is compared."""

LISTED = {
    "ollama-137": "ollama's own engine of May 2025, not llama.cpp: windows of 1,024 and a batch of"
    " 512, not rounded up; August 2026's ollama starts llama-server",
    "ollama-139": "what the card had in use, weights and all; no size of the cache is told",
}
"""Verifiable cases that are not reproduced -> why."""
