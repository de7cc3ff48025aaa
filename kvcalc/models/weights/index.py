"""`model.safetensors.index.json`: which shard holds which tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvcalc.core.errors import InputError
from kvcalc.core.values import Value
from kvcalc.models.json_documents import decode_json, read_json
from kvcalc.models.text import shown

__all__ = [
    "INDEX_NAME",
    "MAX_INDEX_BYTES",
    "MAX_TENSORS",
    "SINGLE_NAME",
    "ShardIndex",
    "read_index",
    "total_size",
]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

MAX_INDEX_BYTES = 2**26
"""The index of a checkpoint with two hundred thousand tensors has some 25 MB."""

MAX_TENSORS = 2_000_000
_MAX_SHARDS = 10_000
# A plain name beside the index, on every system: no folder, no drive, nothing hidden.
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
_HINT = "compare it with the index as published"


class ShardIndex(Value, frozen=True, kw_only=True):
    """A checkpoint's index.

    Attributes:
        weight_map: tensor name -> the file that holds it.
        total_size: bytes of all tensors by the index's own metadata; None where it says nothing.
        notes: what is odd about it.
    """

    weight_map: dict[str, str]
    total_size: int | None = None
    notes: tuple[str, ...] = ()

    def shards(self) -> tuple[str, ...]:
        """Return the names of the files, sorted."""
        return tuple(sorted(set(self.weight_map.values())))

    def names_of(self) -> dict[str, set[str]]:
        """Return the tensors of each shard."""
        names: dict[str, set[str]] = {shard: set() for shard in self.shards()}
        for tensor, shard in self.weight_map.items():
            names[shard].add(tensor)
        return names


def read_index(data: bytes, where: str) -> ShardIndex:
    """Read an index file.

    Raises:
        InputError: not JSON, no `weight_map` from tensors to plain file names, or no tensors.
    """
    text = decode_json(data, where, max_bytes=MAX_INDEX_BYTES)
    value = read_json(text, where, max_characters=MAX_INDEX_BYTES, max_values=MAX_TENSORS)
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        message = "there is no weight_map from tensors to files"
        raise InputError(message, hint="give the *.safetensors.index.json file", where=where)
    _check_shards(weight_map.values(), where)
    total, notes = total_size(value.get("metadata"))
    return ShardIndex(weight_map=weight_map, total_size=total, notes=notes)


def _check_shards(files: Iterable[object], where: str) -> None:
    shards = set()
    for file in files:
        if not isinstance(file, str) or not (file in shards or _SHARD.fullmatch(file)):
            message = f"{shown(file, 80)} is not the name of a .safetensors file beside the index"
            raise InputError(message, hint=_HINT, where=where)
        shards.add(file)
    if len(shards) > _MAX_SHARDS:
        raise InputError(f"more than {_MAX_SHARDS} shards", hint=_HINT, where=where)


def total_size(metadata: Any) -> tuple[int | None, tuple[str, ...]]:
    """Return what the metadata says; some tools wrote it as a float."""
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if stated is None:
        return None, ()
    if isinstance(stated, float) and stated.is_integer() and 0 <= stated < 2**53:
        stated = int(stated)
    if type(stated) is int and stated >= 0:
        return stated, ()
    return None, (f"the index's total_size is {shown(stated)}, not a number of bytes",)
