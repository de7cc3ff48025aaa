"""From what a user calls a model to the model: a preset, a preset file, or stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kvcalc.core.errors import (
    KvcalcError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.models.documents import read_document
from kvcalc.models.presets import ModelPreset, load_model_preset, model_from_document
from kvcalc.models.text import printable, read_stream, read_text

__all__ = ["load_model"]

_EXPLICIT = re.compile(r"\.{0,2}[/\\]|[A-Za-z]:[/\\]|~[/\\]")
"""How a path begins that no preset's name or alias can be meant by."""

_YAML = (".yaml", ".yml")
_OTHER = {".json": "a config.json", ".gguf": "a GGUF file", ".safetensors": "a safetensors file"}
_SHAPE_HINT = "give --layers, --kv-heads and --head-dim, or a preset (kvcalc presets list)"


def load_model(
    source: str, *, stdin: BinaryIO | None = None, folders: Sequence[Path] = ()
) -> ModelSpec:
    """Return the model that `source` names.

    Args:
        source: a preset's name or alias, the path of a preset file, or `-` for one on stdin.
        stdin: the stream to read for `-`; the process's own when None. It is not closed.
        folders: folders of presets that are searched before those that come with kvcalc.

    Raises:
        UsageError: a preset and a path have this spelling.
        UnknownNameError: neither has.
        UnsupportedError: another kind of model file.
        InputError: the file is missing, unreadable or has a fault.
    """
    if source == "-":
        return model_from_document(read_document(read_stream(stdin), "stdin")).spec
    if source.startswith("hf:"):
        raise _not_read("a model on the Hub", source)
    if _is_path(source):
        return _read_path(source)
    if not os.path.lexists(source):
        return _read_name(source, folders).spec
    try:
        preset = load_model_preset(source, folders)
    except UnknownNameError:
        return _read_path(source)
    raise _both(source, preset)


def _is_path(source: str) -> bool:
    """Whether a source can only be a path: by how it begins, or by its ending."""
    ending = os.path.splitext(source)[1].lower()
    return bool(_EXPLICIT.match(source)) or ending in _YAML or ending in _OTHER


def _read_path(path: str) -> ModelSpec:
    """Read a model from a path by what it is: the place where further readers come in."""
    ending = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        raise _not_read("a folder", path)
    if ending in _OTHER:
        raise _not_read(_OTHER[ending], path)
    return model_from_document(read_document(read_text(path), printable(path))).spec


def _read_name(source: str, folders: Sequence[Path]) -> ModelPreset:
    try:
        return load_model_preset(source, folders)
    except UnknownNameError as error:
        if "/" not in source and "\\" not in source:
            raise
        # It may have been meant as a path: ORG/NAME and FOLDER/FILE look alike.
        hint = f"no file has this path either; {error.hint}"
        raise UnknownNameError("model preset", error.name, error.suggestions, hint=hint) from None


def _not_read(what: str, source: str) -> KvcalcError:
    return UnsupportedError(
        f"{what}: this version reads presets and preset files",
        hint=_SHAPE_HINT,
        where=printable(source),
    )


def _both(source: str, preset: ModelPreset) -> KvcalcError:
    spellings = (preset.spec.name, *preset.aliases)
    other = next((s for s in spellings if not os.path.lexists(s)), None)
    for_preset = f"{other} for the preset" if other else "another folder for the preset"
    return UsageError(
        f"{source} is a preset and also a path here",
        hint=f"./{source} for the path, {for_preset}",
    )
