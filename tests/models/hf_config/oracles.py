"""What the engines say a model's layers are, and what kvcalc says, in comparable terms.

A signature is a tuple; a model is a Counter of signatures over its caches. Draft layers are apart.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.attention import (
    ChunkedAttention,
    CompressedAttention,
    CrossAttention,
    FullAttention,
    Indexer,
    Mla,
    SharedKv,
    SlidingMla,
    SlidingWindow,
)
from kvcalc.core.dtypes import kv_dtype
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config

SHARED = Path(__file__).parents[4] / "shared"
ABSENT = "../shared is absent"
Signatures = Counter[tuple[Any, ...]]


def config(model: str) -> dict[str, Any]:
    """Return a config of the corpus by its file name without the ending."""
    for folder in ("configs", "reconstructed"):
        path = SHARED / "corpus" / folder / f"{model}.json"
        if path.is_file():
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return loaded
    raise FileNotFoundError(model)


def spec(model: str, patch: dict[str, Any] | None = None) -> ModelSpec:
    """Return kvcalc's reading of a config of the corpus; `patch` lays keys over it."""
    values = config(model)
    for key, value in (patch or {}).items():
        values[key] = value
    return read_config(values, f"{model}.json", model)


@cache
def vllm_rows() -> list[dict[str, Any]]:
    """Return the rows of vLLM 0.33 that say what the layers are."""
    path = SHARED / "oracle" / "vllm_results.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [r for r in rows if r["vllm_version"].startswith("0.33") and "layer_specs" in r]


def vllm_signatures(row: dict[str, Any]) -> Signatures:
    """Return what vLLM says a rank's layers are; paging, padding and cache dtype are left out."""
    found: Signatures = Counter()
    for s in row["layer_specs"]:
        n = s["num_layers"]
        kind = s["class"]
        if kind == "MambaSpec":
            shapes = tuple(tuple(shape) for shape in s["shapes"])
            found["state", shapes, tuple(s["dtypes"])] += n
            continue
        heads, k, v = s["num_kv_heads"], s["head_size"], s.get("head_size_v", s["head_size"])
        if kind == "FullAttentionSpec":
            found["full", heads, k, v] += n
        elif kind == "SlidingWindowSpec":
            found["window", heads, k, v, s["sliding_window"]] += n
        elif kind == "ChunkedLocalAttentionSpec":
            found["chunk", heads, k, v, s["attention_chunk_size"]] += n
        elif kind == "CrossAttentionSpec":
            found["cross", heads, k, v] += n
        elif kind == "SlidingWindowMLASpec" and s["dtype"] == "float32":
            found["compressor", s["sliding_window"], k] += n
        elif kind == "SlidingWindowMLASpec":
            found["sliding_mla", k, s["sliding_window"]] += n
        elif kind == "MLAAttentionSpec" and "tokens_per_state" in s and k == 132:
            ratio = s["tokens_per_state"]
            content = s["unpadded_page_size_bytes"] * ratio // s["block_size"]
            found["indexer", content, ratio] += n
        elif kind == "MLAAttentionSpec" and "tokens_per_state" not in s and k in (128, 132):
            found["indexer", s["page_size_bytes"] // s["block_size"]] += n
        elif kind == "MLAAttentionSpec":
            found["mla", k, s.get("tokens_per_state", 1)] += n
        else:
            found[kind, k, s.get("sliding_window"), s.get("tokens_per_state", 1)] += n
    return found


def _compressor(c: CompressedAttention | Indexer) -> tuple[Any, ...]:
    """Return the window that waits to be folded: tokens, and floats a token (entry and score)."""
    (state,) = c.states()
    both, window, width = state.shape
    assert state.dtype == "float32"
    return ("compressor", window, both * width)


def our_signatures(model: ModelSpec, runs: tuple[LayerRun, ...] | None = None) -> Signatures:
    """Return what kvcalc says the layers keep, in the terms of `vllm_signatures`.

    Extend it together with vllm_signatures for kinds that neither has yet (DeepSeek-V4).
    """
    found: Signatures = Counter()
    dtype = kv_dtype("bfloat16", "bfloat16")
    for run in model.layers if runs is None else runs:
        for c in run.caches:
            n = run.count
            match c:
                case FullAttention() | SlidingWindow() | ChunkedAttention() | CrossAttention():
                    v = c.head_dim if c.v_head_dim is None else c.v_head_dim
                    base = (c.num_kv_heads, c.head_dim, v)
                    if isinstance(c, SlidingWindow):
                        found["window", *base, c.sliding_window] += n
                    elif isinstance(c, ChunkedAttention):
                        found["chunk", *base, c.attention_chunk_size] += n
                    else:
                        found["full" if isinstance(c, FullAttention) else "cross", *base] += n
                case Mla():
                    found["mla", c.kv_lora_rank + c.qk_rope_head_dim, 1] += n
                case SlidingMla():
                    found["sliding_mla", c.head_dim, c.sliding_window] += n
                case CompressedAttention():
                    found["mla", c.head_dim, c.compress_ratio] += n
                    found[_compressor(c)] += n
                case Indexer() if c.compress_ratio > 1:
                    size = sum(dtype.bytes_of(row) for row in c.rows())
                    found["indexer", size, c.compress_ratio] += n
                    found[_compressor(c)] += n
                case Indexer():
                    found["indexer", sum(dtype.bytes_of(row) for row in c.rows())] += n
                case SharedKv():
                    pass
                case _:
                    states = c.states()
                    shapes = tuple(s.shape for s in states)
                    dtypes = tuple(s.dtype or model.dtype for s in states)
                    found["state", shapes, dtypes] += n
    return found
