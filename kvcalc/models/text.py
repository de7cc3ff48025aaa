"""Bytes of a small file to text: read with a limit, decoded strictly, every fault with its line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO

from kvcalc.core.errors import InputError, printable

__all__ = ["MAX_BYTES", "DocumentError", "decode", "printable", "read_stream", "read_text", "shown"]

MAX_BYTES = 2**20
"""The largest preset file that is read; the longest one shipped has some 3 KiB."""

_FOREIGN = {
    b"GGUF": "a GGUF file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"PK\x03\x04": "a zip file",
    b"\x1f\x8b": "a gzip file",
}
_TEXT_HINT = "presets are YAML in UTF-8"


class DocumentError(InputError):
    """A fault at one line of a file.

    Attributes:
        line: the line, counted from 1.
    """

    def __init__(self, message: str, *, file: str, line: int, hint: str = "") -> None:
        super().__init__(message, hint=hint, where=f"{file}:{line}")
        self.line = line


def shown(value: object, width: int = 40) -> str:
    """Return a value from a file as a message repeats it: on one line, cut to `width`."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = printable(str(value))
    cut = text if len(text) <= width else text[: width - 1] + "…"
    return f"'{cut}'" if isinstance(value, str) else cut


def read_text(path: str | os.PathLike[str], where: str | None = None) -> str:
    """Read a file of at most 1 MiB as UTF-8, a byte order mark dropped.

    Args:
        path: the file.
        where: how errors name it; the path as given when None.

    Raises:
        InputError: missing, a directory, unreadable, too large, or not UTF-8 text.
    """
    file = printable(str(path)) if where is None else where
    if os.path.isdir(path):  # Windows says "permission denied" when a directory is opened
        raise InputError("is a directory", hint="give the path of a preset file", where=file)
    try:
        with Path(path).open("rb") as stream:
            return decode(stream.read(MAX_BYTES + 1), file)
    except FileNotFoundError:
        hint = "give the path of a preset file, or the name of a preset"
        raise InputError("no such file", hint=hint, where=file) from None
    except PermissionError:
        raise InputError("permission denied", hint="make the file readable", where=file) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(error, file) from None


def read_stream(stream: BinaryIO | None, where: str = "stdin") -> str:
    """Read a stream to its end as `read_text` reads a file; None is the process's stdin.

    Raises:
        InputError: no stdin, unreadable, too large, or not UTF-8 text.
    """
    if stream is None:
        stream = getattr(sys.stdin, "buffer", None)  # sys.stdin is None under pythonw
    if stream is None:
        raise InputError("there is no stdin to read", hint="give the path of a file", where=where)
    parts: list[bytes] = []
    wanted = MAX_BYTES + 1
    try:
        while wanted and (part := stream.read(wanted)):
            parts.append(part)
            wanted -= len(part)
    except (OSError, ValueError) as error:  # ValueError: a stream that is closed
        raise _unreadable(error, where) from None
    return decode(b"".join(parts), where)


def decode(data: bytes, where: str) -> str:
    """Decode UTF-8 strictly, a byte order mark dropped.

    Raises:
        InputError: larger than 1 MiB, another kind of file, a NUL byte, or bytes that are not
            UTF-8; the last two with their line.
    """
    for magic, what in _FOREIGN.items():
        if data.startswith(magic):
            raise InputError(f"this is {what}", hint=_TEXT_HINT, where=where)
    if len(data) > MAX_BYTES:
        raise InputError("larger than 1 MiB", hint="a preset is a few KiB", where=where)
    nul = data.find(b"\0")
    if nul >= 0:
        line = data.count(b"\n", 0, nul) + 1
        message = "a NUL byte: this is not text"
        raise DocumentError(message, file=where, line=line, hint=_TEXT_HINT)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark, and hands over the bytes it counts in.
        line = error.object.count(b"\n", 0, error.start) + 1
        message = f"not UTF-8 text (byte 0x{error.object[error.start]:02x})"
        raise DocumentError(message, file=where, line=line, hint=_TEXT_HINT) from None


def _unreadable(error: Exception, where: str) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    message = f"cannot be read: {printable(reason)}"
    return InputError(message, hint="give the path of a preset file", where=where)
