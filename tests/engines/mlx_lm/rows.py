"""Questions that mlx-lm was asked, and how kvcalc's answers differ."""

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
    "missing": "mlx-lm cannot read the config as published: its arguments have no defaults",
    "'NoneType' object is not sub": "the config has a number where mlx-lm expects a list",
}
"""Part of an error -> why it says nothing of the rules."""

_models = cache(read_models)


@cache
def model(key: str) -> ModelSpec:
    """Return a model that mlx-lm was asked about."""
    return unpacked(_models(HERE / "models.json")[key], key)


@cache
def rows() -> list[dict[str, Any]]:
    """Return the questions with their answers."""
    return read_lines(HERE / "rows.jsonl")


_NAMES = {
    "kv_bits": "kv_bits",
    "group": "kv_group_size",
    "start": "quantized_kv_start",
    "max_kv_size": "max_kv_size",
    "nope": "qk_nope_head_dim",
    "v": "v_head_dim",
}


def planned(row: dict[str, Any]) -> CachePlan:
    """Return kvcalc's plan for a row."""
    args = {name: row[key] for key, name in _NAMES.items() if key in row}
    args["prompt_tokens"] = row["prompt"]
    return plan(
        model(row["model"]),
        Deployment(engine="mlx-lm", max_model_len=row["prompt"] + row["later"], engine_args=args),
    )


def differences(row: dict[str, Any]) -> list[str]:
    """Return what differs between a row's answer and kvcalc's."""
    try:
        found = planned(row)
    except KvcalcError as error:
        return [] if "error" in row else [f"kvcalc refuses: {error}"]
    if "error" in row:
        return [f"kvcalc does not refuse; mlx-lm: {row['error']}"]
    n = row["prompt"] + row["later"]
    most, held = row["answer"]
    said = []
    if found.bytes_held(n) != held:
        said.append(f"mlx-lm holds {held}, kvcalc {found.bytes_held(n)}")
    if found.bytes_needed(n) != most:
        said.append(f"mlx-lm needs {most}, kvcalc {found.bytes_needed(n)}")
    for length in (0, 1, 255, 256, 257, n):
        wastes = found.wastes(length)
        parts = wastes.used_bytes + sum(wastes.by_name().values())
        if not found.bytes_held(length) == wastes.reserved_bytes == parts:
            said.append(f"wastes do not add up: {wastes}")
    return said


def reason(row: dict[str, Any]) -> str | None:
    """Return why a row is left out; None where it is compared."""
    error = row.get("error", "")
    return next((why for part, why in LEFT_OUT.items() if part in error), None)
