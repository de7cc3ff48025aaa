"""All shapes by engine, and the words of which every line that matters has one."""

from __future__ import annotations

from kvcalc.measure.logs import llamacpp, others, sglang, vllm
from kvcalc.measure.logs.shapes import Shape

__all__ = ["BY_ENGINE", "GATE", "OOM_WORDS"]

BY_ENGINE: dict[str, tuple[Shape, ...]] = {
    "vllm": vllm.SHAPES,
    "sglang": sglang.SHAPES,
    "llama.cpp": llamacpp.SHAPES,
    "tensorrt-llm": others.TENSORRT_LLM,
    "lmdeploy": others.LMDEPLOY,
    "tgi": others.TGI,
    "mlc-llm": others.MLC,
    "exllamav2": others.EXLLAMA,
}
"""kvcalc's name of an engine -> the shapes of its lines."""

OOM_WORDS = ("Tried to allocate", "out of memory", "OutOfMemoryError")
"""Of a line that belongs to an out-of-memory text."""

GATE = (
    *("KV", "kv", "memory", "Memory", "mem", "cache", "Cache", "blocks", "LLM engine", "max seq"),
    *("model length", "Loading", "loading", "oad weight", "graph", "Graph", "server_args", "args"),
    *("n_", "build", "version", "buffer", "loaded", "max_", "tokens per", "cells", "VRAM"),
    *(
        "Args",
        "Warm-up",
        "session_len",
        "padding",
        "flash_attn ",
        "ftype",
        "page size",
        "attention",
    ),
    *("allocate", "allocating", "context_len=", "layers", "engine mode", "NPU", "concurrency"),
    *("plugin", "OutOfMemory", "group_size", "[BlockManager]", "`max_", "general.name"),
)
"""A line with none of these is of no interest; most lines of a serving log have none."""
