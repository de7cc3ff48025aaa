"""Questions that the transformers oracle was asked, and how kvcalc's answers differ."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.engines.transformers import tensor_bytes
from tests.engines.compact import read_lines, read_models, unpacked

__all__ = ["differences", "model", "planned", "rows"]

HERE = Path(__file__).parent


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
    args = row.get("args", {})
    longest = None if "max_cache_len" in args else 1 << 20
    deployment = Deployment(
        engine="transformers",
        engine_version="5.24.0",
        dtype=row["dtype"],
        max_model_len=longest,
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
        return [f"kvcalc does not refuse; transformers: {row['error']}"]
    said = []
    n, after_prefill = row["tokens"], row["step"] == "prefill"
    ours = found.bytes_needed(n) if after_prefill else found.bytes_held(n)
    counters = found.rank.fixed_bytes
    if "storage" in row:
        # One of MiniMax-M3's counters goes by a name that the oracle takes for a tensor of rows.
        theirs = row["storage"] + row.get("counters", 0)
        if theirs != ours + counters:
            said.append(f"held: transformers {theirs}, kvcalc {ours} + {counters}")
    visible = tensor_bytes(found, n)
    theirs = row["bytes"] + row.get("counters", 0)
    if theirs != visible + (counters if "storage" in row else 0):
        said.append(f"tensors: transformers {theirs}, kvcalc {visible} + {counters}")
    for wastes, held in (
        (found.wastes(n), found.bytes_held(n)),
        (found.wastes_at_admission(n), found.bytes_needed(n)),
    ):
        parts = wastes.used_bytes + sum(wastes.by_name().values())
        if not held == wastes.reserved_bytes == parts:
            said.append(f"wastes do not add up: {wastes}")
    return said
