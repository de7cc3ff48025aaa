"""Starts of real servers among the shared cases, and those that are not reproduced."""

from __future__ import annotations

from typing import Any, NamedTuple


class LogCase(NamedTuple):
    """A start: of what memory, and what was printed.

    Attributes:
        case: its id among the shared cases.
        release, model, settings: what was started.
        tokens: tokens of the pool.
        free: GiB free, of which the pool is nine tenths.
        pool: GiB of the pool as printed.
    """

    case: str
    release: str
    model: str
    settings: dict[str, Any]
    tokens: int
    free: float | None = None
    pool: float | None = None


CASES = (
    LogCase("trtllm-059", "0.13.0.dev2024082000", "qwen1.5-7b-chat", {"block_size": 64},
            40_384, free=21.89),
    LogCase("trtllm-060", "1.0", "qwen3-0.6b", {}, 643_136, pool=68.69),
    LogCase("trtllm-061", "0.20", "llama-3.1-8b", {"kv_cache_dtype": "fp8"}, 263_008,
            free=17.83, pool=16.05),
)  # fmt: skip

LISTED = {
    "trtllm-219": "a request refused: TensorRT-LLM's cross-attention cache is not modelled",
}
"""Verifiable cases that are not reproduced -> why."""
