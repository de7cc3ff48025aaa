"""Write further compute buffers: python -m tests.engines.llamacpp.record_compute FILE...

The files are answers of the shared oracle script to shapes of many architectures and to published
models with their own vocabularies. `compute.jsonl` has one question a line (see record.py), with
what sizes the compute buffer alone; `compute_models.json` has the models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.engines.compact import read_lines, write_lines, write_models
from tests.engines.llamacpp.record import HERE, compact

__all__ = ["MODELS", "ROWS"]

ROWS, MODELS = HERE / "compute.jsonl", HERE / "compute_models.json"

_KEPT = ("name", "model", "ctx", "compute", "outputs", "vocab")


def main() -> int:
    """Write the files."""
    models: dict[str, Any] = {}
    asked = [row for file in sys.argv[1:] for row in read_lines(Path(file)) if row["ok"]]
    found = {row["name"]: row for row in compact(asked, models)}
    write_lines(ROWS, ({key: row[key] for key in _KEPT} for row in found.values()))
    write_models(MODELS, {row["model"]: models[row["model"]] for row in found.values()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
