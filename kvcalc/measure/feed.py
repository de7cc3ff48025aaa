"""A file or stream read forward in chunks, with a limit, so that no reader holds gigabytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import format_bytes

__all__ = ["Feed", "file_name", "opened", "read_small"]

_CHUNK = 2**20


class Feed:
    """The bytes of a stream from a position on.

    Args:
        stream: what is read, to its end or to the limit.
        where: how errors name it.
        limit: bytes that are read at most.
    """

    __slots__ = ("_limit", "_stream", "_where", "base", "data", "ended", "position")

    def __init__(self, stream: BinaryIO, where: str, limit: int) -> None:
        self._stream = stream
        self._where = where
        self._limit = limit
        self.data = b""
        self.base = 0
        self.position = 0
        self.ended = False

    @property
    def offset(self) -> int:
        """Bytes before the position, from the beginning of the stream."""
        return self.base + self.position

    def need(self, count: int) -> bool:
        """Read on until `count` bytes lie ahead; False where the stream ends before.

        Raises:
            InputError: more than the limit, or unreadable.
        """
        while len(self.data) - self.position < count and not self.ended:
            try:
                part = self._stream.read(max(_CHUNK, count))
            except (OSError, ValueError) as error:
                reason = printable(getattr(error, "strerror", None) or str(error))
                message = f"cannot be read: {reason}"
                raise InputError(message, hint="check the path", where=self._where) from None
            self.base += self.position
            self.data = self.data[self.position :] + part
            self.position = 0
            self.ended = not part
            if self.base + len(self.data) > self._limit:
                raise InputError(
                    f"larger than {format_bytes(self._limit)}",
                    hint="record less history: it is what makes such files large",
                    where=self._where,
                )
        return len(self.data) - self.position >= count

    def take(self, count: int) -> bytes | None:
        """Return the next `count` bytes and move behind them; None where the stream ends before."""
        if len(self.data) - self.position < count and not self.need(count):
            return None
        start = self.position
        self.position = start + count
        return self.data[start : self.position]


def file_name(source: str) -> str:
    """Return how errors name a file, or stdin for `-`."""
    return "stdin" if source == "-" else printable(source)


@contextmanager
def opened(source: str, limit: int, stdin: BinaryIO | None = None) -> Iterator[Feed]:
    """Open a file, or stdin for `-`.

    Args:
        source: a path, or `-`.
        limit: bytes that are read at most.
        stdin: what `-` stands for; the process's own when None.

    Raises:
        InputError: missing, a directory, unreadable, no stdin.
    """
    where = file_name(source)
    if source == "-":
        stream = stdin if stdin is not None else getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise InputError("there is no stdin to read", hint="name a file", where=where)
        yield Feed(stream, where, limit)
        return
    if os.path.isdir(source):  # Windows says "permission denied" when a directory is opened
        raise InputError("is a directory", hint="name a file in it", where=where)
    try:
        file = open(source, "rb")  # noqa: SIM115 - closed below; an error inside is not this one
    except FileNotFoundError:
        raise InputError("no such file", hint="check the path", where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise InputError(f"cannot be read: {reason}", hint="check the path", where=where) from None
    with file:
        yield Feed(file, where, limit)


def read_small(source: str, limit: int, stdin: BinaryIO | None = None) -> str:
    """Read a text of at most `limit` bytes; what is not UTF-8 in it is shown as such.

    Raises:
        InputError: missing, unreadable, larger, or another kind of file.
    """
    with opened(source, limit, stdin) as feed:
        feed.need(limit + 1)
        data = feed.data
    where = file_name(source)
    for magic, what in _FOREIGN.items():
        if data.startswith(magic):
            raise InputError(f"this is {what}", hint="give plain text", where=where)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


_FOREIGN = {
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"\x80": "a pickle",
    b"\x28\xb5\x2f\xfd": "a zstd file",
}
