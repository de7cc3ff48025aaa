"""Write mlx-lm's answers in compact form: python -m tests.engines.mlx_lm.record ANSWERS...

ANSWERS are what `oracle.py` wrote (mlx-lm 0.32.2, MLX 0.32.4 on a CPU). `models.json` holds
kvcalc's reading of every model, `rows.jsonl` a line for every question:
  model, prompt, later                 as in oracle.py
  kv_bits, group, start, max_kv_size   what was asked, where it was
  nope, v                              widths of an MLA model's heads in its config
  answer    bytes of each class of caches at their most, added up; bytes of all at the end
  error     the start of a refusal
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kvcalc.core.errors import KvcalcError
from tests.engines.compact import packed, read_lines, write_lines, write_models
from tests.engines.vllm.record import SHARED, read_model

__all__ = ["main"]

HERE = Path(__file__).parent
MODELS, ROWS = HERE / "models.json", HERE / "rows.jsonl"
_ERROR = 100  # characters kept of an error
_ASKED = ("prompt", "later", "kv_bits", "group", "start", "max_kv_size")


def _entry(row: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    key = row["model"]
    if key not in models:
        try:
            models[key] = packed(read_model(key, {}, keep_quantization=False))
        except KvcalcError as error:
            models[key] = {"refused": error.message}
    entry = {"model": key} | {name: row[name] for name in _ASKED if name in row}
    paths = (SHARED / "corpus" / folder / f"{key}.json" for folder in ("configs", "reconstructed"))
    config = json.loads(next(p for p in paths if p.is_file()).read_text(encoding="utf-8"))
    if config.get("model_type") == "deepseek_v2":
        entry |= {"nope": config["qk_nope_head_dim"], "v": config["v_head_dim"]}
    if "error" in row:
        return {**entry, "error": " ".join(row["error"].split())[:_ERROR]}
    return {**entry, "answer": [row["most"], row["bytes"]]}


def main() -> int:
    """Write the files."""
    models: dict[str, Any] = {}
    asked = [row for path in sys.argv[1:] for row in read_lines(Path(path))]
    write_lines(ROWS, [_entry(row, models) for row in asked])
    write_models(MODELS, models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
