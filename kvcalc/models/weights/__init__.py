"""Exact weight bytes from safetensors headers; no tensor's data is read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvcalc.core.errors import InputError
from kvcalc.models.json_documents import read_json_file
from kvcalc.models.text import printable, shown
from kvcalc.models.weights.header import (
    INDEX_NAME,
    MAX_INDEX_BYTES,
    MAX_TENSORS,
    SINGLE_NAME,
    ShardIndex,
    Tensor,
    read_header,
    read_index,
    total_size,
)
from kvcalc.models.weights.summary import Weights, gather, summarise, with_stated, with_weights

__all__ = [
    "ShardIndex",
    "Tensor",
    "Weights",
    "gather",
    "read_header",
    "read_index",
    "read_safetensors",
    "stated_bytes",
    "summarise",
    "with_stated",
    "with_weights",
]


# Checkpoints on disk: one file, an index with its shards, or the folder that holds them.

_ENDING = ".safetensors"
_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5,6})-of-(?P<count>\d{5,6})\.safetensors", re.ASCII)
_WHAT = "give a .safetensors file, its folder, or model.safetensors.index.json"


def read_safetensors(path: str | os.PathLike[str]) -> Weights:
    """Read what the weights of a checkpoint take, from headers alone.

    Args:
        path: a .safetensors file, an index of shards (`*.safetensors.index.json`), or a folder
            with either. In a folder the index counts, then `model.safetensors`, then shards
            numbered `-00001-of-0000N`, then a file that is alone.

    Raises:
        InputError: missing, unreadable, damaged; a shard missing or given alone; or a folder
            with several checkpoints, or none.
    """
    given = os.fspath(path)
    if os.path.isdir(given):
        return _read_folder(given)
    if given.endswith(".json"):
        return _read_indexed(given)
    part = _PART.fullmatch(os.path.basename(given))
    if part and int(part["count"]) > 1 and os.path.exists(given):
        message = f"this is shard {int(part['number'])} of {int(part['count'])}, not the checkpoint"
        hint = "give the folder, or the index of the shards"
        raise InputError(message, hint=hint, where=printable(given))
    return summarise(_read_file(given), shards=1)


_INDEXES = (INDEX_NAME, "pytorch_model.bin.index.json")


def stated_bytes(folder: str | os.PathLike[str]) -> tuple[int, str] | None:
    """Return what an index in a folder says that all tensors take, and its name; None for nothing.

    For a folder whose shards are not there, or are no safetensors files.

    Raises:
        InputError: an index that cannot be read.
    """
    for name in _INDEXES:
        path = os.path.join(os.fspath(folder), name)
        if os.path.isfile(path):
            total = _index(path).total_size if name == INDEX_NAME else _total_of(path)
            if total:
                return total, name
    return None


def _total_of(path: str) -> int | None:
    """Return the total of an index whose files are not safetensors'."""
    value = read_json_file(path, max_characters=MAX_INDEX_BYTES, max_values=MAX_TENSORS)
    return total_size(value.get("metadata"))[0]


def _read_folder(folder: str) -> Weights:
    where = printable(folder)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(_ENDING))
    except OSError as error:
        raise _unreadable(error, where) from None
    index, single = os.path.join(folder, INDEX_NAME), os.path.join(folder, SINGLE_NAME)
    if os.path.exists(index):
        found = _index(index)
        if SINGLE_NAME in names and SINGLE_NAME not in found.shards():
            # transformers takes the single file, vLLM the shards.
            message = f"holds {SINGLE_NAME} and also {INDEX_NAME} for other files"
            hint = "give the path of the one that counts"
            raise InputError(message, hint=hint, where=where)
        return _gathered(index, found)
    if SINGLE_NAME in names:
        return read_safetensors(single)
    parts = [part for part in map(_PART.fullmatch, names) if part]
    if parts:
        return _read_numbered(folder, parts)
    if len(names) == 1:
        return read_safetensors(os.path.join(folder, names[0]))
    if not names:
        raise InputError("the folder holds no .safetensors file", hint=_WHAT, where=where)
    listed = " and ".join(shown(name) for name in names[:2])
    message = f"the folder holds {len(names)} .safetensors files and no index ({listed}, ...)"
    raise InputError(message, hint="give the path of one of them", where=where)


def _read_numbered(folder: str, parts: list[re.Match[str]]) -> Weights:
    """Read shards that no index lists, if they are one whole set."""
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for part in parts:
        sets.setdefault((part["name"], int(part["count"])), {})[int(part["number"])] = part[0]
    where = printable(folder)
    if len(sets) > 1:
        message = f"the folder holds {len(sets)} sets of shards and no index"
        raise InputError(message, hint="keep one set in the folder", where=where)
    ((_, count), found), *_ = sets.items()
    missing = next((n for n in range(1, count + 1) if n not in found), None)
    if missing is not None or len(found) != count:
        message = f"{len(found)} of {count} shards are there; number {missing or 0} is missing"
        raise InputError(message, hint="download the whole checkpoint", where=where)
    tensors = [t for n in sorted(found) for t in _read_file(os.path.join(folder, found[n]))]
    names_seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in names_seen:
            message = f"two shards hold a tensor {shown(tensor.name, 80)}"
            raise InputError(message, hint="download the checkpoint's index too", where=where)
        names_seen.add(tensor.name)
    return summarise(tensors, shards=count, notes=("the shards have no index",))


def _read_indexed(path: str) -> Weights:
    if not os.path.basename(path).endswith(".safetensors.index.json"):
        raise InputError("not an index of safetensors files", hint=_WHAT, where=printable(path))
    return _gathered(path, _index(path))


def _index(path: str) -> ShardIndex:
    where = printable(path)
    try:
        with Path(path).open("rb") as stream:
            return read_index(stream.read(MAX_INDEX_BYTES + 1), where)
    except (OSError, ValueError) as error:
        raise _unreadable(error, where) from None


def _gathered(path: str, index: ShardIndex) -> Weights:
    folder, where = os.path.dirname(path), printable(path)
    shards: dict[str, tuple[Tensor, ...]] = {}
    for shard in index.shards():
        file = os.path.join(folder, shard)
        if not os.path.exists(file):
            absent = [name for name in index.shards() if not _exists(folder, name)]
            message = f"{len(absent)} of {len(index.shards())} shards are missing: {absent[0]}"
            message += ", ..." if len(absent) > 1 else ""
            raise InputError(message, hint="download the whole checkpoint", where=where)
        shards[shard] = _read_file(file)
    tensors, notes = gather(index, shards, where)
    return summarise(tensors, shards=len(shards), stated_bytes=index.total_size, notes=notes)


def _exists(folder: str, name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def _read_file(path: str) -> tuple[Tensor, ...]:
    where = printable(path)
    if os.path.isdir(path):  # Windows says "permission denied" when a directory is opened
        raise InputError("is a directory", hint=_WHAT, where=where)
    try:
        with Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size

            def read(offset: int, count: int) -> bytes:
                stream.seek(offset)
                return stream.read(count)

            return read_header(read, size, where)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(error, where) from None


def _unreadable(error: Exception, where: str) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", hint=_WHAT, where=where)
    if isinstance(error, PermissionError):
        return InputError("permission denied", hint="make the file readable", where=where)
    reason = printable(getattr(error, "strerror", None) or str(error))
    return InputError(f"cannot be read: {reason}", hint=_WHAT, where=where)
