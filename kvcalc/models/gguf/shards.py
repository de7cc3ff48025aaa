"""Models in several files: `NAME-00001-of-00003.gguf` and so on.

The first file holds all key-values, each file the infos of its own tensors. llama.cpp b11434,
`src/llama-model-loader.cpp` (split.no, split.count, split.tensors.count).
"""

from __future__ import annotations

import re

from kvcalc.core.errors import InputError
from kvcalc.models.gguf.faults import broken
from kvcalc.models.gguf.metadata import Entry
from kvcalc.models.text import shown

__all__ = ["shard_count", "sibling"]

_NAME = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf\Z", re.IGNORECASE | re.ASCII)
_MAX_SHARDS = 99_999


def shard_count(entries: dict[str, Entry], path: str, file: str) -> int:
    """Return of how many files the model consists: 1 where it is not split.

    Raises:
        InputError: this is a later file than the first, or what it says of itself is senseless.
    """
    count, number = entries.get("split.count", 1), entries.get("split.no", 0)
    if type(count) is not int or not 0 <= count <= _MAX_SHARDS:
        raise broken(file, f"split.count is {_said(count)}, no number of files")
    if type(number) is not int or not 0 <= number < max(count, 1):
        raise broken(file, f"split.no is {_said(number)}, and the model has {count} files")
    if number:
        raise _later(path, file, number, count)
    return max(count, 1)


def sibling(path: str, number: int, count: int) -> str | None:
    """Return the path of another file of the model, by the name of this one; None if it has none.

    >>> sibling("m-00001-of-00003.gguf", 2, 3)
    'm-00002-of-00003.gguf'
    """
    match = _NAME.search(path)
    if match is None or int(match[2]) != count:
        return None
    return f"{path[: match.start()]}-{number:05}-of-{count:05}{path[match.end() - 5 :]}"


def _later(path: str, file: str, number: int, count: int) -> InputError:
    first = sibling(file, 1, count) if sibling(path, 1, count) else None
    hint = f"give {first}" if first else "give the first of its files"
    message = f"this is file {number + 1} of a model in {count} files"
    return InputError(f"{message}, and only the first describes it", hint=hint, where=file)


def _said(value: Entry) -> str:
    return "a list" if isinstance(value, tuple) else shown(value)
