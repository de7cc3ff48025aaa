"""Rows of the vLLM oracle: the deployment that each asks about, and what kvcalc answers."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.core.capacity import longest, pool_units
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan, Rank
from kvcalc.engines import plan
from kvcalc.models.hf_config import read_config

SHARED = Path(__file__).parents[4] / "shared"

_CARDS = {
    "h100": ("h100-80gb", 85_520_809_984, "9.0"),
    "h200": ("h200", 150_754_820_096, "9.0"),
    "a100": ("a100-80gb", 85_095_874_560, "8.0"),
    "l40s": ("l40s", 47_810_936_832, "8.9"),
    "t4": ("t4", 15_655_829_504, "7.5"),
    "b200": ("b200", 191_495_143_424, "10.0"),
    "rtxpro6000": ("rtx-pro-6000", 101_970_870_272, "12.0"),
}
"""The made-up devices of the oracle: name, memory, compute capability."""


def card(name: str) -> GpuSpec:
    """Return a card as the oracle pretends it."""
    ours, memory, capability = _CARDS[name]
    return GpuSpec(name=ours, title=ours, memory_bytes=memory, compute_capability=capability)


@cache
def config_text(model: str) -> str:
    """Return a config of the corpus."""
    for folder in ("configs", "reconstructed"):
        path = SHARED / "corpus" / folder / f"{model}.json"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError(model)


@cache
def model(name: str, patch: str = "{}", keep_quantization: bool = False) -> ModelSpec:
    """Return kvcalc's reading of a config; `patch` lays keys over it, null removes one."""
    values = json.loads(config_text(name))
    for key, value in json.loads(patch).items():
        values[key] = value
        if value is None:
            del values[key]
    if not keep_quantization:
        for part in (values, *(v for v in values.values() if isinstance(v, dict))):
            part.pop("quantization_config", None)
            part.pop("compression_config", None)
    return read_config(values, f"{name}.json", name)


_SETTINGS = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dcp": "decode_context_parallel_size",
}
_SAME = (
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "enable_prefix_caching",
    "max_num_batched_tokens",
    "max_num_seqs",
    "async_scheduling",
    "disable_hybrid_kv_cache_manager",
    "num_gpu_blocks_override",
    "dtype",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
    "attention_backend",
)


def question(row: dict[str, Any]) -> tuple[ModelSpec, Deployment]:
    """Return the model and deployment that a row asks about."""
    case = row["case"]
    settings: dict[str, Any] = {
        ours: case[theirs] for theirs, ours in _SETTINGS.items() if theirs in case
    }
    settings |= {name: case[name] for name in _SAME if case.get(name) is not None}
    speculation = case.get("speculative_config")
    if speculation:
        settings["speculative_method"] = speculation["method"]
        settings["num_speculative_tokens"] = speculation["num_speculative_tokens"]
    if "draft_config" in case:
        settings["draft_model"] = read_config(case["draft_config"], "draft_config", "draft")
    spec = model(
        row["model"],
        json.dumps(case.get("config_patch", {})),
        bool(case.get("keep_quantization_config")),
    )
    deployment = Deployment(
        engine="vllm", engine_version=row.get("vllm_version"), gpu=card(row["gpu"]), **settings
    )
    return spec, deployment


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for a row."""
    return plan(*question(row))


def whole_model_bytes_per_block(found: CachePlan) -> int:
    """Return the widest group's bytes over all stages: what the oracle sizes before projection."""
    groups: dict[int, int] = {}
    for rank in found.ranks:
        for pool in rank.pools:
            for i, group in enumerate(pool.groups):
                groups[i] = groups.get(i, 0) + group.unit_bytes
    return max(groups.values())


def _group_key(group: dict[str, Any]) -> tuple[int, int, int, int]:
    width = group["page_size_bytes"]
    if not group["spec"].startswith("Uniform"):
        width *= group["num_layers"]
    return (group["block_size"], group["num_layers"], width, group["blocks_per_max_len_request"])


def differences(row: dict[str, Any]) -> list[str]:
    """Compare a row's answer with kvcalc's; return what differs, an empty list where nothing does."""
    groups = row.get("groups")
    try:
        found = planned(row)
    except KvcalcError as error:
        if groups:
            return [f"refused: {error}"]
        return []
    if not groups:
        return [f"not refused; vLLM: {row['error'][:300]}"]
    said: list[str] = []

    def same(what: str, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            said.append(f"{what}: vLLM {theirs}, kvcalc {ours}")

    length = row["max_model_len"]
    pp = row.get("pp", 1)
    sized = "num_blocks" in row
    same("max_model_len", length, found.max_model_len)
    first = found.ranks[0]
    budget = row["available_bytes"]
    if pp == 1 or sized:
        ours = sorted(
            (g.block_size, g.layers, g.unit_bytes, g.rule.peak(first.local(length)))
            for pool in first.pools
            for g in pool.groups
        )
        same("groups", sorted(map(_group_key, groups)), ours)
    if sized or pp == 1:
        same("bytes_per_block", row["bytes_per_block_total"], first.pools[0].unit_bytes)
    if "bytes_per_block_total_per_pp_rank" in row:
        same(
            "bytes_per_block of stages",
            row["bytes_per_block_total_per_pp_rank"],
            [r.pools[0].unit_bytes if r.pools else 0 for r in found.ranks],
        )
    blocks = sum(g.rule.peak(first.local(length)) for g in first.pools[0].groups)
    if row.get("needed_bytes_one_request") is not None:
        same(
            "needed_bytes",
            row["needed_bytes_one_request"],
            blocks * whole_model_bytes_per_block(found),
        )
    answer = found.capacity(budget)
    if sized:
        same("num_blocks", row["num_blocks"], answer.num_blocks)
        same("tokens", row["token_capacity"], answer.kv_cache_tokens)
        same("concurrency", row["max_concurrency"], answer.max_concurrency)
        if not answer.fits:
            said.append("vLLM starts, kvcalc says that it does not fit")
        if row.get("enable_prefix_caching") and "scheduler_block_size" in row:
            same("reuse", row["scheduler_block_size"], found.reuse_tokens)
    else:
        said.extend(refusal_differences(row["error"], found, budget))
    wastes = found.wastes_at_admission(length)
    same("wastes of one request", found.bytes_needed(length), wastes.reserved_bytes)
    return said


def refusal_differences(error: str, found: CachePlan, budget: int) -> list[str]:
    """Compare the engine's refusal: gibibytes needed and there, and the length that would fit."""
    match = re.search(
        r"\((\d+)\), \(?([\d.]+) GiB KV cache is needed, .*?memory \(([\d.]+) GiB\)", error
    )
    suggested = re.search(r"estimated maximum model length is (\d+)", error)
    if match is None:
        return [f"a refusal of another kind: {error[:200]}"]
    said = []
    refusing = first_refusing(found, budget)
    if refusing is None:
        return [f"vLLM refuses, kvcalc says that it fits: {error[:200]}"]
    needed, available, length = refusing
    if (float(match[2]), float(match[3])) != (
        round(needed / 2**30, 2),
        round(available / 2**30, 2),
    ):
        said.append(f"refusal: vLLM {match[2]} of {match[3]} GiB, kvcalc {needed} of {available}")
    if (int(suggested[1]) if suggested else 0) != length:
        said.append(f"suggested length: vLLM {suggested and suggested[1]}, kvcalc {length}")
    return said


def first_refusing(found: CachePlan, budget: int) -> tuple[int, int, int] | None:
    """Return needed and available bytes and the length that fits of the first rank that refuses."""
    length = found.max_model_len
    for rank in found.ranks:
        if rank.pools and not _starts(found, rank, budget, length):
            pool = rank.pools[0]
            available = pool.units * pool.unit_bytes if pool.units else budget
            if found.check_spares_reserved:
                available -= pool.unit_bytes
            return rank.bytes_needed(length), available, longest(found, rank, budget, length)
    return None


def _starts(found: CachePlan, rank: Rank, budget: int, length: int) -> bool:
    return longest(found, rank, budget, length) == length


def rows(path: Path | None = None) -> list[dict[str, Any]]:
    """Return the rows of the oracle."""
    path = path or SHARED / "oracle" / "vllm_results.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


_ = (pool_units, msgspec)
