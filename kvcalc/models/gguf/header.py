"""A GGUF header: magic, version, byte order, key-values, tensor infos.

llama.cpp b11434, `ggml/src/gguf.cpp` (gguf_init_from_reader). Versions 2 and 3 are laid out alike;
a big-endian file has every number byte-swapped, its version too.
"""

from __future__ import annotations

from typing import BinaryIO, Literal, NamedTuple

from kvcalc.models.gguf.faults import broken
from kvcalc.models.gguf.metadata import Entry, read_metadata
from kvcalc.models.gguf.tensors import Tensors, read_tensors
from kvcalc.models.gguf.window import ByteWindow

__all__ = ["Header", "read_header"]

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
