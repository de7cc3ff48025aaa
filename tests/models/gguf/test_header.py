"""The header: versions, byte orders, every value type, and every length that can lie."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest

from kvcalc.core.errors import InputError
from kvcalc.models.gguf import Header, read_header
from kvcalc.models.gguf.header import Skipped
from tests.models.gguf.writer import LIST, TEXT, U32, Tensor, Writer

LITTLE = Writer()


def read(raw: bytes, size: int | None = None) -> Header:
    return read_header(io.BytesIO(raw), len(raw) if size is None else size, "m.gguf")


def start(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + LITTLE.pack("IQQ", version, tensors, pairs)


def pair(key: str, raw: bytes) -> bytes:
    return LITTLE.text(key) + raw


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_both_byte_orders_and_versions(order: str, version: int) -> None:
    """A file says the same in either byte order and version."""
    values = {"a": 7, "b": -7, "c": "text", "d": 0.5, "e": True, "f": [1, 2, 3], "g": [True, False]}
    tensors = [Tensor("blk.1.w", (64, 2), 8, 136), Tensor("out", (4,), 0, 16)]
    header = read(Writer(order).file(values, tensors, version=version))
    assert header.version == version
    assert header.byte_order == ("little" if order == "<" else "big")
    expected: dict[str, Any] = {**values, "f": (1, 2, 3), "g": (1, 0)}
    assert header.entries == expected
    assert (header.tensors.described, header.tensors.total) == (2, 152)
    assert header.tensors.by_layer == {1: 136}


def test_every_number_type() -> None:
    """Each type is read with its width and sign, alone and in a list."""
    codes = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 7: "?", 10: "Q", 11: "q"}
    raw = start(0, 2 * len(codes))
    expected: dict[str, Any] = {}
    for type_, code in codes.items():
        value = True if code == "?" else (-5 if code.islower() else 5)
        raw += pair(f"n{type_}", LITTLE.pack(f"I{code}", type_, value))
        raw += pair(f"l{type_}", LITTLE.pack(f"IIQ2{code}", LIST, type_, 2, value, value))
        expected |= {f"n{type_}": value, f"l{type_}": (int(value), int(value))}
    assert read(raw).entries == expected


def test_what_is_not_kept() -> None:
    """Long texts, long lists, lists of texts, floats and lists are stepped over exactly."""
    nested = LITTLE.pack("IIQ", LIST, LIST, 2) + 2 * LITTLE.pack("IQII", U32, 2, 1, 2)
    raw = start(0, 6)
    raw += pair("text", LITTLE.value("x" * 5000))
    raw += pair("long", LITTLE.value([1] * 5000))
    raw += pair("floats", LITTLE.value([1.0, 2.0]))
    raw += pair("texts", LITTLE.value(["a", "", "ccc"]))
    raw += pair("nested", nested)
    raw += pair("last", LITTLE.value(1))
    entries = read(raw).entries
    assert entries["last"] == 1
    assert entries["text"] == Skipped("a text", 5000)
    assert entries["long"] == Skipped("a list", 5000)
    assert entries["nested"] == Skipped("a list", 2)


def test_lists_are_kept_within_bounds() -> None:
    """However many lists a file has, the numbers kept of them are bounded."""
    raw = start(0, 100) + b"".join(pair(f"k{i}", LITTLE.value([1] * 4096)) for i in range(100))
    kept = [v for v in read(raw).entries.values() if not isinstance(v, Skipped)]
    assert len(kept) == 16


def test_a_vocabulary_larger_than_the_window() -> None:
    """Texts longer than the reader's buffer, and lists that cross it, end where they should."""
    words = ["x" * n for n in (0, 1, 300_000, 7)] + ["word"] * 100_000
    raw = start(0, 2) + pair("tokens", LITTLE.value(words)) + pair("last", LITTLE.value(3))
    assert read(raw).entries["last"] == 3


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 are left"),
    "magic": (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
    "ggml": (b"tjgg" + bytes(40), "from before GGUF"),
    "version 1": (start(0, 0, 1), "version 1 is not read"),
    "version 4": (start(0, 0, 4), "version 4 is not read"),
    "version 0": (start(0, 0, 0), "version 0 is not read"),
    "half a header": (start(0, 0)[:20], "4 are left"),
    "keys": (start(0, 2**63), "metadata keys"),
    "keys within the cap": (start(0, 60_000), "60000 metadata keys"),
    "tensors": (start(2**60, 0), "tensors; at most"),
    "tensors within the cap": (start(100_000, 0), "100000 tensor infos"),
    "key": (start(0, 1) + LITTLE.pack("Q", 2**62) + bytes(40), "a key of"),
    "no key": (start(0, 1) + LITTLE.text("") + LITTLE.value(1), "without a name"),
    "twice": (start(0, 2) + 2 * pair("a", LITTLE.value(1)), "'a' stands twice"),
    "type": (start(0, 1) + pair("a", LITTLE.pack("IQ", 13, 0)), "value type 13"),
    "list type": (start(0, 1) + pair("a", LITTLE.pack("IIQ", LIST, 99, 0)), "value type 99"),
    "list": (start(0, 1) + pair("a", LITTLE.pack("IIQ", LIST, U32, 2**61)), "the list 'a'"),
    "texts": (start(0, 1) + pair("a", LITTLE.pack("IIQ", LIST, TEXT, 2**61)), "the list 'a'"),
    "text in texts": (
        start(0, 1) + pair("a", LITTLE.pack("IIQQQ", LIST, TEXT, 2, 2**64 - 1, 0)),
        "the list 'a'",
    ),
    "deep": (
        start(0, 1) + pair("a", LITTLE.pack("I", LIST) + 30 * LITTLE.pack("IQ", LIST, 1)),
        "too many lists in lists",
    ),
    "name": (start(1, 0) + LITTLE.pack("Q", 5000) + bytes(6000), "name of 5000 bytes"),
    "dimensions": (
        start(1, 0) + LITTLE.text("t") + LITTLE.pack("I", 5) + bytes(60),
        "'t' has 5 dimensions",
    ),
    "blocks": (start(1, 0) + LITTLE.infos([Tensor("t", (31, 2), 8, 0)]), "not whole blocks of 32"),
    "data": (Writer().file({}, [Tensor("t", (64,), 0, 256)], data=False), "tensors end at byte"),
    "huge": (start(1, 0) + LITTLE.infos([Tensor("t", (2**62, 2**62), 0, 0)]), "tensors end at"),
    "alignment": (
        Writer().file({"general.alignment": 48}, [Tensor("t", (64,), 0, 256)]),
        "no power of two",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_what_is_refused(name: str) -> None:
    """Each fault is one line that names the file, with a hint."""
    raw, message = LIES[name]
    with pytest.raises(InputError) as caught:
        read(raw)
    assert message in caught.value.message
    assert caught.value.where == "m.gguf"
    assert caught.value.hint
    assert "\n" not in str(caught.value) + caught.value.hint


def test_every_truncation_is_refused() -> None:
    """A file cut anywhere is refused, never misread."""
    raw = Writer().file({"a": 1, "b": ["x", "yy"], "c": [1, 2]}, [Tensor("blk.0.w", (32,), 8, 34)])
    for length in range(len(raw) - 30):  # the padding behind the last tensor may be missing
        with pytest.raises(InputError):
            read(raw[:length])


def test_a_file_that_shrinks_while_it_is_read() -> None:
    """A stream that gives fewer bytes than the file had is refused."""
    with pytest.raises(InputError, match="became shorter"):
        read(start(0, 1), size=1000)


def test_a_disk_that_fails() -> None:
    """What the system says is repeated in one line."""

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output\nerror")

    with pytest.raises(InputError, match=r"cannot be read: Input/output\\nerror"):
        read_header(Failing(), 100, "m.gguf")


def test_too_many_strings() -> None:
    """A vocabulary of four million and one is refused before it is walked."""
    raw = start(0, 1) + pair("a", LITTLE.pack("IIQ", LIST, TEXT, 4_000_001))

    class Endless(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(size).ljust(size or 0, b"\0")

    with pytest.raises(InputError, match="more than 4000000 strings"):
        read_header(Endless(raw), 2**36, "m.gguf")


def test_too_many_lists_in_lists() -> None:
    """Nested lists are bounded in number, not only in depth."""
    inner = struct.pack("<IQ", U32, 0)
    raw = start(0, 1) + pair("a", LITTLE.pack("IIQ", LIST, LIST, 100_001)) + inner * 100_001
    with pytest.raises(InputError, match="too many lists in lists"):
        read(raw)
