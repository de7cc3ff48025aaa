"""Which family reads which architecture: the table `architectures.tsv`, a line an architecture."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kvcalc.core.errors import UnknownNameError
from kvcalc.core.tables import read_table
from kvcalc.models.hf_config.fields import Fields
from kvcalc.models.hf_config.parts import Layers

__all__ = ["ARCHITECTURES", "MODEL_TYPES", "NESTED", "Family", "family", "model_type_of"]

Family = Callable[[Fields], Layers]

# Short rows have no model type of their own: editors drop tabs at a line's end.
_TABLE = read_table("kvcalc.models.hf_config", "architectures.tsv")[1:]
_ROWS = [(name, module, reader, "".join(types).split()) for name, module, reader, *types in _TABLE]

ARCHITECTURES: dict[str, str] = {name: reader for name, _, reader, _ in _ROWS}
"""Architecture -> family: the function `read_<family>` gives its layers."""

_MODULES = {reader: module for _, module, reader, _ in _ROWS}
"""Family -> module of `families`, imported when a config asks for it."""

MODEL_TYPES: dict[str, str] = {kind: name for name, _, _, types in _ROWS for kind in types}
"""model_type -> architecture, for configs without `architectures`."""

NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "llm_cfg")
"""Keys under which a multimodal config keeps its language model, tried in turn."""


def model_type_of(architecture: str) -> str | None:
    """Return the model type of an architecture whose config leaves it out; None if not known."""
    return next((name for name, found in MODEL_TYPES.items() if found == architecture), None)


def family(architecture: str, where: str) -> Family:
    """Return the reader of an architecture.

    Raises:
        UnknownNameError: kvcalc does not know it; the nearest known are named.
    """
    if architecture not in ARCHITECTURES:
        raise UnknownNameError(
            "architecture",
            architecture[:60],
            ARCHITECTURES,
            where=where,
        )
    name = ARCHITECTURES[architecture]
    module = import_module(f"kvcalc.models.hf_config.families.{_MODULES[name]}")
    reader: Family = getattr(module, f"read_{name}")
    return reader
