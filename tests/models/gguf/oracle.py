"""What llama.cpp keeps by layer, next to what the model read from the same keys keeps.

Rules of the engine that are no property of the model stand here, each with its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from kvcalc.core.attention import CompressedAttention, FullAttention, Indexer, SharedKv, SlidingMla
from kvcalc.core.dtypes import element_bytes, kv_dtype
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.states import LLAMA_CPP_STATES
from kvcalc.models.gguf import GgufModel

_POOLS = {
    "kv": "base",
    "attn": "base",
    "mla": "base",
    "dsa.mla": "base",
    "attnbase": "base",
    "raw.base": "base",
    "attnswa": "swa",
    "raw.swa": "swa",
    "dsa.indexer": "indexer",
}
"""llama.cpp's names of caches -> one name for each thing that a layer can keep."""

_ROLLBACK = (
    "qwen35 qwen35moe qwen4exp nemotron_h nemotron_h_moe lfm2 lfm2moe deepseek4 kimi-k3 glm5-next"
    " bailingmoe3"
)
"""Architectures whose states llama.cpp keeps `n_rs_seq` more times (llm_arch_supports_rs_rollback);
a setting of the context, no property of the model."""


def layers(runs: tuple[LayerRun, ...]) -> Iterator[LayerRun]:
    """Yield each layer."""
    for run in runs:
        for _ in range(run.count):
            yield run


def _pool(cache: Cache) -> str:
    match cache:
        case Indexer(compress_ratio=ratio):
            return "indexer" if ratio == 1 else "lid"
        case CompressedAttention(compress_ratio=ratio):
            return "csa" if ratio == 4 else "hca"
        case SlidingMla():
            return "swa"
    return "swa" if cache.kind in ("sliding_window", "chunked_attention") else "base"


def in_context(model: GgufModel, ctx: dict[str, Any]) -> dict[int, LayerRun]:
    """Return the layers that a context of llama.cpp keeps: drafts apart, or drafts alone."""
    main = list(layers(model.spec.layers))
    drafts = list(layers(model.spec.draft_layers))
    numbered = dict(enumerate(main + drafts))
    if ctx.get("ctx_type") == "mtp":
        # create_memory filters the layers of an MTP context, but not in every architecture.
        unfiltered = model.draft_layers_in_main and model.spec.architecture != "bailingmoe3"
        return {i: run for i, run in numbered.items() if i >= len(main) or unfiltered}
    return {i: run for i, run in numbered.items() if i < len(main) or model.draft_layers_in_main}


def _widest_v(model: GgufModel) -> int:
    """Return the widest V row of all layers, in elements."""
    runs = (*model.spec.layers, *model.spec.draft_layers)
    rows = (row for run in runs for cache in run.caches for row in cache.rows())
    return max(row.width * row.count for row in rows if row.role == "v")


def compare(row: dict[str, Any], model: GgufModel) -> list[str]:
    """Return where an oracle row and the model differ: layer by layer and in bytes."""
    ctx = row["ctx"]
    type_k, type_v = ctx.get("type_k", "f16"), ctx.get("type_v", "f16")
    ids: dict[str, list[int]] = defaultdict(list)
    k: dict[str, int] = defaultdict(int)
    v: dict[str, int] = defaultdict(int)
    states: dict[str, int] = defaultdict(int)
    kept = in_context(model, ctx)
    for i, run in kept.items():
        for kept_cache in run.caches:
            cache = kept_cache
            for tensor in cache.states():
                states[tensor.role] += LLAMA_CPP_STATES.bytes_of(tensor, model.spec.dtype)
            if isinstance(cache, Indexer):  # in the cache type of K, whatever the model's reference
                cache = msgspec.structs.replace(cache, index_dtype=type_k)
            if not cache.rows():
                continue
            pool = _pool(cache)
            ids[pool].append(i)
            # K and V must be of one type for latents; the oracle refuses others.
            dtype = kv_dtype(f"{type_k}:{type_v}" if len(cache.rows()) > 1 else type_k, "float16")
            if cache.kind in ("mla", "sliding_mla", "compressed_attention"):
                dtype = kv_dtype(type_k, "float16")
            for part in cache.rows():
                (v if part.role == "v" else k)[pool] += dtype.bytes_of(part)
            if isinstance(cache, Indexer) and row["arch"] == "minimax-m3":
                # llama_kv_cache_msa gives the indexer's cache a V of value_length that is not used.
                full = next(c for c in run.caches if isinstance(c, FullAttention))
                v[pool] += kv_dtype(type_v, "float16").v.row_bytes(full.rows()[1])
    faults = []
    for cache_row in row["caches"]:
        if cache_row["kind"] == "recurrent":
            faults += _compare_states(row, cache_row, states)
            continue
        pool = _POOLS.get(cache_row["cache"], cache_row["cache"])
        expected = cache_row["layers"]
        # A layer without KV heads is listed by llama.cpp, with rows of no bytes.
        empty = [i for i in expected if i in kept and not kept[i].caches and kept[i].note]
        if [i for i in expected if i not in empty] != ids[pool]:
            faults.append(f"{pool}: layers {expected} != {ids[pool]}")
        units = cache_row["cells"] * cache_row["streams"]
        width = v[pool]
        if ctx.get("flash_attn") == "off" and width:
            # [TAG_V_CACHE_VARIABLE]: without flash attention V is as wide as the widest layer's.
            width = element_bytes(type_v) * _widest_v(model) * len(expected)
        if (cache_row["k_bytes"], cache_row["v_bytes"]) != (units * k[pool], units * width):
            faults.append(
                f"{pool}: K and V {cache_row['k_bytes']}, {cache_row['v_bytes']} !="
                f" {units * k[pool]}, {units * width}"
            )
    listed = {_POOLS.get(c["cache"], c["cache"]) for c in row["caches"]}
    faults += [f"{pool}: not in llama.cpp" for pool in ids if pool not in listed]
    copies = _copies(row)
    if row["other_bytes"] != copies * states["compressor"]:
        faults.append(f"compressors: {row['other_bytes']} != {copies * states['compressor']}")
    return faults


def _copies(row: dict[str, Any]) -> int:
    snapshots = row["ctx"].get("n_rs_seq", 0) if row["arch"] in _ROLLBACK.split() else 0
    return int(row["n_seq_max"]) * (1 + int(snapshots))


def _compare_states(
    row: dict[str, Any], cache: dict[str, Any], states: dict[str, int]
) -> list[str]:
    if row["ctx"].get("ctx_type") == "mtp" and not cache["r_bytes"] and not cache["s_bytes"]:
        return []
    copies = _copies(row)
    conv = copies * (states["conv"] + states["shift"])
    found = cache["r_bytes"] + cache["p_bytes"], cache["s_bytes"]
    if found == (conv, copies * states["recurrent"]):
        return []
    return [f"states: {found} != {conv}, {copies * states['recurrent']}"]


def shares(model: GgufModel) -> list[int | None]:
    """Return the layers that sharing layers read."""
    runs = layers(model.spec.layers)
    return [c.source_layer for run in runs for c in run.caches if isinstance(c, SharedKv)]
