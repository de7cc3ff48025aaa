"""Questions that the vLLM oracle was asked, and how kvcalc's answers differ from its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.capacity import longest, start_up_limit, start_up_need
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.engines.compact import read_lines, read_models, unpacked

__all__ = ["card", "differences", "model", "planned", "question", "rows"]

HERE = Path(__file__).parent

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


_models = cache(read_models)


@cache
def model(key: str) -> ModelSpec:
    """Return a model that the oracle was asked about."""
    return unpacked(_models(HERE / "models.json")[key], key.split(" ", maxsplit=1)[0])


@cache
def rows(name: str = "rows.jsonl") -> list[dict[str, Any]]:
    """Return the questions with their answers."""
    return read_lines(HERE / name)


_SETTINGS = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dcp": "decode_context_parallel_size",
}


def question(row: dict[str, Any]) -> tuple[ModelSpec, Deployment]:
    """Return the model and deployment that a row asks about."""
    settings: dict[str, Any] = {}
    for name, value in row["case"].items():
        if name == "speculative_config":
            settings["speculative_method"] = value["method"]
            settings["num_speculative_tokens"] = value["num_speculative_tokens"]
        elif name == "draft_model":
            settings[name] = model(value)
        elif name != "mamba_cache_mode":  # ignored by the engine
            settings[_SETTINGS.get(name, name)] = value
    release = row["version"]
    gpu = card(row["gpu"])
    deployment = Deployment(engine="vllm", engine_version=release, gpu=gpu, **settings)
    return model(row["model"]), deployment


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for a row."""
    return plan(*question(row))


def differences(row: dict[str, Any]) -> list[str]:
    """Return what differs between a row's answer and kvcalc's."""
    refused = "groups" not in row and "needed" not in row
    try:
        found = planned(row)
    except KvcalcError as error:
        return [] if refused else [f"kvcalc refuses: {error}"]
    if refused:
        return [f"kvcalc does not refuse; vLLM: {row['error']}"]
    said = [*_of_plan(row, found)]
    for memory, blocks, tokens, concurrency in row.get("answers", []):
        answer = found.capacity(memory)
        ours = (answer.num_blocks, answer.kv_cache_tokens, answer.max_concurrency, answer.fits)
        if ours != (blocks, tokens, concurrency, True):
            said.append(f"in {memory}: vLLM {blocks, tokens, concurrency}, kvcalc {ours}")
    for memory, needed, there, length in row.get("refused", []):
        told = _refusal(found, memory)
        if told != (needed, there, length):
            said.append(f"in {memory}: vLLM refuses {needed, there, length}, kvcalc {told}")
    return said


def _of_plan(row: dict[str, Any], found: CachePlan) -> list[str]:
    said: list[str] = []

    def same(what: str, theirs: Any, ours: Any) -> None:
        if theirs is not None and theirs != ours:
            said.append(f"{what}: vLLM {theirs}, kvcalc {ours}")

    first, length = found.ranks[0], row["max_model_len"]
    n = first.local(length)
    groups = [
        [g.block_size, g.layers, g.unit_bytes, g.rule.peak(n)]
        for pool in first.pools
        for g in pool.groups
    ]
    same("max_model_len", length, found.max_model_len)
    same("groups", row.get("groups"), sorted(groups))
    same("bytes of a block", row.get("block"), first.pools[0].unit_bytes)
    widths = [rank.pools[0].unit_bytes if rank.pools else 0 for rank in found.ranks]
    same("bytes of the stages' blocks", row.get("stages"), widths)
    blocks = sum(g.rule.peak(n) for g in first.groups())
    same("needed bytes", row.get("needed"), blocks * _whole_model_block(found))
    same("reuse", row.get("reuse"), found.reuse_tokens)
    wastes = found.wastes_at_admission(length)
    parts = wastes.used_bytes + sum(wastes.by_name().values())
    if not found.bytes_needed(length) == wastes.reserved_bytes == parts:
        said.append(f"wastes do not add up: {wastes}")
    return said


def _whole_model_block(found: CachePlan) -> int:
    """Return the widest group's bytes over all stages: the oracle sizes requests before cutting."""
    groups: dict[int, int] = {}
    for rank in found.ranks:
        for pool in rank.pools:
            for i, group in enumerate(pool.groups):
                groups[i] = groups.get(i, 0) + group.unit_bytes
    return max(groups.values())


def _refusal(found: CachePlan, memory: int) -> tuple[float, float, int] | None:
    """Return GiB needed and there and the length that fits, of the first rank that refuses."""
    length = found.max_model_len
    for rank in found.ranks:
        fits = longest(found, rank, memory, length)
        if rank.pools and fits < length:
            needed, there = start_up_need(found, rank, length), start_up_limit(found, rank, memory)
            return (round(needed / 2**30, 2), round(there / 2**30, 2), fits)
    return None
