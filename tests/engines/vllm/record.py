"""Write the oracle's answers in compact form: python -m tests.engines.vllm.record [FILE...].

Without a file the shared answers are read and `models.json` and `rows.jsonl` are written. With
files (answers to further questions, asked by the same oracle script) `more_rows.jsonl` is written,
and what their models need is added to `models.json`.

A line is one question (model, card, release, case) with what every memory size gave:
  groups   tokens a block, layers, bytes of a block, blocks a request of the maximum; sorted
  block    bytes of a block; `stages`: of every pipeline stage
  needed   bytes of a request of the maximum over all stages
  reuse    tokens in whose multiples prefixes are reused
  answers  memory, blocks, tokens, concurrency
  refused  memory, GiB needed, GiB there, suggested length
  error    the start of a refusal of the configuration itself
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from tests.engines.compact import packed, read_lines, read_models, write_lines, write_models

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared"
MODELS, ROWS, MORE = HERE / "models.json", HERE / "rows.jsonl", HERE / "more_rows.jsonl"
_ERROR = 320  # characters kept of a refusal

_CASE = (
    "tp", "pp", "dcp", "kv_cache_dtype", "block_size", "max_model_len", "enable_prefix_caching",
    "max_num_batched_tokens", "max_num_seqs", "async_scheduling",
    "disable_hybrid_kv_cache_manager", "num_gpu_blocks_override", "dtype", "mamba_cache_dtype",
    "mamba_ssm_cache_dtype", "attention_backend", "speculative_config", "mamba_cache_mode",
)  # fmt: skip


def _config(model: str) -> dict[str, Any]:
    for folder in ("configs", "reconstructed"):
        path = SHARED / "corpus" / folder / f"{model}.json"
        if path.is_file():
            loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return loaded
    raise FileNotFoundError(model)


def read_model(name: str, patch: dict[str, Any], *, keep_quantization: bool) -> ModelSpec:
    """Return kvcalc's reading of a config as the oracle was given it."""
    values = _config(name)
    for key, value in patch.items():
        values[key] = value
        if value is None:
            del values[key]
    if not keep_quantization:
        for part in (values, *(v for v in values.values() if isinstance(v, dict))):
            part.pop("quantization_config", None)
            part.pop("compression_config", None)
    return read_config(values, f"{name}.json", name)


def model_key(row: dict[str, Any]) -> str:
    """Return what names a row's model: the config's name, and what was laid over it."""
    case = row["case"]
    key = str(row["model"])
    if case.get("config_patch"):
        key += " " + json.dumps(case["config_patch"], sort_keys=True)
    if case.get("keep_quantization_config"):
        key += " +quantization"
    return key


def _groups(row: dict[str, Any]) -> list[list[int]]:
    found = []
    for g in row["groups"]:
        width = g["page_size_bytes"]
        if not g["spec"].startswith("Uniform"):
            width *= g["num_layers"]
        found.append([g["block_size"], g["num_layers"], width, g["blocks_per_max_len_request"]])
    return sorted(found)


_REFUSAL = re.compile(r"\((\d+)\), \(?([\d.]+) GiB KV cache is needed, .*?memory \(([\d.]+) GiB\)")
_LENGTH = re.compile(r"estimated maximum model length is (\d+)")


def compact(rows: list[dict[str, Any]], models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one entry a question; the models that they need are added to `models`."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = model_key(row)
        case = {name: row["case"][name] for name in _CASE if row["case"].get(name) is not None}
        if key not in models:
            patch = row["case"].get("config_patch", {})
            keep = bool(row["case"].get("keep_quantization_config"))
            try:
                models[key] = packed(read_model(row["model"], patch, keep_quantization=keep))
            except KvcalcError as error:
                models[key] = {"refused": error.message}
        if "draft_config" in row["case"]:
            draft = read_config(row["case"]["draft_config"], "draft_config", "draft")
            case["draft_model"] = f"draft of {key}, {case['speculative_config']['method']}"
            models[case["draft_model"]] = packed(draft)
        entry = {"model": key, "gpu": row["gpu"], "version": row.get("vllm_version", "0.33.0")}
        entry["case"] = case
        name = json.dumps(entry, sort_keys=True)
        _add(found.setdefault(name, entry), row)
    return list(found.values())


def _add(entry: dict[str, Any], row: dict[str, Any]) -> None:
    """Put a row's answer into the entry of its question."""
    if not row.get("groups"):
        entry["error"] = " ".join(str(row["error"]).split())[:_ERROR]
        return
    sized = "num_blocks" in row
    pp = row.get("pp", 1)
    entry["max_model_len"] = row["max_model_len"]
    if sized or pp == 1:
        entry["groups"] = _groups(row)
        entry["block"] = row.get("bytes_per_block_total")
    if "bytes_per_block_total_per_pp_rank" in row:
        entry["stages"] = row["bytes_per_block_total_per_pp_rank"]
    if row.get("needed_bytes_one_request") is not None:
        entry["needed"] = row["needed_bytes_one_request"]
    if row.get("enable_prefix_caching") and "scheduler_block_size" in row:
        entry["reuse"] = row["scheduler_block_size"]
    memory = row["available_bytes"]
    if sized:
        answer = [memory, row["num_blocks"], row["token_capacity"], row["max_concurrency"]]
        entry.setdefault("answers", []).append(answer)
        return
    match, length = _REFUSAL.search(row["error"]), _LENGTH.search(row["error"])
    if match is None:
        entry["error"] = " ".join(str(row["error"]).split())[:_ERROR]
        return
    suggested = int(length[1]) if length else 0
    entry.setdefault("refused", []).append([memory, float(match[2]), float(match[3]), suggested])


def shared_rows(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shared answers in compact form; their models are added to `models`."""
    rows = read_lines(SHARED / "oracle" / "vllm_results.jsonl")
    return compact([row for row in rows if "same_as" not in row], models)


def main() -> int:
    """Write the files."""
    files = [Path(argument) for argument in sys.argv[1:]]
    models: dict[str, Any] = {}
    if files:
        rows = [row for file in files for row in read_lines(file)]
        write_lines(MORE, compact(rows, models))
    else:
        write_lines(ROWS, shared_rows(models))
    other = ROWS if files else MORE
    known = read_models(MODELS) if MODELS.is_file() else {}
    for row in read_lines(other) if other.is_file() else []:
        for key in (row["model"], row["case"].get("draft_model")):
            if key in known:
                models.setdefault(key, known[key])
    write_models(MODELS, models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
