"""A file, or stdin, read up to a limit, so that no reader holds gigabytes."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from kvcalc.core.errors import InputError, printable
from kvcalc.core.units import format_bytes

__all__ = ["file_name", "read_small", "read_up_to"]


def file_name(source: str) -> str:
    """Return how errors name a file, or stdin for `-`."""
    return "stdin" if source == "-" else printable(source)


def read_up_to(source: str, most: int, stdin: BinaryIO | None = None) -> bytes:
    """Return the first `most` bytes of a file, or of stdin for `-`."""
    where = file_name(source)
    if source != "-" and os.path.isdir(source):  # Windows says "permission denied" of a directory
        raise InputError("is a directory", hint="name a file in it", where=where)
    try:
        if source != "-":
            with open(source, "rb") as file:
                return file.read(most)
        stream = stdin if stdin is not None else getattr(sys.stdin, "buffer", None)
        if stream is None:
            raise InputError("there is no stdin to read", hint="name a file", where=where)
        return stream.read(most)
    except FileNotFoundError:
        raise InputError("no such file", hint="check the path", where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = printable(getattr(error, "strerror", None) or str(error))
        raise InputError(f"cannot be read: {reason}", hint="check the path", where=where) from None


def read_small(source: str, limit: int, stdin: BinaryIO | None = None) -> str:
    """Read a text of at most `limit` bytes; what is not UTF-8 in it is shown as such."""
    data = read_up_to(source, limit + 1, stdin)
    where = file_name(source)
    if len(data) > limit:
        raise InputError(
            f"larger than {format_bytes(limit)}",
            hint="record less history: it is what makes such files large",
            where=where,
        )
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
