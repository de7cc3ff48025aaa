"""Opening a trace: a path or stdin, plain or gzip, as blocks of whole lines of text."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol, cast

from kvcalc.core.errors import InputError
from kvcalc.workload.faults import fault, printable

__all__ = ["MAX_LINE_BYTES", "Block", "file_name", "opened", "text_blocks"]

MAX_LINE_BYTES = 16 * 2**20
"""Bytes of the longest line that is read; a decompressed one, where the file is gzip."""

Block = tuple[int, str]
"""The number of a first line, and the text of whole lines from there."""

_BLOCK_BYTES = 256 * 1024
_HEAD_BYTES = 16  # enough for every first bytes below
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip file",
    b"PAR1": "a Parquet file",
    b"\x28\xb5\x2f\xfd": "zstandard-compressed",
    b"\xfd7zXZ\0": "xz-compressed",
    b"BZh91AY&SY": "bzip2-compressed",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}
_FORMATS_HINT = "traces are CSV, TSV, JSONL or a JSON array, in UTF-8, plain or gzip"


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Rejoined:
    """A stream with the bytes that were read to look at put back in front."""

    def __init__(self, head: bytes, rest: _Readable) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        if not self._head:
            return self._rest.read(size)
        taken, self._head = self._head[:size], self._head[size:]
        return taken


def file_name(source: str) -> str:
    """Return the name to call a source by: the file without its folder, or `stdin`."""
    return "stdin" if source == "-" else printable(os.path.basename(source) or source)


@contextmanager
def opened(source: str, file: str, stdin: BinaryIO | None) -> Iterator[_Readable]:
    """Open a path, or stdin for `-`; gzip is told by its first bytes, not by its name.

    Args:
        source: the path, or `-`.
        file: how an error names it.
        stdin: the stream to read for `-`; the process's own when None. It is not closed.

    Raises:
        InputError: missing, a directory, unreadable, or no stdin.
    """
    if source == "-":
        own = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
        stream = own if stdin is None else stdin
        if stream is None:
            raise fault(file, None, "there is no stdin to read", "give the path of a trace")
        yield _decompressed(stream, file)
        return
    with _open(source, file) as stream:
        yield _decompressed(stream, file)


def _open(source: str, file: str) -> BinaryIO:
    if os.path.isdir(source):  # Windows says "permission denied" when a directory is opened
        raise fault(file, None, "is a directory", "give the path of one trace file")
    try:
        return open(source, "rb")
    except FileNotFoundError:
        raise fault(
            file, None, "no such file", "give the path of a trace, or - for stdin"
        ) from None
    except PermissionError:
        raise fault(file, None, "permission denied", "make the file readable") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(file, error) from None


def _unreadable(file: str, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return fault(file, None, f"cannot be read: {printable(reason)}", "give the path of a trace")


def _decompressed(stream: _Readable, file: str) -> _Readable:
    head = b""
    while len(head) < _HEAD_BYTES and (more := _read(stream, _HEAD_BYTES - len(head), file)):
        head += more
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise fault(file, None, f"this is {what}", _FORMATS_HINT)
    rejoined = _Rejoined(head, stream)
    # gzip asks for nothing but read() of a file object that it never seeks back in.
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=cast(BinaryIO, rejoined))
    return rejoined


def _read(stream: _Readable, size: int, file: str) -> bytes:
    try:
        return stream.read(size) or b""
    except EOFError:
        raise fault(file, None, "the gzip data is cut short", "fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        message = f"the gzip data is damaged: {printable(str(error))[:80]}"
        raise fault(file, None, message, "fetch the file again") from None
    except (OSError, ValueError) as error:  # ValueError: a stream that is closed
        raise _unreadable(file, error) from None


def text_blocks(stream: _Readable, file: str) -> Iterator[Block]:
    """Yield the stream as blocks of whole lines, a byte order mark dropped.

    Memory stays at one block and one line, however much a gzip file holds.

    Raises:
        InputError: not UTF-8, a NUL byte, a line beyond 16 MiB, a damaged or cut gzip, or a
            read that fails.
    """
    line = 1
    parts: list[bytes] = []  # of a line that has not ended yet
    held = 0
    start = True
    while chunk := _read(stream, _BLOCK_BYTES, file):
        cut = chunk.rfind(b"\n") + 1
        first_end = chunk.find(b"\n") + 1 or len(chunk)
        if held + first_end > MAX_LINE_BYTES:
            raise fault(
                file,
                line,
                f"the line is longer than {MAX_LINE_BYTES // 2**20} MiB",
                f"one request a line; {_FORMATS_HINT}",
            )
        if not cut:
            parts.append(chunk)
            held += len(chunk)
            continue
        block = b"".join([*parts, chunk[:cut]])
        parts, held = [chunk[cut:]], len(chunk) - cut
        yield line, _decoded(block, file, line, start=start)
        line += block.count(b"\n")
        start = False
    if held:
        yield line, _decoded(b"".join(parts), file, line, start=start)


def _decoded(block: bytes, file: str, line: int, *, start: bool) -> str:
    nul = block.find(b"\0")
    if nul >= 0:
        at = line + block.count(b"\n", 0, nul)
        raise fault(file, at, "a NUL byte: this is not text", _FORMATS_HINT)
    try:
        return block.decode("utf-8-sig" if start else "utf-8")
    except UnicodeDecodeError as error:
        # error.object, because the codec that drops the byte order mark counts from behind it.
        at = line + error.object.count(b"\n", 0, error.start)
        bad = error.object[error.start]
        raise fault(file, at, f"not UTF-8 text (byte 0x{bad:02x})", _FORMATS_HINT) from None
