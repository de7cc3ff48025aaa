"""Questions that llama.cpp was asked, and how kvcalc's answers differ from its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Pool
from kvcalc.engines import plan
from tests.engines.compact import read_lines, read_models, unpacked

__all__ = ["deployment", "differences", "model", "planned", "pools_of", "rows"]

HERE = Path(__file__).parent

_SETTINGS = {
    "n_ctx": "ctx_size",
    "n_seq_max": "parallel",
    "n_batch": "batch_size",
    "n_ubatch": "ubatch_size",
    "n_rs_seq": "rs_seq",
    "type_k": "cache_type_k",
    "type_v": "cache_type_v",
}
_LIBRARY = {"parallel": 1, "kv_unified": False, "fit": False}
"""Defaults of the library, which the oracle asked; those of the server are others."""

_POOLS = {
    "attn": "kv",
    "base": "kv",
    "mla": "kv",
    "dsa.mla": "kv",
    "attnbase": "kv",
    "raw.base": "kv",
    "attnswa": "swa",
    "raw.swa": "swa",
    "dsa.indexer": "indexer",
}
"""llama.cpp's names of caches -> kvcalc's, where they differ."""


_models = cache(read_models)


@cache
def model(key: str, file: str = "models.json") -> ModelSpec:
    """Return a model that llama.cpp was asked about."""
    return unpacked(_models(HERE / file)[key], key)


@cache
def rows(name: str = "rows.jsonl") -> list[dict[str, Any]]:
    """Return the questions with their answers."""
    return read_lines(HERE / name)


def deployment(ctx: dict[str, Any], **settings: Any) -> Deployment:
    """Return the deployment of a library's context."""
    if ctx.get("ctx_type") == "mtp":
        settings["speculative_method"] = "mtp"
        types = {f"cache_{name}_draft": ctx[name] for name in ("type_k", "type_v") if name in ctx}
        ctx = {**ctx, **types}
    args = {_SETTINGS.get(name, name): value for name, value in ctx.items() if name != "ctx_type"}
    return Deployment(engine="llama.cpp", engine_args={**_LIBRARY, **args}, **settings)


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for a row."""
    return plan(model(row["model"]), deployment(row["ctx"]))


def pools_of(found: CachePlan, ctx: dict[str, Any]) -> dict[str, Pool]:
    """Return the pools of the context that was asked for: the model's own, or the drafts'."""
    pools = found.rank.pools
    if ctx.get("ctx_type") != "mtp":
        return {pool.name: pool for pool in pools}
    return {p.name.removeprefix("mtp "): p for p in pools if p.name.startswith("mtp ")}


def sizes(pools: dict[str, Pool]) -> dict[str, tuple[int, ...]]:
    """Return what a plan's pools are in llama.cpp's figures: cells, K and V, or R and S."""
    found: dict[str, tuple[int, ...]] = {}
    for name, pool in pools.items():
        payload, units = pool.groups[0].payload, pool.units or 0
        if name == "state":
            moved = payload.get("conv", 0) + payload.get("shift", 0)
            found[name] = (units * moved, units * payload.get("recurrent", 0))
            found["compressor"] = (units * payload.get("compressor", 0),)
        else:
            k = sum(size for role, size in payload.items() if role != "v")
            found[name] = (units, units * k, units * (pool.unit_bytes - k))
    return found


def compare(caches: list[list[Any]], pools: dict[str, Pool]) -> list[str]:
    """Return where caches and pools differ."""
    found, told, expected = sizes(pools), [], set()
    for name, *listed in caches:
        ours, figures = _POOLS.get(name, name), listed
        if name not in ("state", "compressor"):
            cells, streams, k, v = listed
            figures = [cells * streams, k, v] if k + v else []
        if any(figures):
            expected.add(ours)
            if found.get(ours) != tuple(figures):
                told.append(f"{name}: llama.cpp {figures}, kvcalc {found.get(ours)}")
    told += [f"{n}: not in llama.cpp" for n in found if any(found[n]) and n not in expected]
    return told


def differences(row: dict[str, Any]) -> list[str]:
    """Return what differs between a row's answer and kvcalc's."""
    refused = row.get("refused", False)
    try:
        found = planned(row)
    except KvcalcError as error:
        return [] if refused else [f"kvcalc refuses: {error}"]
    if refused:
        return ["kvcalc does not refuse"]
    pools = pools_of(found, row["ctx"])
    said = compare(row["caches"], pools)
    total = sum(pool.total_bytes(pool.units or 0) for pool in pools.values())
    if (total, found.max_model_len) != (row["total"], row["n_ctx"][1]):
        said.append(f"in all: {row['total'], row['n_ctx'][1]}, kvcalc {total, found.max_model_len}")
    if "kv" in pools and pools["kv"].units != row["n_ctx"][0]:
        said.append(f"cells: {row['n_ctx'][0]}, kvcalc {pools['kv'].units}")
    return said
