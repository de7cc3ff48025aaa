"""A model from what llama.cpp prints of its file: the key-values, or the shape that it read."""

from __future__ import annotations

import re

from kvcalc.core.attention import FullAttention, SlidingWindow
from kvcalc.core.errors import KvcalcError
from kvcalc.core.layers import LayerRun
from kvcalc.core.logs import Fact
from kvcalc.core.model import ModelSpec
from kvcalc.measure.logs.starts import Start
from kvcalc.models.gguf import model_of_entries
from kvcalc.models.shape import shape_model

__all__ = ["model_of"]

_KEY = re.compile(r"(?P<type>\w+)(?:\[(?P<of>\w+),\s?(?P<length>\d+)\])? (?P<key>[\w.-]+)")
_WHOLE = frozenset({"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"})


def model_of(start: Start, notes: list[str]) -> ModelSpec | None:
    """Return the model of a start of llama.cpp; None where its lines do not tell enough."""
    entries = _entries(start)
    if "general.architecture" in entries:
        try:
            return model_of_entries(entries, "the log's key-values")
        except KvcalcError as error:
            told = f"the log's key-values are not enough for the model: {error.message}"
            found = _by_shape(start)
            if found is None:
                notes.append(told)
            return found
    return _by_shape(start)


def _by_shape(start: Start) -> ModelSpec | None:
    try:
        return _shape(start.facts())
    except KvcalcError:
        return None


def _entries(start: Start) -> dict[str, bool | int | float | str | tuple[int, ...]]:
    found: dict[str, bool | int | float | str | tuple[int, ...]] = {}
    for name, setting in start.settings.items():
        match = _KEY.fullmatch(name)
        if match is None:
            continue
        value = _value(match["of"] or match["type"], setting.value, listed=match["of"] is not None)
        if value is None:
            continue
        if isinstance(value, tuple) and len(value) != int(match["length"]):
            continue  # printed with "..." in it
        found[match["key"]] = value
    return found


def _value(kind: str, text: str, *, listed: bool) -> bool | int | str | tuple[int, ...] | None:
    if listed:
        inside = text.strip("[] ")
        parts = [part.strip() for part in inside.split(",")]
        if kind == "bool" and all(part in ("true", "false") for part in parts):
            return tuple(int(part == "true") for part in parts)
        if kind in _WHOLE and all(re.fullmatch(r"-?\d{1,18}", part) for part in parts):
            return tuple(int(part) for part in parts)
        return None
    if kind == "bool":
        return {"true": True, "false": False}.get(text)
    if kind in _WHOLE:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
    return text if kind == "str" else None


def _shape(facts: dict[str, Fact]) -> ModelSpec | None:
    """Return a model of equal layers, or of some with a window, where the lines say so."""

    def whole(name: str) -> int | None:
        low = facts[name].low if name in facts else None
        return low if isinstance(low, int) else None

    layers, heads = whole("n_layer"), whole("n_head_kv")
    width, v_width = whole("n_embd_head_k"), whole("n_embd_head_v")
    keys, window = whole("n_embd_k_gqa"), whole("n_swa")
    if not layers or not heads or not width or "state_size" in facts:
        return None
    if keys is not None and keys != heads * width:
        return None
    longest = whole("n_ctx_train")
    if not window:
        return shape_model(layers, heads, width, v_width, max_position_embeddings=longest)
    full, windows = whole("cache_layers"), whole("cache_layers_2")
    if not full or not windows or full + windows != layers or "cells_window" not in facts:
        return None
    # One cache is of the layers that keep every token, the other of those with a window.
    every = FullAttention(num_kv_heads=heads, head_dim=width, v_head_dim=v_width)
    sliding = SlidingWindow(
        num_kv_heads=heads, head_dim=width, v_head_dim=v_width, sliding_window=window
    )
    return ModelSpec(
        name=f"{full} layers and {windows} windows of {window}, {heads} KV heads x {width}",
        num_hidden_layers=layers,
        dtype="bfloat16",
        layers=(
            LayerRun(count=full, caches=(every,)),
            LayerRun(count=windows, caches=(sliding,)),
        ),
        max_position_embeddings=longest,
    )
