"""A forward reader over a large file: a window of it in memory, no step beyond its end.

Every length in the file is compared with the bytes that are left before anything is read or made
of it, so a length that lies costs nothing. Plain reads, not a memory map: a map of a file that
shrinks meanwhile ends the process.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Literal

from kvcalc.models.gguf.faults import broken
from kvcalc.models.text import printable

__all__ = ["MAX_STRINGS", "ByteOrder", "ByteWindow"]

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
