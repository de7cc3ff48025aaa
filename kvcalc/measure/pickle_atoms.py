"""The part of the pickle machine that reads numbers and texts, each with its limit."""

from __future__ import annotations

import struct
from codecs import escape_decode
from typing import Any, NoReturn

from kvcalc.core.errors import InputError
from kvcalc.core.units import format_bytes
from kvcalc.measure.feed import Feed

__all__ = ["I4", "MAX_HELD", "MAX_INT", "MAX_LINE", "MAX_TEXT", "U2", "U4", "U8", "Atoms"]

MAX_HELD = 64 * 2**20
"""Bytes that all values of a pickle may take, counted roughly and rather too high."""

MAX_TEXT = 2**20
"""Bytes of one text; the longest of a snapshot is a file's name."""

MAX_INT = 16  # bytes of a whole number
MAX_LINE = 256  # characters of a number that is written out
_OF_TEXT = 160  # bytes that a text takes beside its letters, once


class Atoms:
    """A stack, and the opcodes that push what holds nothing else.

    Args:
        feed: the file, read forward.
        where: how errors name it.
    """

    def __init__(self, feed: Feed, where: str) -> None:
        self.feed = feed
        self.where = where
        self.stack: list[Any] = []
        self.texts: dict[str, str] = {}
        self.spent = 0  # bytes of what was built, about; what waits on the stack is not in it

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"{what} (byte {self.feed.offset:,})",
            hint="a snapshot is what torch.cuda.memory._dump_snapshot writes; record it anew",
            where=self.where,
        )

    def _charge(self, size: int) -> None:
        """Count memory before it is taken."""
        self.spent += size
        if self.spent > MAX_HELD:
            self._refuse_size()

    def _refuse_size(self) -> NoReturn:
        self._refuse(f"its values take more than {format_bytes(MAX_HELD)}")

    # ------------------------------------------------------------------ arguments

    def _bytes(self, count: int) -> bytes:
        taken = self.feed.take(count)
        if taken is None:
            self._refuse("it ends in the middle of a value")
        return taken

    def _text_bytes(self, count: int) -> bytes:
        if count > MAX_TEXT:
            self._refuse(f"a text of {count:,} bytes, more than {MAX_TEXT:,}")
        return self._bytes(count)

    def _line(self, most: int) -> bytes:
        feed = self.feed
        feed.need(most)
        end = feed.data.find(b"\n", feed.position, feed.position + most)
        if end < 0:
            self._refuse("a line has no end")
        line = feed.data[feed.position : end]
        feed.position = end + 1
        return line

    # ------------------------------------------------------------------ opcodes: numbers and texts

    def none(self) -> None:
        self.stack.append(None)

    def true(self) -> None:
        self.stack.append(True)

    def false(self) -> None:
        self.stack.append(False)

    def binint(self) -> None:
        self.stack.append(I4.unpack(self._bytes(4))[0])

    def binint1(self) -> None:
        self.stack.append(self._bytes(1)[0])

    def binint2(self) -> None:
        self.stack.append(U2.unpack(self._bytes(2))[0])

    def _long(self, count: int) -> None:
        if not 0 <= count <= MAX_INT:
            self._refuse(f"a whole number of {count:,} bytes")
        self.stack.append(int.from_bytes(self._bytes(count), "little", signed=True))

    def long1(self) -> None:
        self._long(self._bytes(1)[0])

    def long4(self) -> None:
        self._long(I4.unpack(self._bytes(4))[0])

    def int_line(self) -> None:
        line = self._line(MAX_LINE)
        if line in (b"00", b"01"):
            self.stack.append(line == b"01")
        else:
            self._number(line)

    def long_line(self) -> None:
        self._number(self._line(MAX_LINE).removesuffix(b"L"))

    def _number(self, line: bytes) -> None:
        digits = line.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > 2 * MAX_INT:
            self._refuse("a whole number is not one, or too long")
        self.stack.append(int(line))

    def float_line(self) -> None:
        try:
            self.stack.append(float(self._line(MAX_LINE)))
        except ValueError:
            self._refuse("a number is not one")

    def binfloat(self) -> None:
        self.stack.append(F8.unpack(self._bytes(8))[0])

    def _unicode(self, data: bytes, encoding: str) -> None:
        try:
            text = data.decode(encoding, "surrogatepass")
        except UnicodeDecodeError:
            self._refuse("a text is not in its encoding")
        known = self.texts.get(text)
        if known is None:  # writers that do not know equal texts again write each a thousand times
            self._charge(_OF_TEXT + len(data))
            known = self.texts[text] = text
        self.stack.append(known)

    def short_binunicode(self) -> None:
        self._unicode(self._bytes(self._bytes(1)[0]), "utf-8")

    def binunicode(self) -> None:
        self._unicode(self._text_bytes(U4.unpack(self._bytes(4))[0]), "utf-8")

    def binunicode8(self) -> None:
        self._unicode(self._text_bytes(U8.unpack(self._bytes(8))[0]), "utf-8")

    def unicode_line(self) -> None:
        self._unicode(self._line(MAX_TEXT), "raw-unicode-escape")

    def string_line(self) -> None:
        line = self._line(MAX_TEXT)
        if len(line) < len("''") or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            self._refuse("a text stands in no quotes")
        try:
            self._unicode(escape_decode(line[1:-1])[0], "latin-1")
        except ValueError:
            self._refuse("a text is not in its encoding")

    def short_binstring(self) -> None:
        self._unicode(self._bytes(self._bytes(1)[0]), "latin-1")

    def binstring(self) -> None:
        count = I4.unpack(self._bytes(4))[0]
        if count < 0:
            self._refuse(f"a text of {count:,} bytes")
        self._unicode(self._text_bytes(count), "latin-1")

    def _kept(self, data: bytes) -> None:
        self._charge(_OF_TEXT + len(data))
        self.stack.append(data)

    def short_binbytes(self) -> None:
        self._kept(self._bytes(self._bytes(1)[0]))

    def binbytes(self) -> None:
        self._kept(self._text_bytes(U4.unpack(self._bytes(4))[0]))

    def binbytes8(self) -> None:
        self._kept(self._text_bytes(U8.unpack(self._bytes(8))[0]))


I4 = struct.Struct("<i")
U2 = struct.Struct("<H")
U4 = struct.Struct("<I")
U8 = struct.Struct("<Q")
F8 = struct.Struct(">d")
