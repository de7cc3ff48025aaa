"""Positions that a config's rope scaling stretches beyond those that the model was made for."""

from __future__ import annotations

from collections.abc import Mapping

from kvcalc.core.units import format_count
from kvcalc.core.values import MAX_DIMENSION
from kvcalc.models.hf_config.fields import Fields

__all__ = ["stretched"]

_KEYS = ("rope_scaling", "rope_parameters")
_STRETCHING = ("linear", "dynamic", "ntk", "yarn")
"""Kinds whose factor multiplies positions; of longrope and llama3 the maximum is scaled already."""


def stretched(outer: Fields, text: Fields, positions: int | None) -> int | None:
    """Return the longest sequence with the config's rope scaling; None where it is no more.

    vLLM (vllm/config/model.py, _get_and_verify_max_len) multiplies the positions by the factor,
    those from before the scaling where yarn tells them. Gemma 3 states its maximum scaled.

    Args:
        outer: the config.
        text: its language model's.
        positions: max_position_embeddings; None where there is none.
    """
    scaling = next(
        (given for f in (text, outer) for key in _KEYS if (given := f.quietly(key))), None
    )
    if not isinstance(scaling, Mapping) or positions is None:
        return None
    if "gemma3" in str(text.quietly("model_type") or outer.quietly("model_type") or ""):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor", 1)
    if kind not in _STRETCHING or isinstance(factor, bool) or not isinstance(factor, (int, float)):
        return None
    first = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
    base = first if isinstance(first, int) and not isinstance(first, bool) else positions
    if not 1 < factor <= MAX_DIMENSION:
        return None
    found = int(base * factor)
    if not positions < found <= MAX_DIMENSION:
        return None
    outer.notes.append(
        f"rope scaling ({kind}, factor {factor:g}) stretches {format_count(positions)} positions to"
        f" {format_count(found)}, which vLLM takes for the longest sequence"
    )
    return found
