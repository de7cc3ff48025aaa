"""A GGUF header: magic, version, byte order, key-values, tensor infos.

llama.cpp b11434, `ggml/src/gguf.cpp` (gguf_init_from_reader), `ggml/include/ggml.h` (enum
ggml_type), `ggml/src/ggml-common.h` (blocks). Versions 2 and 3 are laid out alike; a big-endian
file has every number byte-swapped, its version too. Every length in the file is compared with the
bytes that are left before anything is read, so a wrong length costs nothing. Plain reads, not a
memory map: a map of a file that shrinks meanwhile ends the process.
"""

from __future__ import annotations

import re
import struct
from typing import BinaryIO, Literal, NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.core.size import WeightTensor
from kvcalc.models.text import printable, shown

__all__ = [
    "GGML_TYPES",
    "MAX_LIST",
    "MAX_STRINGS",
    "ByteOrder",
    "ByteWindow",
    "Entry",
    "Header",
    "Skipped",
    "Tensors",
    "broken",
    "read_header",
    "read_metadata",
    "read_tensors",
    "tensor_bytes",
]


_DAMAGED = "the file is damaged or was not downloaded whole: get it again"


def broken(file: str, message: str, hint: str = _DAMAGED) -> InputError:
    """Return the error of a file whose bytes are not a GGUF header, or hold a senseless value."""
    return InputError(message, hint=hint, where=file)


ByteOrder = Literal["<", ">"]
"""As `struct` spells little and big endian."""

MAX_STRINGS = 4_000_000
"""Strings that are stepped over in one file; the largest vocabularies have some 300,000 tokens and
as many merges. Each must be visited, as only its length says where the next one begins."""

_WINDOW = 2**18
_LENGTH_BYTES = 8


class ByteWindow:
    """A position in a file of known size, and the bytes around it.

    Attributes:
        file: how errors name the file.
        size: bytes of the file.
        order: the byte order of numbers; little endian until it is set.
    """

    def __init__(self, stream: BinaryIO, size: int, file: str) -> None:
        self.file = file
        self.size = size
        self.order: ByteOrder = "<"
        self._stream = stream
        self._base = 0  # where the buffer begins in the file
        self._buffer = b""
        self._at = 0  # within the buffer, or behind it after a skip
        self._strings = MAX_STRINGS

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._base + self._at

    @property
    def remaining(self) -> int:
        """Bytes up to the end of the file."""
        return self.size - self.position

    def need(self, count: int, what: str) -> None:
        """Check that `count` more bytes are there.

        Raises:
            InputError: they are not; `what` names what they were for.
        """
        if count > self.remaining:
            raise broken(
                self.file,
                f"{what} of {count} bytes at byte {self.position}, and {self.remaining} are left",
            )

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes.

        Raises:
            InputError: there are not so many, or they cannot be read.
        """
        end = self._at + count
        if end > len(self._buffer):
            self.need(count, what)
            self._load(count)
            end = count
        part = self._buffer[self._at : end]
        self._at = end
        return part

    def skip(self, count: int, what: str) -> None:
        """Step over `count` bytes.

        Raises:
            InputError: there are not so many.
        """
        self.need(count, what)
        self._at += count

    def number(self, code: str, what: str) -> int:
        """Return the next number; `code` is the letter that `struct` has for its type.

        Raises:
            InputError: the file ends before.
        """
        form = self.order + code
        value = struct.unpack(form, self.take(struct.calcsize(form), what))[0]
        return int(value)

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, each with its length in front.

        Raises:
            InputError: more of them than any model has, or the file ends before.
        """
        self.need(count * _LENGTH_BYTES, what)
        self._strings -= count
        if self._strings < 0:
            hint = "no model has so many tokens"
            raise broken(self.file, f"more than {MAX_STRINGS} strings", hint)
        length = struct.Struct(self.order + "Q").unpack_from
        while count:
            if self._at + _LENGTH_BYTES > len(self._buffer):
                self.need(_LENGTH_BYTES, what)
                self._load(_LENGTH_BYTES)
            buffer, at, last = self._buffer, self._at, len(self._buffer) - _LENGTH_BYTES
            while count and at <= last:
                at += _LENGTH_BYTES + length(buffer, at)[0]
                count -= 1
            self.skip(at - self._at, what)

    def _load(self, count: int) -> None:
        """Fill the buffer from the position on, with at least `count` bytes."""
        self._base, self._at = self.position, 0
        try:
            self._stream.seek(self._base)
            self._buffer = self._stream.read(max(count, _WINDOW))
        except OSError as error:
            reason = printable(error.strerror or str(error))
            raise broken(self.file, f"cannot be read: {reason}", "check the disk") from None
        if len(self._buffer) < count:
            raise broken(self.file, "the file became shorter while it was read")


MAX_LIST = 4096
"""Numbers in a list that is kept; llama.cpp's lists by layer hold at most 512."""

_MAX_KEYS = 65_536
_MAX_TEXT = 256  # bytes of a key or text that is kept
_MAX_KEPT = 65_536  # numbers in all lists together
_MAX_DEPTH = 4  # lists in lists; llama.cpp itself reads none
_MAX_NESTED = 100_000

_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF type -> letter of `struct`."""

_WHOLE = frozenset("BbHhIiQq?")
_STRING, _LIST = 8, 9
_SMALLEST_PAIR = 8 + 1 + 4 + 1
_LIST_HEAD = 4 + 8


class Skipped(NamedTuple):
    """A value that was not kept: a long text, or a list of `length` entries."""

    what: str
    length: int


Entry = bool | int | float | str | tuple[int, ...] | Skipped


def read_metadata(window: ByteWindow, count: int) -> dict[str, Entry]:
    """Read `count` key-values.

    Raises:
        InputError: more keys than any model has, a key that stands twice or is empty, a type that
            GGUF does not have, lists nested too deep, or a length beyond the end of the file.
    """
    if count > _MAX_KEYS:
        raise broken(window.file, f"{count} metadata keys; at most {_MAX_KEYS} are read")
    window.need(count * _SMALLEST_PAIR, f"{count} metadata keys")
    return _Reader(window).read(count)


class _Reader:
    def __init__(self, window: ByteWindow) -> None:
        self._window = window
        self._kept = _MAX_KEPT
        self._nested = _MAX_NESTED

    def read(self, count: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for _ in range(count):
            key = self._text("a key")
            entry = self._value(self._window.number("I", "a value type"), key)
            if not isinstance(key, str):
                continue  # far longer than the keys that anybody asks for
            if not key or key in entries:
                fault = f"the key {shown(key)} stands twice" if key else "a key without a name"
                raise broken(self._window.file, fault, "convert the model anew")
            entries[key] = entry
        return entries

    def _text(self, what: str) -> str | Skipped:
        length = self._window.number("Q", f"the length of {what}")
        if length > _MAX_TEXT:
            self._window.skip(length, what)
            return Skipped("a text", length)
        return self._window.take(length, what).decode("utf-8", "replace")

    def _value(self, type_: int, key: object) -> Entry:
        if code := _NUMBERS.get(type_):
            form = struct.Struct(self._window.order + code)
            value: bool | int | float = form.unpack(self._window.take(form.size, "a number"))[0]
            return value
        if type_ == _STRING:
            return self._text("a text")
        if type_ == _LIST:
            return self._list(key, 1)
        raise self._unknown_type(type_, key)

    def _list(self, key: object, depth: int) -> tuple[int, ...] | Skipped:
        what = f"the list {shown(key)}" if isinstance(key, str) else "a list"
        type_ = self._window.number("I", what)
        count = self._window.number("Q", what)
        if code := _NUMBERS.get(type_):
            size = count * struct.calcsize(self._window.order + code)
            if depth > 1 or code not in _WHOLE or count > min(MAX_LIST, self._kept):
                self._window.skip(size, what)
                return Skipped("a list", count)
            self._kept -= count
            form = f"{self._window.order}{count}{code}"
            return tuple(int(n) for n in struct.unpack(form, self._window.take(size, what)))
        if type_ == _STRING:
            self._window.skip_strings(count, what)
        elif type_ == _LIST:
            self._lists(count, what, key, depth)
        else:
            raise self._unknown_type(type_, key)
        return Skipped("a list", count)

    def _lists(self, count: int, what: str, key: object, depth: int) -> None:
        self._window.need(count * _LIST_HEAD, what)
        self._nested -= count
        if depth == _MAX_DEPTH or self._nested < 0:
            hint = "llama.cpp reads no lists in lists at all"
            raise broken(self._window.file, f"{what}: too many lists in lists", hint)
        for _ in range(count):
            self._list(key, depth + 1)

    def _unknown_type(self, type_: int, key: object) -> Exception:
        named = shown(key) if isinstance(key, str) else "a long key"
        return broken(self._window.file, f"{named} has value type {type_}, which GGUF has not")


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


_MAGIC = b"GGUF"
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT


class Header(NamedTuple):
    """What the header of one file says.

    Attributes:
        version: 2 or 3.
        byte_order: of every number in the file.
        entries: the key-values, by key.
        tensors: what the tensors take.
    """

    version: int
    byte_order: Literal["little", "big"]
    entries: dict[str, Entry]
    tensors: Tensors


def read_header(stream: BinaryIO, size: int, file: str) -> Header:
    """Read the header of a GGUF file.

    Args:
        stream: the file, seekable.
        size: its bytes.
        file: how errors name it.

    Raises:
        InputError: not a GGUF file, a version that is not read, damaged, or cut short.
    """
    window = ByteWindow(stream, size, file)
    _check_magic(window)
    version = _read_version(window)
    tensors = window.number("Q", "the number of tensors")
    keys = window.number("Q", "the number of metadata keys")
    entries = read_metadata(window, keys)
    infos = read_tensors(window, tensors)
    if infos.described:
        _check_data(window, entries, infos)
    return Header(version, "little" if window.order == "<" else "big", entries, infos)


def _check_magic(window: ByteWindow) -> None:
    magic = window.take(4, "the magic of a GGUF file")
    if magic in _OLD_MAGICS:
        hint = "llama.cpp reads GGUF only: convert the model anew"
        raise broken(window.file, "this is a GGML file from before GGUF", hint)
    if magic != _MAGIC:
        raise broken(window.file, "this is not a GGUF file", "a GGUF file begins with GGUF")


def _read_version(window: ByteWindow) -> int:
    """Return the version and set the byte order that gives it."""
    raw = window.take(4, "the version")
    little, big = int.from_bytes(raw, "little"), int.from_bytes(raw, "big")
    if big < little:
        window.order = ">"
    version = min(little, big)
    if version == 1:
        hint = "llama.cpp dropped version 1 in 2023: convert the model anew"
        raise broken(window.file, "GGUF version 1 is not read, only 2 and 3", hint)
    if version not in _VERSIONS:
        hint = "newer than this kvcalc, or damaged"
        raise broken(window.file, f"GGUF version {version} is not read, only 2 and 3", hint)
    return version


def _check_data(window: ByteWindow, entries: dict[str, Entry], tensors: Tensors) -> None:
    """Check that the data of the tensors lies in the file."""
    alignment = entries.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise broken(window.file, "general.alignment is no power of two", "convert the model anew")
    start = -(-window.position // alignment) * alignment
    if start + tensors.end > window.size:
        raise broken(
            window.file,
            f"its tensors end at byte {start + tensors.end}, the file at byte {window.size}",
        )
