"""Write the oracle's answers in compact form: python -m tests.engines.llamacpp.record [FILE...].

Without a file the shared answers are read and `rows.jsonl` is written; with files (answers to
further questions, asked by the same oracle script) `more_rows.jsonl`. `models.json` has the models
as kvcalc reads them from the same GGUF keys; a line of rows is one question (model, context
settings) with what llama.cpp said:
  caches   name, cells, streams, bytes of K, bytes of V; of states: name, bytes of R, bytes of S
  total    bytes of the context
  n_ctx    cells in all, and of one sequence
  compute  bytes of the compute buffer; outputs: tokens that could be asked for at once;
           vocab: entries of the vocabulary, which model keys leave open
  refused  llama.cpp made no context
"""

from __future__ import annotations

import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvcalc.core.model import ModelSpec
from kvcalc.models.gguf import read_gguf
from tests.engines.compact import packed, read_lines, read_models, write_lines, write_models
from tests.models.gguf.writer import metadata

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared"
MODELS, ROWS, MORE = (HERE / n for n in ("models.json", "rows.jsonl", "more_rows.jsonl"))

_NO_MATTER = ("no_alloc", "n_outputs_max")
"""Settings of the oracle that size no cache."""


def read_model(row: dict[str, Any]) -> ModelSpec:
    """Return kvcalc's reading of the keys, or of the file, that the oracle was given."""
    if row.get("gguf"):
        return read_gguf(str(SHARED / "corpus" / "gguf" / row["gguf"])).spec
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(metadata(row["arch"], row["hp"]))
        return read_gguf(str(path)).spec


def outputs(row: dict[str, Any]) -> int:
    """Return how many tokens' logits a library's context can be asked for: n_batch unless set."""
    asked = row["ctx"].get("n_outputs_max")
    if asked:
        return int(asked)
    longest = row["ctx"].get("n_ctx") or row["n_ctx"]
    return int(min(longest, row["ctx"].get("n_batch", 2048)))


def caches(row: dict[str, Any]) -> list[list[Any]]:
    """Return the caches that llama.cpp made."""
    found: list[list[Any]] = []
    for cache in row["caches"]:
        if cache["kind"] == "recurrent":
            r = cache["r_bytes"] + cache.get("p_bytes", 0)
            found.append(["state", r, cache["s_bytes"]])
        else:
            sizes = [cache["k_bytes"], cache["v_bytes"]]
            found.append([cache["cache"], cache["cells"], cache["streams"], *sizes])
    if row["other_bytes"]:
        found.append(["compressor", row["other_bytes"]])
    return found


def compact(rows: list[dict[str, Any]], models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one entry a question; the models are added to `models`."""
    keys: dict[str, str] = {}
    found = []
    for row in rows:
        shape = json.dumps([row.get("gguf"), row.get("arch"), row.get("hp")], sort_keys=True)
        if shape not in keys:
            keys[shape] = row.get("gguf") or f"{row['arch']} {_digest(shape)}"
            models[keys[shape]] = packed(read_model(row), sizes=True)
        ctx = {k: v for k, v in row["ctx"].items() if k not in _NO_MATTER}
        entry: dict[str, Any] = {"name": row["name"], "model": keys[shape], "ctx": ctx}
        if row["ok"]:
            entry["caches"] = caches(row)
            entry["total"] = row["context_bytes"]
            entry["n_ctx"] = [row["n_ctx"], row["n_ctx_seq"]]
            entry["compute"] = row["compute_bytes"]
            entry["outputs"] = outputs(row)
            if row.get("n_vocab"):
                entry["vocab"] = row["n_vocab"]
        else:
            entry["refused"] = True
        found.append(entry)
    return found


def shared_rows(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shared answers in compact form; their models are added to `models`."""
    path = SHARED / "oracle" / "llamacpp_results.jsonl"
    return compact(read_lines(path), models)


def _digest(shape: str) -> str:
    return sha256(shape.encode()).hexdigest()[:8]


def main() -> int:
    """Write the files."""
    models: dict[str, Any] = {}
    files = [Path(argument) for argument in sys.argv[1:]]
    rows = shared_rows(models)
    if files:
        rows = compact([row for file in files for row in read_lines(file)], models)
    write_lines(MORE if files else ROWS, rows)
    known = read_models(MODELS) if MODELS.is_file() else {}
    for row in [] if files or not MORE.is_file() else read_lines(MORE):
        models.setdefault(row["model"], known[row["model"]])
    write_models(MODELS, models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
