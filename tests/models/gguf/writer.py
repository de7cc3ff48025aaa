"""A GGUF writer of a few lines, so that tests can also write what no writer would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

U32, I32, F32, BOOL, TEXT, LIST, U64 = 4, 5, 6, 7, 8, 9, 10


class Tensor(NamedTuple):
    """A tensor: its name, its dimensions (rows first), the number of its type, its bytes."""

    name: str
    shape: tuple[int, ...]
    type: int
    size: int


class Writer:
    """Writes numbers in one byte order."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def pack(self, form: str, *values: Any) -> bytes:
        return struct.pack(self.order + form, *values)

    def text(self, text: str) -> bytes:
        raw = text.encode()
        return self.pack("Q", len(raw)) + raw

    def value(self, value: Any) -> bytes:
        """Return the type and the value as the oracle's writer chooses them."""
        if isinstance(value, bool):
            return self.pack("I?", BOOL, value)
        if isinstance(value, int):
            return self.pack("II", U32, value) if value >= 0 else self.pack("Ii", I32, value)
        if isinstance(value, float):
            return self.pack("If", F32, value)
        if isinstance(value, str):
            return self.pack("I", TEXT) + self.text(value)
        return self.pack("I", LIST) + self._list(value)

    def _list(self, values: Sequence[Any]) -> bytes:
        first = values[0] if values else 0
        if isinstance(first, str):
            head, body = TEXT, b"".join(self.text(v) for v in values)
        elif isinstance(first, bool):
            head, body = BOOL, self.pack(f"{len(values)}?", *values)
        elif isinstance(first, float):
            head, body = F32, self.pack(f"{len(values)}f", *values)
        else:
            head, body = I32, self.pack(f"{len(values)}i", *values)
        return self.pack("IQ", head, len(values)) + body

    def infos(self, tensors: Sequence[Tensor], alignment: int = 32) -> bytes:
        parts, offset = [], 0
        for name, shape, type_, size in tensors:
            form = f"I{len(shape)}QIQ"
            parts.append(self.text(name) + self.pack(form, len(shape), *shape, type_, offset))
            offset += -(-size // alignment) * alignment
        return b"".join(parts)

    def file(
        self,
        values: Mapping[str, Any],
        tensors: Sequence[Tensor] = (),
        *,
        version: int = 3,
        data: bool = True,
    ) -> bytes:
        """Return a file; its tensors hold zeros."""
        head = b"GGUF" + self.pack("IQQ", version, len(tensors), len(values))
        pairs = b"".join(self.text(key) + self.value(value) for key, value in values.items())
        raw = head + pairs + self.infos(tensors)
        if not (tensors and data):
            return raw
        raw += bytes(-len(raw) % 32)
        return raw + bytes(sum(-(-t.size // 32) * 32 for t in tensors))


def named(arch: str, hp: Mapping[str, Any]) -> dict[str, Any]:
    """Return key-values under the prefix of an architecture."""
    values: dict[str, Any] = {"general.architecture": arch}
    for key, value in hp.items():
        values[key if key.startswith(("general.", "split.")) else f"{arch}.{key}"] = value
    return values


def metadata(arch: str, hp: Mapping[str, Any], **options: Any) -> bytes:
    """Return a file of key-values alone."""
    return Writer().file(named(arch, hp), **options)


LLAMA: dict[str, Any] = {
    "context_length": 8192,
    "embedding_length": 512,
    "block_count": 2,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}
"""The least that a llama file must say."""
