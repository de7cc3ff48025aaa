"""A file or stream read forward in chunks, with a limit, so that no reader holds gigabytes."""

from __future__ import annotations

from typing import BinaryIO

from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import format_bytes

__all__ = ["Feed"]

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
