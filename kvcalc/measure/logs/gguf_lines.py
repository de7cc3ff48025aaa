"""A model from what llama.cpp prints of its file: the key-values, or the shape that it read."""

from __future__ import annotations

import re

from kvcalc.core.errors import KvcalcError
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
            notes.append(f"the log's key-values are not enough for the model: {error.message}")
    facts = start.facts()
    try:
        return _shape(facts)
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
    """Return a model of equal layers, where print_info says that they are."""

    def whole(name: str) -> int | None:
        low = facts[name].low if name in facts else None
        return low if isinstance(low, int) else None

    layers, heads = whole("n_layer"), whole("n_head_kv")
    width, v_width = whole("n_embd_head_k"), whole("n_embd_head_v")
    keys = whole("n_embd_k_gqa")
    if not layers or not heads or not width or whole("n_swa") or "state_size" in facts:
        return None
    if keys is not None and keys != heads * width:
        return None
    return shape_model(layers, heads, width, v_width, max_position_embeddings=whole("n_ctx_train"))
