"""The header of one safetensors file, and the index of a checkpoint: which file holds which tensor.

The format (huggingface/safetensors README, "Format"): eight bytes with the header's length, little
endian and at most 100,000,000; the header, a JSON object from tensor names to dtype, shape and
offsets into what follows; then the data, which the tensors cover without a gap or overlap. Every
rule here is one that the safetensors library 0.8.0 enforces, and its list of dtypes is ours; beyond
them a name that stands twice is refused, which the format forbids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvcalc.core.errors import InputError, nearest
from kvcalc.core.values import Value
from kvcalc.models.json_documents import decode_json, read_json
from kvcalc.models.text import shown

__all__ = [
    "DTYPE_BITS",
    "INDEX_NAME",
    "MAX_HEADER_BYTES",
    "MAX_INDEX_BYTES",
    "MAX_TENSORS",
    "SINGLE_NAME",
    "RangeReader",
    "ShardIndex",
    "Tensor",
    "read_header",
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


MAX_HEADER_BYTES = 100_000_000
"""What the format allows (safetensors tensor.rs, MAX_HEADER_SIZE)."""

_MAX_VALUES = 8_000_000
"""Some eight a tensor; the largest checkpoints have two hundred thousand tensors in all."""

DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one element (safetensors 0.8.0, tensor.rs, Dtype::bitsize; C64 is two 32-bit floats)."""

_PREFIX = 8
_METADATA = "__metadata__"
_MAX_INT = 2**63  # more than any file system keeps in a file
_DAMAGED = "the file is damaged or incomplete: download it again"

RangeReader = Callable[[int, int], bytes]
"""From (offset, count) to that part of a file; fewer bytes only at the file's end."""


class Tensor(NamedTuple):
    """One tensor as a header describes it.

    Attributes:
        name: as in the checkpoint.
        dtype: a key of DTYPE_BITS.
        shape: empty for a scalar.
        bytes: of its data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """The number of elements; packed formats keep several parameters in one."""
        return math.prod(self.shape)


def read_header(read: RangeReader, size: int, where: str) -> tuple[Tensor, ...]:
    """Read the header of a safetensors file.

    Args:
        read: reads a part of the file; called for its first eight bytes and for the header.
        size: bytes of the whole file.
        where: how errors name the file.

    Returns:
        The tensors in the order of their data.

    Raises:
        InputError: not a safetensors file, cut off, or a header that contradicts itself.
    """
    prefix = read(0, _PREFIX)
    if len(prefix) < _PREFIX or size < _PREFIX:
        raise InputError("too short for a safetensors file", hint=_DAMAGED, where=where)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        message = _foreign(prefix) or f"not a safetensors file: a header of {length} bytes"
        hint = f"the format allows {MAX_HEADER_BYTES} bytes; give a .safetensors file"
        raise InputError(message, hint=hint, where=where)
    data_bytes = size - _PREFIX - length
    if data_bytes < 0:
        message = f"the header says it has {length} bytes, the file has {size - _PREFIX} after it"
        raise InputError(message, hint=_DAMAGED, where=where)
    data = read(_PREFIX, length)
    if len(data) < length:
        raise InputError("the file ends inside its header", hint=_DAMAGED, where=where)
    text = decode_json(data, where, max_bytes=MAX_HEADER_BYTES)
    del data
    header = read_json(text, where, max_characters=MAX_HEADER_BYTES, max_values=_MAX_VALUES)
    return _tensors(header, data_bytes, where)


def _foreign(prefix: bytes) -> str:
    """Name a well-known kind of file by its first bytes; empty when it is none."""
    kinds = {
        b"GGUF": "this is a GGUF file",
        b"PK\x03\x04": "this is a zip file (a PyTorch .bin or .pt checkpoint?)",
        b"version ": "this is a Git LFS pointer, not the file it points to",
        b"\x80": "this is a pickle (a PyTorch .bin or .pt checkpoint?)",
    }
    return next((what for magic, what in kinds.items() if prefix.startswith(magic)), "")


def _tensors(header: dict[str, Any], data_bytes: int, where: str) -> tuple[Tensor, ...]:
    metadata = header.pop(_METADATA, None)
    if metadata is not None and not _is_text_map(metadata):
        message = f"{_METADATA} is not a mapping from text to text"
        raise InputError(message, hint=_DAMAGED, where=where)
    placed = [_tensor(name, entry, where) for name, entry in header.items()]
    placed.sort(key=lambda found: found[:2])
    at = 0
    for start, end, tensor in placed:
        if start != at:
            fault = "overlaps the one before it" if start < at else "leaves a gap before it"
            message = f"the data of {shown(tensor.name, 80)} {fault} (bytes {start} to {end})"
            raise InputError(message, hint=_DAMAGED, where=where)
        at = end
    if at != data_bytes:
        message = f"the tensors take {at} bytes, the file holds {data_bytes}"
        raise InputError(message, hint=_DAMAGED, where=where)
    return tuple(tensor for _, _, tensor in placed)


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _tensor(name: str, entry: object, where: str) -> tuple[int, int, Tensor]:
    """Return a tensor with the start and end of its data."""

    def refuse(message: str, hint: str = _DAMAGED) -> InputError:
        return InputError(f"tensor {shown(name, 80)}: {message}", hint=hint, where=where)

    if not isinstance(entry, dict):
        raise refuse("its entry is not a mapping")
    dtype, shape = entry.get("dtype"), _numbers(entry.get("shape"))
    offsets = _numbers(entry.get("data_offsets"))
    if not isinstance(dtype, str):
        raise refuse("its dtype is missing or no text")
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        close = " or ".join(nearest(dtype, DTYPE_BITS))
        hint = f"did you mean {close}?" if close else f"known: {', '.join(sorted(DTYPE_BITS))}"
        raise refuse(f"unknown dtype {shown(dtype)}", hint)
    if shape is None:
        raise refuse("its shape is not a list of whole numbers")
    if offsets is None or len(offsets) != 2:  # noqa: PLR2004 (a start and an end)
        raise refuse("its data_offsets are not two whole numbers")
    start, end = offsets
    size_in_bits = _product(bits, shape)
    if size_in_bits is None:
        raise refuse("its shape is larger than any file")
    if size_in_bits % 8:
        raise refuse(f"{size_in_bits} bits are no whole number of bytes")
    if start + size_in_bits // 8 != end:
        message = f"its shape and dtype take {size_in_bits // 8} bytes, its offsets {end - start}"
        raise refuse(message)
    return start, end, Tensor(name, dtype, shape, size_in_bits // 8)


def _product(bits: int, shape: tuple[int, ...]) -> int | None:
    """Return the bits of all elements; None, where no file has so many."""
    for dimension in shape:  # by hand: a long list of large numbers has a product of megabytes
        bits *= dimension
        if bits > 8 * _MAX_INT:
            return None
    return bits


def _numbers(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers from 0 up as a tuple; None, where it is none."""
    if type(value) is not list:
        return None
    for number in value:  # a generator in all() takes twice as long, and there are many
        if type(number) is not int or not 0 <= number < _MAX_INT:
            return None
    return tuple(value)
