"""Write the oracle's answers in compact form: python -m tests.engines.lmdeploy.record.

`models.json` holds kvcalc's reading of every model, `rows.jsonl` a line for every row of the shared
results:
  model, tp, policy, dtype, free, vocab   what was asked
  block, batch, flash_mla                 what was asked, where it was
  answer    tokens a block, bytes of a block, blocks, of which reserved, bytes of one layer's
            tensors (rounded up), slots of states, bytes of all of them
  error     the start of a refusal
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvcalc.core.errors import KvcalcError
from tests.engines.compact import packed, read_lines, write_lines, write_models
from tests.engines.vllm.record import read_model

__all__ = ["main", "shared_rows"]

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared"
MODELS, ROWS = HERE / "models.json", HERE / "rows.jsonl"
_ERROR = 160  # characters kept of an error


def _entry(row: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    key = row["model"]
    if key not in models:
        try:
            models[key] = packed(read_model(key, {}, keep_quantization=False))
        except KvcalcError as error:
            models[key] = {"refused": error.message}
    entry: dict[str, Any] = {
        "model": key,
        "tp": row["tp"],
        "policy": row["quant_policy"],
        "block": row["block_size_requested"],
        "free": row["free_bytes"],
    }
    if row["max_batch_size_requested"] is not None:
        entry["batch"] = row["max_batch_size_requested"]
    if not row["flash_mla"]:
        entry["flash_mla"] = False
    if "error" in row:
        return {**entry, "error": " ".join(row["error"].split())[:_ERROR]}
    entry |= {"dtype": row["model_dtype"], "vocab": row["vocab_size"]}
    assert row["block_size"] == row["kernel_block_size"]
    return {
        **entry,
        "answer": [
            row["block_size"],
            row["block_bytes"],
            row["num_gpu_blocks"],
            row["num_reserved_gpu_blocks"],
            sum(t["aligned_bytes"] for t in row["tensors"]),
            row["num_state_slots"],
            row["state_bytes_total"],
        ],
    }


def shared_rows(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shared answers in compact form; their models are added to `models`."""
    path = SHARED / "oracle" / "lmdeploy_results.jsonl"
    return [_entry(row, models) for row in read_lines(path)]


def main() -> int:
    """Write the files."""
    models: dict[str, Any] = {}
    write_lines(ROWS, shared_rows(models))
    write_models(MODELS, models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
