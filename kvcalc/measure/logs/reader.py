"""A log as numbered lines, a block at a time: however long the file or a line in it is."""

from __future__ import annotations

import codecs
import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from kvcalc.core.errors import InputError, printable

__all__ = ["LONGEST_LINE", "file_name", "lines_of"]

LONGEST_LINE = 65_536
"""Characters of a line that are read; what comes behind them is passed over."""

_BLOCK = 1 << 18
_GZIP = b"\x1f\x8b"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HINT = "give the log's file, or - to read it from stdin"


def file_name(source: str) -> str:
    """Return the name to call a log by: the file without its folder, or `stdin`."""
    return "stdin" if source == "-" else printable(os.path.basename(source) or source)


def lines_of(source: str, stdin: BinaryIO | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log with their numbers, from 1.

    A carriage return ends a piece of a line (progress bars), which keeps the line's number. Bytes
    that are no UTF-8 are replaced; UTF-16 with a mark and gzip are read too.

    Args:
        source: a path, or `-`.
        stdin: the stream for `-`; the process's own when None.

    Raises:
        InputError: missing, a directory, unreadable, or a broken gzip file.
    """
    with _opened(source, stdin) as stream:
        yield from _numbered(_texts(stream, file_name(source)))


def _numbered(texts: Iterator[str]) -> Iterator[tuple[int, str]]:
    number, rest = 1, ""
    for text in texts:
        pieces = text.split("\n")
        pieces[0] = rest + pieces[0][: max(0, LONGEST_LINE - len(rest))]
        for piece in pieces[:-1]:
            yield from _pieces(number, piece)
            number += 1
        rest = pieces[-1][:LONGEST_LINE]
    if rest:
        yield from _pieces(number, rest)


def _pieces(number: int, line: str) -> Iterator[tuple[int, str]]:
    if "\r" not in line:
        yield number, line[:LONGEST_LINE]
        return
    for piece in line[:LONGEST_LINE].split("\r"):
        if piece:
            yield number, piece


def _texts(stream: BinaryIO, file: str) -> Iterator[str]:
    try:
        block = stream.read(_BLOCK)
        encoding = next((name for mark, name in _BOMS if block.startswith(mark)), "utf-8")
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        while block:
            yield decoder.decode(block)
            block = stream.read(_BLOCK)
        yield decoder.decode(b"", final=True)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"the gzip file is damaged: {printable(str(error))[:120]}", hint=_HINT, where=file
        ) from None
    except OSError as error:
        raise _unreadable(error, file) from None


@contextmanager
def _opened(source: str, stdin: BinaryIO | None) -> Iterator[BinaryIO]:
    file = file_name(source)
    if source == "-":
        own = None if sys.stdin is None else getattr(sys.stdin, "buffer", None)
        stream = own if stdin is None else stdin
        if stream is None:
            raise InputError("there is no stdin to read", hint=_HINT, where=file)
        yield stream
        return
    try:
        with open(source, "rb") as raw:
            _refuse_device(raw, file)
            head = raw.peek(2)[:2] if hasattr(raw, "peek") else b""
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if head == _GZIP else raw
    except InputError:
        raise
    except OSError as error:
        raise _unreadable(error, file) from None
    except ValueError:  # a NUL in the path
        raise InputError("not a path", hint=_HINT, where=file) from None


def _refuse_device(raw: BinaryIO, file: str) -> None:
    """Refuse what may never end, but for a terminal."""
    if stat.S_ISCHR(os.fstat(raw.fileno()).st_mode) and not raw.isatty():
        raise InputError("a device, and no file", hint=_HINT, where=file)


def _unreadable(error: OSError, file: str) -> InputError:
    told = {FileNotFoundError: "no such file", IsADirectoryError: "is a directory"}
    return InputError(
        told.get(type(error), f"cannot be read: {printable(error.strerror or 'no reason given')}"),
        hint=_HINT,
        where=file,
    )
