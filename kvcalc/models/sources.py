"""From what a user calls a model to the model: a preset, a file or folder, the Hub, or stdin."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from kvcalc.core.errors import (
    InputError,
    InvalidValueError,
    KvcalcError,
    UnknownNameError,
    UsageError,
)
from kvcalc.core.model import ModelSpec
from kvcalc.models.documents import read_document
from kvcalc.models.presets import ModelPreset, load_model_preset, model_from_document
from kvcalc.models.text import printable, read_stream, read_text

__all__ = ["SourceKind", "load_model"]

SourceKind = Literal["config", "gguf", "hf"]
"""What a source is said to be, where its spelling is not to decide."""

_EXPLICIT = re.compile(r"\.{0,2}[/\\]|[A-Za-z]:[/\\]|~[/\\]")
"""How a path begins that no preset's name or alias can be meant by."""

_YAML = (".yaml", ".yml")
_FILES = (".json", ".gguf", ".safetensors")
_CONFIG = "config.json"
_QUANTIZATION = "hf_quant_config.json"
_GGUF = b"GGUF"
_HUB = "hf:"


def load_model(
    source: str,
    *,
    kind: SourceKind | None = None,
    stdin: BinaryIO | None = None,
    folders: Sequence[Path] = (),
    weights: bool = False,
) -> ModelSpec:
    """Return the model that `source` names.

    Args:
        source: a preset's name or alias; the path of a preset file, a config.json, its folder or
            a GGUF file; `hf:ORG/NAME[@revision]`; or `-` for a preset or config.json on stdin.
        kind: read it as this, whatever its spelling.
        stdin: the stream to read for `-`; the process's own when None. It is not closed.
        folders: folders of presets that are searched before those that come with kvcalc.
        weights: read safetensors headers as well, beside a config.json or on the Hub (a request
            or two a shard), so that `size` holds the checkpoint's own bytes. Where they cannot be
            read a note says why, and nothing fails. A GGUF file's are read always.

    Raises:
        InvalidValueError: a source that is not text.
        UsageError: a preset and a path have this spelling.
        UnknownNameError: neither has; or the file's architecture is not known.
        UnsupportedError: a model that kvcalc knows and does not model.
        InputError: the file is missing, unreadable or has a fault.
        UnavailableError: the Hub, or the extra that asks it, is not there.
    """
    if not isinstance(source, str):
        raise InvalidValueError(
            f"a model's source is {'None' if source is None else f'a {type(source).__name__}'},"
            " not text",
            hint="give a preset's name, a path (a Path as str(path)) or hf:ORG/NAME",
        )
    if kind == "hf" or (kind is None and source.startswith(_HUB)):
        return _from_hub(source, weights=weights)
    if source == "-":
        return _from_stdin(stdin)
    if kind is not None or _is_path(source):
        return _with_checkpoint(_read_path(source, kind), source, weights=weights)
    if not _exists(source):
        return _read_name(source, folders).spec
    try:
        preset = load_model_preset(source, folders)
    except UnknownNameError:
        return _with_checkpoint(_read_path(source, None), source, weights=weights)
    raise _both(source, preset)


def _is_path(source: str) -> bool:
    """Whether a source can only be a path: by how it begins, or by its ending."""
    ending = os.path.splitext(source)[1].lower()
    return bool(_EXPLICIT.match(source)) or ending in _YAML or ending in _FILES


def _exists(source: str) -> bool:
    try:
        return os.path.lexists(source)
    except (OSError, ValueError):  # a NUL, or a name longer than any file's
        return False


def _read_path(path: str, kind: SourceKind | None) -> ModelSpec:
    """Read a model from a path by what it is."""
    ending = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        return _read_folder(path)
    if kind == "gguf" or ending == ".gguf":
        from kvcalc.models.gguf import read_gguf  # only GGUF files need it

        return msgspec.structs.replace(read_gguf(path).spec, origin=printable(path))
    if ending == ".safetensors":
        raise InputError(
            "safetensors files hold weights, not the model's shape",
            hint=f"give the {_CONFIG} beside them, or its folder",
            where=printable(path),
        )
    if kind == "config" or ending == ".json":
        return _from_file(path)
    if ending not in _YAML and _is_gguf(path):
        return _read_path(path, "gguf")
    return _from_text(read_text(path), path)


def _is_gguf(path: str) -> bool:
    """Whether a file without a telling name begins as GGUF files do; a pipe is not looked into."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(_GGUF)) == _GGUF
    except (OSError, ValueError):  # told when it is read
        return False


def _from_text(text: str, path: str) -> ModelSpec:
    """Read a text that no ending tells about: JSON is a config, all else a preset."""
    if text.lstrip().startswith("{"):
        from kvcalc.models.json_documents import read_json

        return _from_config(read_json(text, printable(path)), path)
    return model_from_document(read_document(text, printable(path))).spec


def _read_folder(path: str) -> ModelSpec:
    config = os.path.join(path, _CONFIG)
    if os.path.isfile(config):
        return _from_file(config)
    try:
        files = sorted(name for name in os.listdir(path) if name.lower().endswith(".gguf"))
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", hint="check the path", where=printable(path)
        ) from None
    if len(files) == 1:
        return _read_path(os.path.join(path, files[0]), "gguf")
    raise InputError(
        f"the folder holds no {_CONFIG}" + (f" and {len(files)} GGUF files" if files else ""),
        hint="name the file that describes the model",
        where=printable(path),
    )


def _with_checkpoint(spec: ModelSpec, path: str, *, weights: bool) -> ModelSpec:
    """Return a model with the tensors that lie in its folder, if there are any."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    is_config = os.path.isdir(path) or os.path.basename(path) == _CONFIG
    if not weights or not is_config or not os.path.isfile(os.path.join(folder, _CONFIG)):
        return spec
    from kvcalc.models.weights import read_safetensors, stated_bytes, with_stated, with_weights

    try:
        return with_weights(spec, read_safetensors(folder), "the folder's safetensors headers")
    except KvcalcError as error:
        note = f"weights are not read from the folder: {error.message}"
    try:
        stated = stated_bytes(folder)
    except KvcalcError:
        stated = None  # its fault is what the headers failed by
    if stated is not None:
        size, name = stated
        spec = with_stated(spec, size, f"total_size of {name}")
    return msgspec.structs.replace(spec, notes=(*spec.notes, note))


def _from_file(path: str) -> ModelSpec:
    from kvcalc.models.json_documents import read_json_file  # presets do without it

    config = read_json_file(path)
    beside = os.path.join(os.path.dirname(path), _QUANTIZATION)
    if os.path.basename(path) == _CONFIG and _is_unquantised(config) and os.path.isfile(beside):
        config = _with_quantization(config, read_json_file(beside))
    found = _from_config(config, path)
    if os.path.basename(path) != _CONFIG:
        return found
    folder = printable(os.path.dirname(path) or ".")  # which engines are given, not the file in it
    return msgspec.structs.replace(found, origin=folder)


def _is_unquantised(config: dict[str, Any]) -> bool:
    return not any(config.get(key) for key in ("quantization_config", "compression_config"))


def _with_quantization(config: dict[str, Any], beside: dict[str, Any]) -> dict[str, Any]:
    """Return a config with what ModelOpt wrote into a file beside it.

    Read where the config itself says nothing, as vLLM reads it (transformers_utils/config.py,
    get_config; config/model.py, _parse_quant_hf_config names the method by the producer).
    """
    return {**config, "quantization_config": {"quant_method": "modelopt", **beside}}


def _from_config(config: dict[str, Any], path: str) -> ModelSpec:
    from kvcalc.models.hf_config import read_config

    where = printable(path)
    stem = Path(path).stem
    # A config.json is called after its folder, as checkpoints are kept.
    name = Path(path).resolve().parent.name if Path(path).name == _CONFIG else stem
    # A file's name may hold what no output can: bytes that are not UTF-8, a line break, an escape.
    return read_config(_kept(config, where), where, printable(name or stem))


def _kept(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a config, refusing JSON files that are something else of a checkpoint."""
    if "weight_map" in config:
        raise InputError(
            "this is an index of weights, not a config", hint=f"give {_CONFIG}", where=where
        )
    return config


def _from_stdin(stdin: BinaryIO | None) -> ModelSpec:
    return _from_text(read_stream(stdin), "stdin")


def _from_hub(source: str, *, weights: bool) -> ModelSpec:
    from kvcalc.models.hf_config import read_config
    from kvcalc.models.hub import fetch_model_files  # brings threads and URLs
    from kvcalc.models.json_documents import read_json

    notes: tuple[str, ...] = ()
    try:
        files = fetch_model_files(source, weights=weights)
    except KvcalcError as error:
        if not weights:
            raise
        files = fetch_model_files(source, weights=False)  # fails as well where it is not weights
        notes = (f"weights unknown: {error.message}",)
    where = f"{_HUB}{files.repository}"
    config = read_json(files.config_text, where)
    if files.quantization_text and _is_unquantised(config):
        config = _with_quantization(config, read_json(files.quantization_text, where))
    spec = read_config(config, where, files.repository.rsplit("/", 1)[-1])
    if files.weights is not None:
        from kvcalc.models.weights import with_weights

        spec = with_weights(spec, files.weights, f"safetensors headers of {files.repository}")
    spec = msgspec.structs.replace(
        spec, notes=(*spec.notes, *files.notes, *notes), origin=files.repository
    )
    origin = f"read from {files.repository} at {files.revision}"
    return msgspec.structs.replace(
        spec, notes=(*spec.notes, origin + (", in the local cache" if files.cached else ""))
    )


def _read_name(source: str, folders: Sequence[Path]) -> ModelPreset:
    try:
        return load_model_preset(source, folders)
    except UnknownNameError as error:
        if "/" not in source and "\\" not in source:
            raise
        # It may have been meant as a path or a repository: ORG/NAME and FOLDER/FILE look alike.
        hint = f"no file has this path either; {_HUB}{source} asks the Hub; {error.hint}"
        raise UnknownNameError("model preset", error.name, error.suggestions, hint=hint) from None


def _both(source: str, preset: ModelPreset) -> KvcalcError:
    spellings = preset.names
    other = next((s for s in spellings if not _exists(s)), None)
    for_preset = f"{other} for the preset" if other else "another folder for the preset"
    return UsageError(
        f"{source} is a preset and also a path here",
        hint=f"./{source} for the path, {for_preset}",
    )
