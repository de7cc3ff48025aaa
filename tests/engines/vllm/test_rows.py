"""Every question that the real vLLM was asked: groups, blocks, bytes, tokens, refusals equal."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.engines.vllm.rows import differences, rows

LEFT_OUT = {
    "AttributeError: 'GenericConfig' object has no attribute": "the oracle lacks the config class",
    "AttributeError: '_PG' object has no attribute": "the oracle's process group is made up",
    "AttributeError: 'PPMissingLayer' object has no attribute": "the oracle builds on no device",
    "ModuleNotFoundError: No module named 'cutlass'": "not installed where the oracle ran",
    "ValueError: Input device cuda:0 does not match TP device meta": "the oracle has no device",
    "ValueError: Unrecognized configuration class": "the oracle lacks the config class",
    "ValueError: Unknown RoPE scaling type gptj": "transformers reads this old config otherwise",
    "OSError: Can't load image processor": "the oracle has no processor files",
    "RuntimeError: Failed to load the processor": "the oracle has no processor files",
    "contains custom code which must be executed": "the oracle runs no code of a hub",
    "but Transformers does not recognize this architecture": "the oracle lacks the config class",
    "does not have `num_attention_heads` attribute": "transformers reads this config otherwise",
    "SymmetricMemory does not support device type meta": "the oracle builds on no device",
    "is not divisible by 3": "the vocabulary, which kvcalc does not know, cannot be split over 3",
    "Weight output_partition_size": "the weights' own quantisation, which sizes no cache",
    "Input should be a valid integer [type=int_type, input_value=None": "null in an old config",
    "kv_cache_dtype=nvfp4, block_size=None, use_mla=False": "FlashInfer was not installed then",
}
"""Part of an error -> why it says nothing of the engine; kvcalc plans for these models."""


def _reason(row: dict[str, Any]) -> str | None:
    error = row.get("error", "") if "groups" not in row else ""
    return next((reason for part, reason in LEFT_OUT.items() if part in error), None)


def _compared(name: str, version: str) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong = []
    for row in rows(name):
        if not row["version"].startswith(version):
            continue
        found = differences(row)
        if found and _reason(row) is not None:
            counts["left out"] += 1
            continue
        counts["answers"] += len(row.get("answers", []))
        counts["refusals"] += len(row.get("refused", [])) + ("error" in row)
        if found:
            wrong.append(f"{row['model']}, {row['gpu']}, {row['case']}: {'; '.join(found)}")
    return counts, wrong


def test_every_answer_of_the_newest_release() -> None:
    """Sized or refused, each answer of vLLM 0.33 is kvcalc's own."""
    counts, wrong = _compared("rows.jsonl", "0.33")

    assert not wrong
    assert counts["answers"] >= 4283
    assert counts["refusals"] >= 600
    assert counts["left out"] <= 22


def test_every_answer_to_further_questions() -> None:
    """Other cards, dtypes, backends and block sizes than the first questions had."""
    counts, wrong = _compared("more_rows.jsonl", "0.33")

    assert not wrong
    assert counts["answers"] > 3000


@pytest.mark.parametrize("version", ["0.26", "0.19"])
def test_every_answer_of_older_releases(version: str) -> None:
    """What 0.26 and 0.19 gave, by their own rules."""
    counts, wrong = _compared("rows.jsonl", version)

    assert not wrong
    assert counts["answers"] > 200
