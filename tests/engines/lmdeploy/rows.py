"""Questions that the LMDeploy oracle was asked, and how kvcalc's answers differ."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from tests.engines.compact import read_lines, read_models, unpacked

__all__ = ["LEFT_OUT", "differences", "model", "planned", "reason", "rows"]

HERE = Path(__file__).parent

LEFT_OUT = {
    "object has no attribute 'full_attention_interval'": "LMDeploy 0.18 reads an attribute that"
    " transformers 5.20 has renamed: nothing is sized",
}
"""Part of an error -> why it says nothing of the rules; kvcalc plans for such a model."""


_models = cache(read_models)


@cache
def model(key: str) -> ModelSpec:
    """Return a model that the oracle was asked about."""
    return unpacked(_models(HERE / "models.json")[key], key)


@cache
def rows() -> list[dict[str, Any]]:
    """Return the questions with their answers."""
    return read_lines(HERE / "rows.jsonl")


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for a row."""
    args: dict[str, Any] = {
        "backend": "pytorch",
        "quant_policy": row["policy"],
        "free_memory": row["free"],
        "vocab_size": row.get("vocab", 1),
        "flash_mla": row.get("flash_mla", True),
    }
    deployment = Deployment(
        engine="lmdeploy",
        engine_version="0.18.0",
        dtype=row.get("dtype", "auto"),
        tensor_parallel_size=row["tp"],
        block_size=row["block"],
        max_num_seqs=row.get("batch"),
        max_model_len=8192,
        engine_args=args,
    )
    return plan(model(row["model"]), deployment)


def differences(row: dict[str, Any]) -> list[str]:
    """Return what differs between a row's answer and kvcalc's."""
    try:
        found = planned(row)
    except KvcalcError as error:
        return [] if "error" in row else [f"kvcalc refuses: {error}"]
    if "error" in row:
        return [f"kvcalc does not refuse; LMDeploy: {row['error']}"]
    pool, *states = found.rank.pools
    layers = pool.groups[0].layers
    ours = [
        found.block_size,
        pool.unit_bytes,
        found.capacity().num_blocks,
        pool.reserved_units,
        pool.unit_bytes // layers,
        sum(p.units or 0 for p in states),
        sum(p.total_bytes(p.units or 0) for p in states),
    ]
    said = [] if ours == row["answer"] else [f"LMDeploy {row['answer']}, kvcalc {ours}"]
    for n in (0, 1, 64, 5000):
        wastes = found.wastes(n)
        parts = wastes.used_bytes + sum(wastes.by_name().values())
        if not found.bytes_held(n) == wastes.reserved_bytes == parts:
            said.append(f"wastes do not add up: {wastes}")
    return said


def reason(row: dict[str, Any]) -> str | None:
    """Return why a row is left out; None where it is compared."""
    error = row.get("error", "")
    return next((why for part, why in LEFT_OUT.items() if part in error), None)
