"""A server's own configuration file, as the words that it stands for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvcalc.manifests.commands.flags import Flag
from kvcalc.manifests.commands.reading import Places, Reading
from kvcalc.manifests.found import Word
from kvcalc.models.documents import Plain

__all__ = ["scalar", "with_config"]


def with_config(
    reading: Reading,
    words: Sequence[Word],
    flags: Mapping[str, tuple[Flag, bool]],
    *,
    inline: bool,
    endings: tuple[str, ...] = (),
) -> list[Word]:
    """Return words with those of --config FILE before them, over which the command wins.

    Args:
        reading: takes what is wrong with the file.
        words: of the command.
        flags: of the program.
        inline: --config=FILE is read as well.
        endings: of the files that are taken; () for any.
    """
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        if name != "--config":
            continue
        if equals and not inline:
            reading.find(
                "config-not-read",
                "error",
                "the file of --config=FILE is not read: only that of --config FILE",
                "write --config and the file as two words",
                word,
            )
        elif equals:
            named = word._replace(text=value)
            return _put(words[:at], _words(reading, named, flags, endings), words[at + 1 :])
        elif at + 1 < len(words):
            named = words[at + 1]
            return _put(words[:at], _words(reading, named, flags, endings), words[at + 2 :])
    return list(words)


def _put(before: Sequence[Word], read: Iterable[Word], after: Sequence[Word]) -> list[Word]:
    """Return the words of a file in front of the command's, but after a model that leads them."""
    first = 1 if before and not before[0].text.startswith("-") else 0
    return [*before[:first], *read, *before[first:], *after]


def _words(
    reading: Reading,
    named: Word,
    flags: Mapping[str, tuple[Flag, bool]],
    endings: tuple[str, ...],
) -> Iterator[Word]:
    if endings and not named.unresolved and not named.text.endswith(endings):
        reading.bad("--config", named, f"name a file that ends in {endings[0]}")
        return
    read = reading.document("--config", named)
    if read is None:
        return
    values, places = read
    for key, value in values.items():
        yield from _option(places, key, value, flags)


def _option(
    places: Places, key: str, value: Plain, flags: Mapping[str, tuple[Flag, bool]]
) -> Iterator[Word]:
    flag = "--" + key.replace("_", "-")
    off = f"--no-{flag[2:]}"
    takes = flags[flag][0].takes if flag in flags else "one"
    if isinstance(value, bool) and takes != "many":
        if value or off in flags:
            yield places.word(flag if value else off, key)
    elif isinstance(value, list) and takes == "many":
        if value:
            yield places.word(flag, key)
        for at, item in enumerate(value):
            yield places.word(scalar(item), key, at)
    elif value is not None:
        yield places.word(f"{flag}={scalar(value)}", key)


def scalar(value: Plain) -> str:
    """Return a value as one word: what is no scalar as JSON."""
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)
