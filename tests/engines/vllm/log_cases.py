"""Start-up logs of real vLLM servers, in the figures that they printed, and how to ask kvcalc.

The figures are those of public issues and logs; a case's number is the one of the project's list of
cases, which a test compares with them where that list is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from kvcalc.api import load_gpu, load_model, shape_model
from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec

__all__ = ["CASES", "LISTED", "LogCase"]


class LogCase(NamedTuple):
    """A start: the model, the settings, and what was printed.

    Attributes:
        case: number in the list of cases.
        release: vLLM's version, as far as the log tells it.
        memory: "Available KV cache memory" in GiB, two decimals; None where it is not printed.
        blocks, tokens, concurrency: as printed; None where not.
        needed: GiB that the refusal says are needed; length: that it says would fit.
        block: tokens a block, where it was raised and said so.
        padding: padding layers, where they are told of.
        refused: the server did not start, as one sequence of the maximum does not fit.
        loose: the memory is told in whole GiB ("~50 GB") and the tokens in thousands.
    """

    case: str
    release: str
    model: Callable[[], ModelSpec]
    settings: dict[str, Any]
    memory: float | None = None
    blocks: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    needed: float | None = None
    length: int | None = None
    block: int | None = None
    padding: int | None = None
    refused: bool = False
    loose: bool = False


def _preset(name: str) -> Callable[[], ModelSpec]:
    return lambda: load_model(name)


def _shape(layers: int, kv_heads: int, head_dim: int) -> Callable[[], ModelSpec]:
    return lambda: shape_model(layers, kv_heads, head_dim)


def _deepseek_coder_v2() -> ModelSpec:
    model = load_model("deepseek-v3")
    model = model.with_layers(60, model.layers[0].caches)
    return msgspec.structs.replace(model, architecture="DeepseekV2ForCausalLM")


def _plain_gemma_4() -> ModelSpec:
    return msgspec.structs.replace(load_model("gemma-4-31b-it-nvfp4"), kv_cache_dtype=None)


def _windows_beside_full(full: int, windows: int) -> Callable[[], ModelSpec]:
    heads = {"num_kv_heads": 8, "head_dim": 128}
    layers = (
        LayerRun(count=full, caches=(FullAttention(**heads),)),
        LayerRun(count=windows, caches=(SlidingWindow(sliding_window=2048, **heads),)),
    )
    return lambda: ModelSpec(
        name=f"{full} full layers, {windows} windows",
        num_hidden_layers=full + windows,
        dtype="bfloat16",
        layers=layers,
    )


def _card(name: str) -> dict[str, Any]:
    return {"gpu": load_gpu(name)}


def _speculating(method: str, tokens: int) -> dict[str, Any]:
    return {"speculative_method": method, "num_speculative_tokens": tokens}


_QWEN = _preset("qwen3.5-27b")  # Qwen3.6-27B and Qwen3.8-27B have the same layers
_QWEN3_14B = _shape(40, 8, 128)
_PAIR_OF_3090 = {
    "tensor_parallel_size": 2, "max_model_len": 262144, "enable_prefix_caching": True,
    **_speculating("mtp", 3), **_card("rtx-3090"),
}  # fmt: skip
_ONE_3090 = {"kv_cache_dtype": "fp8", "enable_prefix_caching": False, **_card("rtx-3090")}

CASES = (
    LogCase("vllm-v1-222", "0.5.4", _deepseek_coder_v2,
            {"tensor_parallel_size": 8, "max_model_len": 16000}, tokens=2368, refused=True),
    LogCase("vllm-v0-001", "0.6.4", _preset("llama-3.1-8b"), {"max_model_len": 20000}, 3.81,
            blocks=1952, tokens=31232, concurrency=1.56),
    LogCase("vllm-v1-012", "0.7.0+v1", _preset("llama-3.1-70b"), {"max_model_len": 2048},
            blocks=1381, tokens=22096, concurrency=10.79),
    LogCase("vllm-v1-113", "0.9.1", _preset("llama-3.1-8b"),
            {"max_model_len": 131072, **_speculating("eagle", 3)}, 51.63,
            tokens=410128, concurrency=3.13),
    LogCase("vllm-v1-004", "0.10.0", _preset("qwen3-235b-a22b-fp8"), {"tensor_parallel_size": 4},
            tokens=178880),  # the memory line is another rank's
    LogCase("vllm-v1-003", "0.10.2", _QWEN3_14B, {"max_model_len": 32768}, 6.51,
            tokens=42656, concurrency=1.30),
    LogCase("vllm-v1-016", "0.10.2", _preset("qwen2.5-1.5b"),
            {"max_model_len": 4096, "dtype": "float16"}, 0.07, needed=0.11, length=2624),
    LogCase("vllm-v1-120", "0.11.0", _preset("gpt-oss-120b"),
            {"max_model_len": 131072, "max_num_batched_tokens": 1024}, 1.71, refused=True),
    LogCase("vllm-v1-041", "0.11.2", _preset("gpt-oss-120b"),
            {"max_model_len": 8192, **_speculating("eagle3", 1)}, padding=17),
    LogCase("vllm-v1-041", "0.12.0", _preset("gpt-oss-120b"),
            {"max_model_len": 8192, **_speculating("eagle3", 1)}, padding=1),
    LogCase("vllm-v1-031", "0.13.0", _preset("gemma-3-1b"), {"max_model_len": 2048}, 25.39,
            tokens=950864, concurrency=461.21, padding=2),
    LogCase("vllm-v1-037", "0.18.0", _preset("nemotron-3-nano-30b-a3b"),
            {"max_model_len": 131072, "kv_cache_dtype": "fp8"}, block=4176),
    LogCase("vllm-v1-109", "0.18.0", _preset("qwen3.5-122b-a10b"),
            # The step is not told: one of fewer tokens than a block is refused.
            {"max_model_len": 131072, "enable_prefix_caching": True,
             "max_num_batched_tokens": 8192}, 17.36,
            blocks=361, tokens=188640, concurrency=5.23, block=2096),
    LogCase("vllm-v1-007", "0.19.0", _QWEN, {"max_model_len": 32768},
            tokens=290864, concurrency=33.04),
    LogCase("vllm-v1-020", "0.19.0", _QWEN3_14B, {"max_model_len": 32768}, 3.88,
            needed=5.0, length=25424),
    LogCase("vllm-v1-119", "0.20.0", _plain_gemma_4,
            {"max_model_len": 131072, **_card("a100-80gb")}, 50, tokens=55000, loose=True),
    LogCase("vllm-v1-119", "0.21.0", _plain_gemma_4,
            {"max_model_len": 131072, **_card("a100-80gb")}, 50, tokens=525000, loose=True),
    LogCase("vllm-v1-014", "0.20.1", _preset("qwen2.5-1.5b"), {}, 0.56, tokens=20992),
    LogCase("vllm-v1-032", "0.20.1", _preset("qwen3.6-35b-a3b-nvfp4"),
            {"max_model_len": 262144, "kv_cache_dtype": "fp8_e4m3", "enable_prefix_caching": True,
             **_speculating("mtp", 2)}, 66.58,
            tokens=5747892, concurrency=21.93, block=2128, padding=3),
    LogCase("vllm-v1-038-Qwen3.6_3.8-27B", "0.20.2", _QWEN, {"max_model_len": 131072}, block=784),
    LogCase("vllm-v1-038-Qwen3.6-35B-A3B", "0.20.2", _preset("qwen3.5-35b-a3b"),
            {"max_model_len": 131072, "kv_cache_dtype": "fp8"}, block=2096),
    LogCase("vllm-v1-103", "0.22.0", _QWEN, {"kv_cache_dtype": "fp8_e5m2", **_PAIR_OF_3090},
            blocks=425, tokens=622408, concurrency=2.37, block=1600),
    LogCase("vllm-v1-104", "0.22.0", _QWEN, {"kv_cache_dtype": "fp8_e5m2", **_PAIR_OF_3090},
            blocks=424, tokens=620944, concurrency=2.37, block=1600),
    LogCase("vllm-v1-015", "0.22.0", _preset("qwen2.5-3b"), {"max_model_len": 32000}, 0.59,
            needed=1.1),
    LogCase("vllm-v1-019", "0.22.0", _preset("qwen2.5-32b"), {"max_model_len": 4096}, 0.58,
            needed=1.0, length=2368),
    LogCase("vllm-v1-044", "0.22.0", _QWEN, {"max_model_len": 8192, **_speculating("mtp", 1)},
            padding=3),
    LogCase("vllm-v1-045", "0.22.0", _preset("lfm2-1.2b"), {"max_model_len": 8192}, padding=2),
    LogCase("vllm-v1-105", "0.24.0", _QWEN, {"kv_cache_dtype": "fp8", **_PAIR_OF_3090}, 11.05,
            blocks=426, tokens=623873, concurrency=2.38, block=1600),
    LogCase("vllm-v1-034a", "0.28.0", _QWEN, {"max_model_len": 16384, **_ONE_3090}, 1.29,
            tokens=30427, concurrency=1.86, block=1568),
    LogCase("vllm-v1-034b", "0.28.0", _QWEN, {"max_model_len": 8192, **_ONE_3090}, 3.88,
            tokens=73728, block=1568),
    LogCase("vllm-v1-034c", "0.28.0", _QWEN, {"max_model_len": 8192, **_ONE_3090}, 4.0,
            tokens=75548, concurrency=9.22, block=1568),
    LogCase("vllm-v1-035", "0.28.0", _QWEN, {"max_model_len": 262144, **_ONE_3090}, needed=8.18),
    LogCase("vllm-v1-106", "0.31.0", _QWEN,
            {"tensor_parallel_size": 2, "max_model_len": 131072, "kv_cache_dtype": "fp8_e4m3",
             "enable_prefix_caching": True, **_card("rtx-3090")}, 4.99,
            blocks=208, tokens=302921, concurrency=2.31, block=1568),
    LogCase("vllm-v1-042", "0.33.0", _windows_beside_full(20, 30), {"max_model_len": 8192},
            padding=10),
    LogCase("vllm-v1-042", "0.33.0", _windows_beside_full(10, 16), {"max_model_len": 8192},
            padding=4),
)  # fmt: skip

LISTED = {
    "vllm-v1-017": "a table by hand: memory and tokens agree (1,780 blocks of 16), and 1,780 x 16 /"
    " 4,096 is 6.953, where the table has 6.94",
    "vllm-v1-050": "an Apple card, whose port of vLLM has settings of its own that are not told",
    "vllm-v1-221": "an Ascend card: engine vllm-ascend reproduces its page",
    "vllm-acct-202": "tells where memory went and names no model",
    "vllm-acct-203": "tells where memory went and names no model",
}
"""Verifiable cases that are not reproduced -> why."""
