"""Pools that SGLang's own classes built, and how kvcalc's differ from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.attention import FullAttention, Indexer, Mla, SlidingWindow
from kvcalc.core.capacity import PoolCapacity
from kvcalc.core.deployment import Deployment
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines import plan
from kvcalc.engines.sglang.requests import table_host_bytes
from kvcalc.engines.sglang.start_up import pool_sizes
from tests.engines.compact import read_lines

__all__ = ["PLENTY", "differences", "planned", "rows"]

HERE = Path(__file__).parent
PLENTY = 2**50
"""A budget that the settings, and not the memory, bound."""

_DTYPES = {
    "torch.bfloat16": "bfloat16",
    "torch.float8_e4m3fn": "fp8_e4m3",
    "torch.float32": "float32",
}
_WINDOW = 128
_SMALL_MAX = 512


@cache
def rows() -> list[dict[str, Any]]:
    """Return the pools."""
    return read_lines(HERE / "rows.jsonl")


def _model(name: str, *runs: LayerRun, architecture: str = "LlamaForCausalLM") -> ModelSpec:
    return ModelSpec(
        name=name,
        architecture=architecture,
        dtype="bfloat16",
        num_hidden_layers=sum(run.count for run in runs),
        layers=runs,
        max_position_embeddings=_SMALL_MAX,
    )


def _heads(told: dict[str, str]) -> dict[str, int]:
    return {"num_kv_heads": int(told["head_num"]), "head_dim": int(told["head_dim"])}


def _spec(row: dict[str, Any]) -> ModelSpec:
    told, name = row["built_with"], row["name"]
    match row["pool"]:
        case "SWAKVPool":
            full = FullAttention(**_heads(told))
            window = SlidingWindow(**_heads(told), sliding_window=_WINDOW)
            return _model(
                name,
                LayerRun(count=told["full_attention_layer_ids"], caches=(full,)),
                LayerRun(count=told["swa_attention_layer_ids"], caches=(window,)),
                architecture="GptOssForCausalLM",
            )
        case "MambaPool":
            state = GatedDeltaNet(
                num_k_heads=16,
                num_v_heads=32,
                head_k_dim=128,
                head_v_dim=128,
                conv_kernel=4,
                state_dtype=_DTYPES[told["ssm_dtype"]],
            )
            attention = FullAttention(num_kv_heads=2, head_dim=256)
            return _model(
                name,
                LayerRun(count=told["layers"], caches=(state,)),
                LayerRun(count=12, caches=(attention,)),
                architecture="Qwen3NextForCausalLM",
            )
        case "ReqToTokenPool":
            one = FullAttention(num_kv_heads=8, head_dim=128)
            return _model(name, LayerRun(count=32, caches=(one,)))
        case "MHATokenToKVPool":
            v = int(told["v_head_dim"]) if "v_head_dim" in told else None
            heads = FullAttention(**_heads(told), v_head_dim=v)
            return _model(name, LayerRun(count=int(told["layer_num"]), caches=(heads,)))
    latent = Mla(
        kv_lora_rank=int(told["kv_lora_rank"]), qk_rope_head_dim=int(told["qk_rope_head_dim"])
    )
    caches = (latent, Indexer(index_head_dim=128)) if "DSA" in row["pool"] else (latent,)
    return _model(name, LayerRun(count=int(told["layer_num"]), caches=caches))


def _deployment(row: dict[str, Any], model: ModelSpec) -> Deployment:
    told, args = row["built_with"], {}
    settings: dict[str, Any] = {"max_model_len": _SMALL_MAX}
    match row["pool"]:
        case "MambaPool":
            args["max_mamba_cache_size"] = told["slots"]
            if "speculative_num_draft_tokens" in told:
                # As many requests as slots: no prefix is kept.
                settings |= {
                    "num_speculative_tokens": int(told["speculative_num_draft_tokens"]) - 1,
                    "draft_model": _model("draft", model.layers[-1]),
                    "enable_prefix_caching": False,
                    "max_num_seqs": told["slots"],
                }
        case "ReqToTokenPool":
            settings = {
                "max_model_len": int(told["max_context_len"]) - 4,
                "max_num_seqs": int(told["size"]),
            }
        case _:
            args["max_total_tokens"] = int(told["size"])
            settings["block_size"] = int(told["page_size"])
            fp4 = row["pool"].endswith("FP4")
            settings["kv_cache_dtype"] = "fp4_mx_block16" if fp4 else _DTYPES[told["dtype"]]
    return Deployment(engine="sglang", engine_version=row["version"], engine_args=args, **settings)


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for the model and settings that give such a pool."""
    model = _spec(row)
    return plan(model, _deployment(row, model))


def differences(row: dict[str, Any]) -> list[str]:
    """Return what differs between a pool and kvcalc's."""
    found = planned(row)
    if row["pool"] == "ReqToTokenPool":
        ours = {
            "req_to_token": found.rank.outside_bytes,
            "req_generation": table_host_bytes(int(row["built_with"]["size"])),
        }
        return [] if ours == row["held"] else [f"SGLang {row['held']}, kvcalc {ours}"]
    capacity = found.capacity(PLENTY)
    pools = {pool.name: pool for pool in capacity.pools}
    wanted = {
        "SWAKVPool": ("tokens", "window tokens"),
        "MambaPool": ("states", "proposed states"),
    }.get(row["pool"], ("tokens",))
    kept = [pools[name] for name in wanted if name in pools]
    said = []
    total = sum(pool.total_bytes for pool in kept)
    if total != row["bytes"]:
        said.append(f"bytes: SGLang {row['bytes']}, kvcalc {total}")
    ours = _by_attribute(found, kept)
    for name, size in _merged(row["held"]).items():
        if ours.get(name) != size:
            said.append(f"{name}: SGLang {size}, kvcalc {ours.get(name)}")
    return said


def _merged(held: dict[str, int]) -> dict[str, int]:
    """Attributes as kvcalc tells them apart: rows with their scales, proposed states together."""
    merged: dict[str, int] = {}
    for name, size in held.items():
        key = {"kv_scale_buffer": "kv_buffer"}.get(name, name)
        if name.startswith("intermediate"):
            key = "intermediate"
        merged[key] = merged.get(key, 0) + size
    return merged


def _by_attribute(found: CachePlan, kept: list[PoolCapacity]) -> dict[str, int]:
    pools = {pool.name: pool for pool in found.rank.pools}
    ours: dict[str, int] = {}
    for made in kept:
        pool = pools[made.name]
        sizes = pool_sizes(pool, made.units)
        part = ""
        if len(pools) > 1 and made.name in ("tokens", "window tokens"):
            part = "full." if made.name == "tokens" else "swa."
        names = {
            "k": f"{part}k_buffer",
            "v": f"{part}v_buffer",
            "latent": "kv_buffer",
            "rope": "kv_buffer",
            "index": "index_k_with_scale_buffer",
            "conv": "conv",
            "recurrent": "temporal",
        }
        for role, size in sizes.items():
            ours[names[role]] = ours.get(names[role], 0) + size
        if made.name == "proposed states":
            ours["intermediate"] = made.total_bytes
    return ours
