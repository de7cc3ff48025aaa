"""The tensor infos of a GGUF header: what the weights take, in all and by layer."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from kvcalc.core.weight_tensors import WeightTensor
from kvcalc.models.gguf.faults import broken
from kvcalc.models.gguf.window import ByteWindow
from kvcalc.models.text import shown

__all__ = ["GGML_TYPES", "Tensors", "read_tensors", "tensor_bytes"]


_MAX_TENSORS = 200_000
_MAX_NAME = 1024  # bytes; ggml itself keeps 63
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_SMALLEST_INFO = 8 + 4 + 4 + 8
_LAYER = re.compile(rb"blk\.([0-9]{1,4})\.")
_NEXTN = b"nextn.eh_proj.weight"


class Tensors(NamedTuple):
    """What the tensors of a file take.

    Attributes:
        described: tensors that the file describes.
        total: bytes of those whose type is known.
        by_layer: bytes of those, by the layer in their name (`blk.7.`).
        unknown: numbers of types that are not known -> tensors of that type.
        drafting: layers that hold the projection of a NextN (multi-token-prediction) head.
        end: bytes of the data section that the tensors reach into.
        known: the tensors whose type is known, in the order of the file.
    """

    described: int = 0
    total: int = 0
    by_layer: dict[int, int] = {}
    unknown: dict[int, int] = {}
    drafting: frozenset[int] = frozenset()
    end: int = 0
    known: tuple[WeightTensor, ...] = ()

    def joined(self, other: Tensors) -> Tensors:
        """Return the tensors of two files of one model together."""
        layers, unknown = dict(self.by_layer), dict(self.unknown)
        for layer, size in other.by_layer.items():
            layers[layer] = layers.get(layer, 0) + size
        for type_, tensors in other.unknown.items():
            unknown[type_] = unknown.get(type_, 0) + tensors
        drafting = self.drafting | other.drafting
        described, total = self.described + other.described, self.total + other.total
        known = (*self.known, *other.known)
        return Tensors(described, total, layers, unknown, drafting, known=known)


def read_tensors(window: ByteWindow, count: int) -> Tensors:
    """Read `count` tensor infos.

    Raises:
        InputError: more tensors than any model has, a name or shape that ggml cannot hold, rows
            that are no whole blocks, or a length beyond the end of the file.
    """
    if count > _MAX_TENSORS:
        raise broken(window.file, f"{count} tensors; at most {_MAX_TENSORS} are read")
    window.need(count * _SMALLEST_INFO, f"{count} tensor infos")
    total = end = 0
    by_layer: dict[int, int] = {}
    unknown: dict[int, int] = {}
    drafting: set[int] = set()
    known: list[WeightTensor] = []
    for _ in range(count):
        name, type_, size, offset, row = _read_info(window)
        if size is None:
            unknown[type_] = unknown.get(type_, 0) + 1
            continue
        total += size
        end = max(end, offset + size)
        known.append(
            WeightTensor(
                name=name.decode("utf-8", "replace"),
                bytes=size,
                row=row,
                block=GGML_TYPES[type_].elements,
                block_bytes=GGML_TYPES[type_].bytes,
            )
        )
        if match := _LAYER.match(name):
            layer = int(match[1])
            by_layer[layer] = by_layer.get(layer, 0) + size
            if name.endswith(_NEXTN):
                drafting.add(layer)
    return Tensors(count, total, by_layer, unknown, frozenset(drafting), end, tuple(known))


def _read_info(window: ByteWindow) -> tuple[bytes, int, int | None, int, int]:
    """Return a tensor's name, type, bytes (None: type not known), offset and innermost length."""
    length = window.number("Q", "the length of a tensor's name")
    if length > _MAX_NAME:
        raise broken(window.file, f"a tensor's name of {length} bytes")
    name = window.take(length, "a tensor's name")
    dimensions = window.number("I", "a tensor's dimensions")
    if dimensions > _MAX_DIMENSIONS:
        tensor = shown(name.decode("utf-8", "replace"))
        raise broken(window.file, f"the tensor {tensor} has {dimensions} dimensions")
    form = struct.Struct(f"{window.order}{dimensions}QIQ")
    *shape, type_, offset = form.unpack(window.take(form.size, "a tensor's shape"))
    size = tensor_bytes(type_, tuple(shape))
    if size is None and type_ in GGML_TYPES:
        tensor = shown(name.decode("utf-8", "replace"))
        known = GGML_TYPES[type_]
        raise broken(
            window.file,
            f"the tensor {tensor} of type {known.name} has rows of {shape[0] if shape else 1},"
            f" not whole blocks of {known.elements}",
        )
    return name, type_, size, offset, shape[0] if shape else 1


# The types of tensors in GGUF files: how many elements a block holds, and its bytes.
#
# llama.cpp b11434: `ggml/include/ggml.h` (enum ggml_type) and the block structures of
# `ggml/src/ggml-common.h`.


class GgmlType(NamedTuple):
    """A tensor type: `elements` elements become `bytes` bytes."""

    name: str
    elements: int
    bytes: int


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36),
    10: GgmlType("q2_k", 256, 84),
    11: GgmlType("q3_k", 256, 110),
    12: GgmlType("q4_k", 256, 144),
    13: GgmlType("q5_k", 256, 176),
    14: GgmlType("q6_k", 256, 210),
    15: GgmlType("q8_k", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
    42: GgmlType("q2_0", 64, 18),
}
"""By the number that files hold. Gaps are types that llama.cpp has removed."""


def tensor_bytes(type_: int, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor; None where the type is not known or no row is whole blocks.

    >>> tensor_bytes(8, (4096, 2))
    8704
    """
    known = GGML_TYPES.get(type_)
    row, *others = shape or (1,)
    if known is None or row % known.elements:
        return None
    total = row // known.elements * known.bytes
    for size in others:
        total *= size
    return total
