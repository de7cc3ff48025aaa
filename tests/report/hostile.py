"""What strangers write into files that kvcalc reads, put into every text of an answer."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["FORMULA", "STEERING", "WORD", "planted"]

WORD = "Hunter2Geheim"
STEERING = (
    "\x1b[3\x1b[0m1m\x1bc\x1b]0;title\x07\x9b31m\x00\x7f\x85\u202e\u2066\u200b\u2028\r"
    f"\n::error::x| @everyone <script> ```\n# [a](b) https://u:{WORD}@h/m?sig={WORD}"
    f" --api-key {WORD} HF_TOKEN={WORD} 'api_key': ['{WORD}'] Authorization: Bearer {WORD}"
)
"""Escapes of a terminal (some in others, so that one pass leaves some), controls, directions, the
syntax of every format, and credentials in every spelling."""

FORMULA = "=HYPERLINK(1)"

_OURS = ("assertion",)
"""Fields of texts that are names of kvcalc's own."""


def planted(value: Any, text: str) -> Any:
    """Return a value with a text before every text in it that may be any."""
    return _planted(value, inspect.type_info(type(value)), text)


def _planted(value: Any, kind: inspect.Type, text: str) -> Any:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if isinstance(value, str):
        free = any(isinstance(one, (inspect.StrType, inspect.AnyType)) for one in kinds)
        return text + value if free else value
    if isinstance(value, msgspec.Struct):
        made = copy.copy(value)
        for field in inspect.type_info(type(value)).fields:  # type: ignore[attr-defined]  # a struct
            new = getattr(value, field.name)
            new = new if field.name in _OURS else _planted(new, field.type, text)
            msgspec.structs.force_setattr(made, field.name, new)
        return made
    if isinstance(value, dict):
        return {key: _planted(item, inspect.AnyType(), text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [
            _planted(item, inner, text)
            for item, inner in zip(value, _inner(kinds, len(value)), strict=True)
        ]
        return items if isinstance(value, list) else tuple(items)
    return value


def _inner(kinds: tuple[inspect.Type, ...], count: int) -> list[inspect.Type]:
    """Return the kinds of a list's items."""
    for kind in kinds:
        if isinstance(kind, inspect.TupleType):
            return list(kind.item_types)
        if isinstance(kind, (inspect.ListType, inspect.VarTupleType, inspect.CollectionType)):
            return [kind.item_type] * count
    return [inspect.AnyType()] * count
