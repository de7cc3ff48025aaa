"""What SGLang servers printed at start-up, and the model and settings that make kvcalc say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.models import load_model

__all__ = ["CASES", "ELSEWHERE", "LogCase"]


class LogCase(NamedTuple):
    """A start.

    Attributes:
        case: its id among the shared cases.
        model: makes the model.
        settings: the deployment, `engine_args` apart.
        args: engine_args.
        tokens: max_total_num_tokens.
        parts: parts of the printed lines.
        bytes_per_token: what a token costs, where the case tells that alone.
        proposed: GiB of the states of proposed tokens, two printed figures added up.
    """

    case: str
    model: Callable[[], ModelSpec]
    settings: dict[str, Any]
    args: dict[str, Any]
    tokens: int | None = None
    parts: tuple[str, ...] = ()
    bytes_per_token: int | None = None
    proposed: float | None = None


def _preset(name: str) -> Callable[[], ModelSpec]:
    return lambda: load_model(name)


def _heads(layers: int, heads: int, width: int) -> ModelSpec:
    run = LayerRun(count=layers, caches=(FullAttention(num_kv_heads=heads, head_dim=width),))
    return ModelSpec(name="draft", dtype="bfloat16", num_hidden_layers=layers, layers=(run,))


def _spark() -> ModelSpec:
    """27 layers with a window and 9 without, of a fork that has no pool of windows for them."""
    window = SlidingWindow(num_kv_heads=4, head_dim=256, sliding_window=512)
    full = FullAttention(num_kv_heads=4, head_dim=256)
    return ModelSpec(
        name="spark-x2.5",
        dtype="bfloat16",
        num_hidden_layers=36,
        layers=(LayerRun(count=27, caches=(window,)), LayerRun(count=9, caches=(full,))),
    )


def _qwen_9b() -> ModelSpec:
    """24 layers with states, 8 with attention, as the case tells them."""
    state = GatedDeltaNet(
        num_k_heads=16,
        num_v_heads=32,
        head_k_dim=128,
        head_v_dim=128,
        conv_kernel=4,
        state_dtype="float32",
    )
    attention = FullAttention(num_kv_heads=4, head_dim=256)
    return ModelSpec(
        name="qwen3.5-9b",
        architecture="Qwen3_5ForConditionalGeneration",
        dtype="bfloat16",
        num_hidden_layers=32,
        layers=(LayerRun(count=24, caches=(state,)), LayerRun(count=8, caches=(attention,))),
        max_position_embeddings=262144,
    )


def _first_stage() -> ModelSpec:
    """The first of three stages of a 27B hybrid: 21 layers with states, 7 with attention."""
    whole = load_model("qwen3.5-27b")
    layers = whole.layers[:14]  # runs of three and of one
    return msgspec.structs.replace(
        whole, layers=layers, num_hidden_layers=sum(run.count for run in layers)
    )


CASES = (
    LogCase("sglang-005", _preset("qwen3-235b-a22b"), {"tensor_parallel_size": 4}, {},
            367404, ("K size: 8.23 GB, V size: 8.23 GB",)),
    LogCase("sglang-026", _preset("kimi-k2.5"), {"tensor_parallel_size": 8}, {},
            2454421, ("KV size: 160.63 GB",)),
    LogCase("sglang-027", _preset("qwen2.5-0.5b"), {"max_num_seqs": 128}, {},
            20480, ("K size: 0.12 GB, V size: 0.12 GB", "context_len=32768")),
    LogCase("sglang-028", _qwen_9b, {"tensor_parallel_size": 2}, {"max_mamba_cache_size": 186},
            327310, ("max_mamba_cache_size: 186, conv_state size: 0.10GB, ssm_state size: 4.38GB",
                     "K size: 2.50 GB, V size: 2.50 GB")),
    LogCase("sglang-055", _spark, {"kv_cache_dtype": "fp8_e4m3"}, {}, bytes_per_token=73_728),
    LogCase("sglang-056", _preset("qwen3.5-27b"),
            {"kv_cache_dtype": "fp8_e4m3", "draft_model": _heads(5, 8, 128)},
            {"max_mamba_cache_size": 20, "speculative_algorithm": "DFLASH"},
            499968, ("K size: 7.63 GB, V size: 7.63 GB", "K size: 2.38 GB, V size: 2.38 GB")),
    LogCase("sglang-057", _first_stage, {"num_speculative_tokens": 3, "async_scheduling": False},
            {"max_mamba_cache_size": 12, "mamba_ssm_dtype": "bfloat16",
             "mamba_radix_cache_strategy": "no_buffer"},
            4096, ("conv_state size: 0.02GB, ssm_state size: 0.40GB",), proposed=0.62 + 0.01),
)  # fmt: skip

ELSEWHERE = {
    "sglang-054": "an older release's price of DeepSeek-V4's token; what is left is (below)",
    "sglang-216": "a refusal before any pool is sized; the fraction that it names is (below)",
}
"""Verifiable cases whose memory is reproduced and not a plan -> why."""
