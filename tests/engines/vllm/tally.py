"""How many of the oracle's answers kvcalc gives, by release and card, and what is left out."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines.tally import Compared, Tally, tallied
from tests.engines.vllm.rows import differences, rows

__all__ = ["FILES", "LEFT_OUT", "tallies"]

FILES = ("rows.jsonl", "more_rows.jsonl")
"""The shared questions, and further ones: other cards, dtypes, backends and block sizes."""

LEFT_OUT = {
    "AttributeError: 'GenericConfig' object has no attribute": "the oracle lacks the config class",
    "AttributeError: '_PG' object has no attribute": "the oracle's process group is made up",
    "AttributeError: 'PPMissingLayer' object has no attribute": "the oracle builds on no device",
    "ModuleNotFoundError: No module named 'cutlass'": "not installed where the oracle ran",
    "ValueError: Input device cuda:0 does not match TP device meta": "the oracle has no device",
    "SymmetricMemory does not support device type meta": "the oracle builds on no device",
    "ValueError: Unrecognized configuration class": "the oracle lacks the config class",
    "ValueError: Unknown RoPE scaling type gptj": "transformers reads this old config otherwise",
    "OSError: Can't load image processor": "the oracle has no processor files",
    "RuntimeError: Failed to load the processor": "the oracle has no processor files",
    "contains custom code which must be executed": "the oracle runs no code of a hub",
    "but Transformers does not recognize this architecture": "the oracle lacks the config class",
    "does not have `num_attention_heads` attribute": "transformers reads this config otherwise",
    "is not divisible by 3": "the vocabulary, which kvcalc does not know, cannot be split over 3",
    "Weight output_partition_size": "the weights' own quantisation, which sizes no cache",
    "Input should be a valid integer [type=int_type, input_value=None": "null in an old config",
    "kv_cache_dtype=nvfp4, block_size=None, use_mla=False": "FlashInfer was not installed then",
}
"""Part of an error -> why it says nothing of the engine; kvcalc plans for these models."""


@cache
def tallies(name: str) -> dict[tuple[str, str], Tally]:
    """Return a tally for every (release, card) of a file of questions."""
    asked: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows(name):
        asked.setdefault((row["version"], row["gpu"]), []).append(row)
    return {key: tallied(map(_compared, listed)) for key, listed in asked.items()}


def _compared(row: dict[str, Any]) -> Compared:
    """Compare a model under settings, which was asked with several memories."""
    found = differences(row)
    answers, refusals = len(row.get("answers", [])), len(row.get("refused", []))
    name = f"{row['model']}, {row['gpu']}, {row['case']}"
    why = _reason(row) if found else None
    return Compared(name, found, answers, refusals + ("error" in row), why)


def _reason(row: dict[str, Any]) -> str | None:
    error = row.get("error", "") if "groups" not in row else ""
    return next((reason for part, reason in LEFT_OUT.items() if part in error), None)
