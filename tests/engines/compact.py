"""Models and answers of the oracles in compact form: how they are written and read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.size import ModelSize

__all__ = ["packed", "read_lines", "read_models", "unpacked", "write_lines", "write_models"]

_FIELDS = (
    "architecture",
    "dtype",
    "kv_cache_dtype",
    "num_attention_heads",
    "encoder_divisor",
    "mamba_chunk_size",
    "max_position_embeddings",
    "traits",
)


def packed(spec: ModelSpec, *, sizes: bool = False) -> dict[str, Any]:
    """Return a model as JSON, its distinct caches written once, its widths if asked for."""
    caches: list[Any] = []

    def run(r: LayerRun) -> list[Any]:
        for cache in r.caches:
            if cache not in caches:
                caches.append(cache)
        return [r.count, [caches.index(cache) for cache in r.caches]]

    layers, drafts = [run(r) for r in spec.layers], [run(r) for r in spec.draft_layers]
    fields = {name: getattr(spec, name) for name in _FIELDS if getattr(spec, name)}
    told = [
        {k: v for k, v in msgspec.to_builtins(c).items() if v is not None and v is not False}
        for c in caches
    ]
    found = {**fields, "caches": told, "layers": layers, **({"drafts": drafts} if drafts else {})}
    if sizes and spec.size is not None:
        widths = msgspec.to_builtins(spec.size)
        found["size"] = {
            k: v
            for k, v in widths.items()
            if v not in (None, [], ()) and not k.startswith(("weights_", "parts"))
        }
    return found


def unpacked(told: dict[str, Any], name: str) -> ModelSpec:
    """Return the model that `packed` wrote.

    Raises:
        UnsupportedError: one that kvcalc's reader refused when it was written.
    """
    told = dict(told)
    if "refused" in told:
        raise UnsupportedError(told["refused"], hint="kvcalc's reader refuses this config")
    caches = [msgspec.convert(c, Cache) for c in told.pop("caches")]

    def runs(listed: list[Any]) -> tuple[LayerRun, ...]:
        return tuple(
            LayerRun(count=count, caches=tuple(caches[i] for i in kept)) for count, kept in listed
        )

    layers, drafts = runs(told.pop("layers")), runs(told.pop("drafts", []))
    if "size" in told:
        told["size"] = msgspec.convert(told["size"], ModelSize)
    told["traits"] = tuple(told.get("traits", ()))
    count = sum(run.count for run in layers)
    return ModelSpec(name=name, num_hidden_layers=count, layers=layers, draft_layers=drafts, **told)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the values of a file with one a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Write a file with one value a line."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")


def read_models(path: Path) -> dict[str, Any]:
    """Return the packed models of a file, by name."""
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def write_models(path: Path, models: dict[str, Any]) -> None:
    """Write packed models, one a line, sorted."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(model, separators=(',', ':'))}"
        for key, model in models.items()
    ]
    path.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n", encoding="utf-8", newline="\n")
