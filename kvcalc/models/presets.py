"""Presets: which there are, and one of them by its name or by another spelling of it.

A folder of presets holds `models/NAME.yaml` and `gpus/NAME.yaml`. A name is looked for as a file,
so that one file is read; only a name that no file has is looked for among the aliases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

from kvcalc.core.deployment import GpuSpec
from kvcalc.core.errors import InputError, UnavailableError, UnknownNameError, nearest
from kvcalc.models.documents import Document, read_document
from kvcalc.models.faults import Fault
from kvcalc.models.preset_files import (
    Expect,
    GpuPreset,
    ModelPreset,
    Source,
    check_document,
    check_gpu,
    check_model,
)
from kvcalc.models.text import DocumentError, printable, read_text, shown

__all__ = [
    "Expect",
    "Fault",
    "GpuPreset",
    "ModelPreset",
    "Source",
    "alias_index",
    "all_gpus",
    "all_models",
    "check_gpu",
    "check_model",
    "gpu_names",
    "load_gpu",
    "load_gpu_preset",
    "load_model_preset",
    "model_from_document",
    "model_names",
    "preset_folder",
    "validate_file",
]

_Preset = TypeVar("_Preset", ModelPreset, GpuPreset)

_MODELS, _GPUS = "models", "gpus"
_NAME = r"[A-Za-z_][\w./+-]*|\d[\w./+-]*[A-Za-z][\w./+-]*"  # no number, no quotes
_ITEM = re.compile(rf"  - ({_NAME})", re.ASCII)
_FLOW = re.compile(rf"\[((?:(?:{_NAME})(?:, (?:{_NAME}))*)?)\]", re.ASCII)
_PACKAGE = Path(__file__).parent.parent
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,99}")  # longer ones no file system takes


def preset_folder() -> Path:
    """Return the folder of the presets that come with kvcalc.

    A wheel carries them inside the package; in a checkout, and in an editable install of one,
    they lie beside it.

    Raises:
        UnavailableError: neither folder is there.
    """
    for folder in (_PACKAGE / "_presets", _PACKAGE.parent / "presets"):
        if (folder / _MODELS).is_dir():
            return folder
    raise UnavailableError("the presets that come with kvcalc are missing", hint="reinstall kvcalc")


def model_names(folders: Sequence[Path] = ()) -> list[str]:
    """Return the names of all model presets, sorted.

    Args:
        folders: further folders of presets.

    Raises:
        InputError: one of `folders` is no folder of presets.
    """
    return sorted(_files(_MODELS, folders))


def gpu_names(folders: Sequence[Path] = ()) -> list[str]:
    """Return the names of all GPU presets, sorted; as `model_names`."""
    return sorted(_files(_GPUS, folders))


def load_model_preset(name: str, folders: Sequence[Path] = ()) -> ModelPreset:
    """Return the model preset of a name or alias, in any mixture of cases.

    Args:
        name: such as `llama-3.1-8b` or `meta-llama/Llama-3.1-8B-Instruct`.
        folders: folders of presets that are searched before those that come with kvcalc.

    Raises:
        UnknownNameError: no preset has that name or alias; the nearest are named.
        InputError: the preset's file has a fault, one of `folders` is no folder of presets, or
            two presets of one folder share the alias.
    """
    path = _find(name, _MODELS, "model preset", folders)
    return model_from_document(_document(path), path.stem).called(name)


def load_gpu_preset(name: str, folders: Sequence[Path] = ()) -> GpuPreset:
    """Return the GPU preset of a name or alias; as `load_model_preset`."""
    path = _find(name, _GPUS, "GPU", folders)
    document = _document(path)
    preset, faults = check_gpu(document)
    return _sound(preset, _with_stem(preset, faults, path.stem), document)


def load_gpu(name: str, folders: Sequence[Path] = ()) -> GpuSpec:
    """Return the GPU of a name or alias; as `load_model_preset`."""
    return load_gpu_preset(name, folders).spec


def alias_index(folders: Sequence[Path] = ()) -> dict[str, str]:
    """Return names and aliases of models in lower case -> the preset's name, read in one go.

    For many names at once: looking one alias up reads as many files. Of an alias that several
    presets have, none is returned.
    """
    index: dict[str, str] = {}
    shared: set[str] = set()
    own = preset_folder() / _MODELS
    files = _files(_MODELS, folders)
    for stem, path in files.items():
        for alias in _aliases(path, own=path.parent == own):
            if index.setdefault(alias.lower(), stem) != stem:
                shared.add(alias.lower())
    for alias in shared:
        del index[alias]
    return index | {stem: stem for stem in files}


def all_models(folders: Sequence[Path] = ()) -> list[ModelPreset]:
    """Return every model preset by name.

    Raises:
        InputError: as `load_model_preset`.
    """
    files = _files(_MODELS, folders)
    return [model_from_document(_document(files[name]), name) for name in sorted(files)]


def all_gpus(folders: Sequence[Path] = ()) -> list[GpuPreset]:
    """Return every GPU preset by name; as `all_models`."""
    return [load_gpu_preset(name, folders) for name in gpu_names(folders)]


def validate_file(path: str | os.PathLike[str]) -> list[Fault]:
    """Return every fault of a model's or GPU's preset file, by line; none for a sound one.

    Raises:
        InputError: the file cannot be read at all.
    """
    try:
        document = read_document(read_text(path), printable(str(path)))
    except DocumentError as error:
        return [Fault(line=error.line, path=(), message=error.message)]
    preset, faults = check_document(document)
    return _with_stem(preset, faults, Path(path).stem)


def model_from_document(document: Document, stem: str | None = None) -> ModelPreset:
    """Return the model preset that a document holds.

    Args:
        document: as `read_document` returns it.
        stem: the file's name without its ending, where the preset is found by it.

    Raises:
        InputError: the first fault, with its line and the number of others.
    """
    preset, faults = check_model(document)
    return _sound(preset, _with_stem(preset, faults, stem), document)


def _with_stem(
    preset: ModelPreset | GpuPreset | None, faults: list[Fault], stem: str | None
) -> list[Fault]:
    """Add the fault of a name under which the preset would not be found."""
    if preset is None or stem is None or preset.spec.name == stem:
        return faults
    message = f"name is {preset.spec.name}, the file is {shown(stem + '.yaml')}; make them equal"
    return [*faults, Fault(line=1, path=("name",), message=message)]


def _sound(preset: _Preset | None, faults: list[Fault], document: Document) -> _Preset:
    if preset is not None and not faults:
        return preset
    first = faults[0]
    more = len(faults) - 1
    message = first.message
    if more:
        message += f" (and {more} more: kvcalc presets validate FILE)"
    hint = "presets/README.md says what a preset holds"
    raise InputError(message, hint=hint, where=f"{document.file}:{first.line}")


def _document(path: Path) -> Document:
    # Ours by its name alone: where kvcalc is installed says nothing to the reader of an error.
    own = path.is_relative_to(preset_folder())
    name = path.name if own else printable(str(path))
    if not own and path.exists() and not path.is_file():  # a pipe may never be written
        raise InputError("is no regular file", hint="take it out of the folder", where=name)
    return _read(read_text(path, name), name)


@lru_cache(maxsize=8)
def _read(text: str, name: str) -> Document:
    """Read a document once: an option is read when it is typed and again where it is used."""
    return read_document(text, name)


def _roots(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        if not (folder / _MODELS).is_dir() and not (folder / _GPUS).is_dir():
            raise InputError(
                "no folder of presets",
                hint="it holds models/NAME.yaml or gpus/NAME.yaml",
                where=printable(str(folder)),
            )
        yield folder
    yield preset_folder()


def _files(kind: str, folders: Sequence[Path]) -> dict[str, Path]:
    """Return name -> file, without reading any; an earlier folder hides a later one's file."""
    files: dict[str, Path] = {}
    for root in _roots(folders):
        for path in sorted((root / kind).glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def _find(name: str, kind: str, what: str, folders: Sequence[Path]) -> Path:
    folded = name.strip().lower()
    roots = list(_roots(folders))
    own = roots[-1]
    if _FILE_NAME.fullmatch(folded):
        for root in roots:
            path = root / kind / f"{folded}.yaml"
            if path.exists():
                return path
    known: dict[str, str] = {}
    for root in roots:
        owners: list[Path] = []
        for path in sorted((root / kind).glob("*.yaml")):
            aliases = _aliases(path, own=root == own)
            known.update(dict.fromkeys((*aliases, path.stem), path.stem))
            if folded in (alias.lower() for alias in aliases):
                owners.append(path)
        if len(owners) > 1:
            raise InputError(
                f"{owners[0].name} and {owners[1].name} both have the alias {shown(name)}",
                hint="give one of the two names, or remove one alias",
            )
        if owners:
            return owners[0]
    raise UnknownNameError(what, printable(name), known, hint=_hint(name, kind, known))


def _aliases(path: Path, *, own: bool) -> list[str]:
    """Return a preset's aliases without checking the rest of it.

    A file that cannot be read has none: its fault is told when it is asked for itself. Of the
    presets that come with kvcalc the few lines of their names are all that is read.
    """
    if own:
        found = _listed_aliases(path.read_text(encoding="utf-8"))
        if found is not None:
            return found
    try:
        value = _document(path).value
    except InputError:
        return []
    if not isinstance(value, dict):
        return []
    variants = value.get("variants")
    lists = (
        [one.get("names") for one in variants if isinstance(one, dict)]
        if isinstance(variants, list)
        else []
    )
    return [
        name
        for names in (value.get("aliases"), *lists)
        if isinstance(names, list)
        for name in names
        if isinstance(name, str)
    ]


def _listed_aliases(text: str) -> list[str] | None:
    """Return the names under `aliases:` and of `variants:` where a line holds each or all.

    None where they stand otherwise. Reading a file as YAML takes forty times as long.
    """
    found: list[str] = []
    first, *lines = _block(text, "aliases")
    if first:
        inside = _FLOW.fullmatch(first)
        if inside is None:
            return None
        found += [name for name in inside[1].split(", ") if name]
    for line in lines:
        item = _ITEM.fullmatch(line)
        if item is None:
            return None
        found.append(item[1])
    first, *lines = _block(text, "variants")
    variants = 0
    for line in lines:
        variants += line.startswith("  - ")
        key, _, value = line[4:].partition(": ")
        if key == "names":
            inside = _FLOW.fullmatch(value)
            if inside is None:
                return None
            variants -= 1
            found += [name for name in inside[1].split(", ") if name]
    return None if first or variants else found


def _block(text: str, name: str) -> list[str]:
    """Return what follows a key at the left edge: the rest of its line, and the indented ones."""
    _, _, after = text.partition(f"\n{name}:")
    first, *lines = after.split("\n")
    return [first.strip(), *takewhile(lambda line: line.startswith(" "), lines)]


def _hint(name: str, kind: str, known: Mapping[str, str]) -> str:
    """Return what was meant, perhaps: each preset once, by that of its names which is nearest."""
    each: dict[str, str] = {}
    for one in nearest(name, sorted(known)):
        each.setdefault(known[one], one)
    close = list(each.values())
    guess = f"did you mean {' or '.join(close)}? " if close else ""
    command = "kvcalc gpus" if kind == _GPUS else "kvcalc presets list"
    return f"{guess}{command} shows all {kind}"
