"""Small configs for the tests of the families."""

from __future__ import annotations

from typing import Any

from kvcalc.core.layers import Cache
from kvcalc.core.model import ModelSpec
from kvcalc.models.hf_config import read_config

SMALL = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
}


def read(architecture: str, *without: str, **keys: Any) -> ModelSpec:
    """Return the model of a small config with these keys over it and those taken out."""
    values = {k: v for k, v in SMALL.items() if k not in without}
    return read_config({"architectures": [architecture], **values, **keys}, "config.json", "small")


def by_layer(model: ModelSpec) -> list[tuple[Cache, ...]]:
    """Return what each layer keeps, in order."""
    return [run.caches for run in model.layers for _ in range(run.count)]


def letters(model: ModelSpec) -> str:
    """Return a letter a layer: F full, W window, C chunk, S shared, X cross, - nothing."""
    names = {
        "full_attention": "F",
        "sliding_window": "W",
        "chunked_attention": "C",
        "shared_kv": "S",
        "none": "-",
        "full_attention+cross_attention": "X",
    }
    return "".join(names[run.label] * run.count for run in model.layers)
