"""Vision and audio models around a language model of another family: that family reads it."""

from __future__ import annotations

from kvcalc.core.errors import InputError
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers
from kvcalc.models.hf_config.registry import ARCHITECTURES, MODEL_TYPES, family

__all__ = ["read"]


def read(f: Fields) -> Layers:
    """Return the language model's layers, by its own class or its model type."""
    names = [name for name in f.items("architectures") or () if isinstance(name, str)]
    inner = next((n for n in names if ARCHITECTURES.get(n, "nested") != "nested"), None)
    if inner is None:
        model_type = f.text("model_type") or ""
        inner = MODEL_TYPES.get(model_type)
        if inner is None or ARCHITECTURES[inner] == "nested":
            raise InputError(
                f"{f.name('model_type')} {model_type!r:.60} names no language model that is known",
                hint="add the architectures line of the language model to its part of the config",
                where=f.where,
            )
    return family(inner, f.where)(f)
