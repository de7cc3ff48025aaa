"""From what was typed to models: presets, files, the hub, or a shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvcalc.cli.inputs.numbers import number
from kvcalc.cli.values import Origin, Values
from kvcalc.core.errors import KvcalcError, UsageError
from kvcalc.core.model import ModelSpec
from kvcalc.models import load_model, shape_model
from kvcalc.models.presets import preset_folder
from kvcalc.models.sources import SourceKind
from kvcalc.models.text import printable

__all__ = ["DEFAULT_MODEL", "models", "preset_folders"]

DEFAULT_MODEL = "qwen3.5-27b-attention"
_SHAPE = ("layers", "kv_heads", "head_dim", "v_head_dim")


def preset_folders() -> list[Path]:
    """Return the folders of presets that KVCALC_PRESETS names, which come first."""
    return [Path(p) for p in os.environ.get("KVCALC_PRESETS", "").split(os.pathsep) if p]


def models(values: Values, notes: list[str], *, weights: bool = False) -> list[ModelSpec]:
    """Return the models asked for; the default one, with a note, when none is named.

    Args:
        values: what was given.
        notes: lines are added for defaults, and what the models' files say.
        weights: read the headers of weights too, for what hangs on their size.

    Raises:
        UsageError: a shape together with a named model, or half a shape.
    """
    notes.extend(_from_settings(values))
    shape_given = any(values[name] is not None for name in _SHAPE)
    # What is typed replaces a model of the settings file or a variable, it does not join it.
    sources = ("models", "preset", "config", "gguf", "hf")
    replaced = not values.typed("preset") and values.typed(*sources, *_SHAPE)
    named: list[tuple[str, SourceKind | None]] = [(n, None) for n in values["models"] or ()]
    if not replaced:
        named += [(n, None) for n in values["preset"] or ()]
    kinds: tuple[SourceKind, ...] = ("config", "gguf", "hf")
    for kind in kinds:
        named += [(path, kind) for path in values[kind] or ()]
    if shape_given:
        return [_shape([name for name, _ in named], values)]
    if not named:
        notes.append(
            f"no model was named: {DEFAULT_MODEL} (16 layers, 4 KV heads, head_dim 256, bfloat16)"
        )
        named = [(DEFAULT_MODEL, None)]
    if sum(name == "-" for name, _ in named) + (values.get("trace") == "-") > 1:
        raise UsageError(
            "stdin is asked for twice", hint="it can be one model or the trace; name a file"
        )
    folders = preset_folders()
    found = [_load(name, kind, folders, weights=weights) for name, kind in dict.fromkeys(named)]
    notes.extend(_hidden([name for name, kind in named if kind is None], folders))
    notes.extend(f"{m.name}: contradiction: {line}" for m in found for line in m.contradictions)
    notes.extend(f"{m.name}: {note}" for m in found for note in m.notes)
    return found


def _from_settings(values: Values) -> list[str]:
    """Say what a settings file has set: one that lies in the folder is taken without being named.

    Returns:
        one line, or none.
    """
    taken = [
        f"{name} ({values.places[name]})"
        for name, origin in values.origins.items()
        if origin is Origin.SETTINGS
    ]
    return [f"from the settings file: {', '.join(taken)}"] if taken else []


def _hidden(names: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Say which presets of one's own were taken though one of that name comes with kvcalc."""
    ours = os.path.join(preset_folder(), "models")
    notes = []
    for name in dict.fromkeys(name.strip().lower() for name in names):
        file = f"{name}.yaml"
        owner = next((f for f in folders if os.path.isfile(os.path.join(f, "models", file))), None)
        if owner is not None and os.path.isfile(os.path.join(ours, file)):
            folder = printable(str(owner))
            notes.append(f"{name}: the preset of {folder}, not the one that comes with kvcalc")
    return notes


def _load(
    name: str, kind: SourceKind | None, folders: Sequence[Path], *, weights: bool
) -> ModelSpec:
    try:
        return load_model(name, kind=kind, folders=folders, weights=weights)
    except KvcalcError as error:
        if kind == "config" and name.lower().endswith((".yaml", ".yml")):
            # A settings file is `--config` in many tools.
            error.hint = "--config takes a model's config.json; a settings file is --settings"
        raise


def _shape(named: Sequence[str], values: Values) -> ModelSpec:
    given = [name for name in _SHAPE if values[name] is not None]
    if named:
        raise UsageError(
            f"a shape and the model {named[0]!r} were both given",
            hint="leave out one of them",
            where=values.places[given[0]],
        )
    missing = [values.places[name] for name in _SHAPE[:3] if values[name] is None]
    if missing:
        raise UsageError(
            f"a shape also needs {' and '.join(missing)}",
            hint="give --layers, --kv-heads and --head-dim together",
            where=values.places[given[0]],
        )
    layers, kv_heads, head_dim, v_head_dim = (number(values, name) for name in _SHAPE)
    return shape_model(layers or 0, kv_heads or 0, head_dim or 0, v_head_dim)
