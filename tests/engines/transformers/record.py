"""Write the oracle's answers in compact form: python -m tests.engines.transformers.record.

`models.json` holds kvcalc's reading of every model, `rows.jsonl` a line for every row of the shared
results:
  model     key of models.json; `twin`: the row's model has the same config as another
  cache     dynamic, static, quantized
  args      settings of transformers
  dtype     the dtype it was run in
  tokens    in the cache; `step`: prefill or decode (one token after the prefill)
  bytes     elements x size of all tensors; `storage`: bytes of the storages kept alive
  counters  bytes of counters
  error     the start of what went wrong
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.core.attention import CrossAttention
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config
from tests.engines.compact import packed, read_lines, write_lines, write_models
from tests.engines.transformers.shapes import SHAPES
from tests.engines.vllm.record import read_model
from tests.models.hf_config.test_transformers import IN_THE_CORPUS, model_of

__all__ = ["compact", "main"]

HERE = Path(__file__).parent
SHARED = HERE.parents[3] / "shared"
MODELS, ROWS = HERE / "models.json", HERE / "rows.jsonl"
_ERROR = 200  # characters kept of an error
_CAUSAL = {
    "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "lfm2": "Lfm2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM", "qwen3_next": "Qwen3NextForCausalLM",
}  # fmt: skip


def _model(row: dict[str, Any]) -> ModelSpec:
    """Return kvcalc's reading of what a row was asked of."""
    name = row["name"]
    if name in SHAPES:
        return SHAPES[name]()
    if name.startswith("cpu_check"):
        part = {"model_type": row["model_type"], **row["kwargs"]}
        return read_config({"architectures": [_CAUSAL[row["model_type"]]], **part}, name, name)
    source = row.get("source", "corpus")
    if source == "builtin" or name in IN_THE_CORPUS:
        return read_model(IN_THE_CORPUS[name], {}, keep_quantization=False)
    if source.startswith("builtin"):
        return model_of(name, source, row["model_cls"])
    return read_model(name, {}, keep_quantization=False)


def _with_encoder(model: ModelSpec, tokens: int) -> ModelSpec:
    """Return the model with an encoder's output of so many tokens: what the run was given."""

    def given(cache: Cache) -> Cache:
        if isinstance(cache, CrossAttention):
            return msgspec.structs.replace(cache, encoder_tokens=tokens)
        return cache

    runs = tuple(
        LayerRun(count=run.count, caches=tuple(map(given, run.caches)), note=run.note)
        for run in model.layers
    )
    return msgspec.structs.replace(model, layers=runs)


def compact(rows: list[dict[str, Any]], models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for every row; the models that they need are added to `models`."""
    found: list[dict[str, Any]] = []
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    for row in rows:
        if "same_as" in row:
            twin = by_name.get(row["same_as"], [])
            if not twin:
                found.append({"model": row["name"], "twin": row["same_as"]})
            for other in twin:
                asked = {k: v for k, v in other.items() if k not in ("name", "source")}
                entry = _entry({"name": row["name"], **asked}, models)
                found.append({**entry, "twin": row["same_as"]})
        elif "agree" in row:
            for tokens, size in row["cpu"].items():
                found.append(_checked(row, int(tokens), size, models))
        else:
            found.append(_entry(row, models))
    return found


def _known(row: dict[str, Any], models: dict[str, Any]) -> str:
    """Return the key of a row's model."""
    key = str(row["name"])
    if key not in models:
        try:
            model = _model(row)
            if "enc_tokens" in row:
                model = _with_encoder(model, row["enc_tokens"])
            models[key] = packed(model)
        except KvcalcError as error:
            models[key] = {"refused": error.message}
    return key


def _checked(row: dict[str, Any], tokens: int, size: int, models: dict[str, Any]) -> dict[str, Any]:
    assert row["agree"]
    key = _known(row, models)
    entry = {"model": key, "cache": "dynamic", "dtype": "bfloat16", "tokens": tokens}
    return {**entry, "step": "prefill", "bytes": size}


def _entry(row: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    if "error" in row and "cache" not in row:
        return {"model": row["name"], "error": " ".join(row["error"].split())[:_ERROR]}
    entry: dict[str, Any] = {"model": _known(row, models)}
    args: dict[str, Any] = {}
    tokens = row.get("tokens", 0)
    step = "decode" if "decode" in row.get("steps", "") else "prefill"
    match row["cache"]:
        case "StaticCache":
            args = {"cache_implementation": "static", "max_cache_len": row["max_cache_len"]}
        case "QuantizedCache":
            args = {"cache_implementation": "quantized", "backend": row["backend"]}
            if row["backend"] != "fp8":
                args["nbits"] = row["nbits"]
            tokens = row["prefill"] + row["decode"]
            step = "decode" if row["decode"] else "prefill"
            args["prompt_tokens"] = row["prefill"]
    if match := re.fullmatch(r"prefill (\d+) \+ decode 1", row.get("steps", "")):
        args["prompt_tokens"] = int(match[1])
    entry |= {"args": args, "dtype": row["dtype"], "tokens": tokens, "step": step}
    if "error" in row:
        entry["error"] = " ".join(row["error"].split())[:_ERROR]
        return entry
    entry |= {"bytes": row["bytes"], "storage": row["storage_bytes"]}
    if row["bookkeeping_bytes"]:
        entry["counters"] = row["bookkeeping_bytes"]
    return entry


def shared_rows(models: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the shared answers in compact form; their models are added to `models`."""
    path = SHARED / "oracle" / "transformers_results.jsonl"
    return compact(read_lines(path), models)


def main() -> int:
    """Write the files."""
    models: dict[str, Any] = {}
    write_lines(ROWS, shared_rows(models))
    write_models(MODELS, models)
    return 0


if __name__ == "__main__":
    sys.exit(main())
