"""The options that a server's program takes: their spellings, and how many words each takes.

A table is written as words: spellings of one option are parted by `|`, the first is its name;
`--` is left out before long ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = [
    "Flag",
    "Gone",
    "Grammar",
    "Takes",
    "flag_name",
    "gone",
    "names",
    "number_of",
    "spellings_of",
    "table",
]

Takes = Literal["one", "switch", "pair", "many", "maybe", "each"]
"""One word; none; none, with a --no- form; one or more; none or one; one, and may be repeated."""


class Flag(NamedTuple):
    """An option.

    Attributes:
        name: with underscores, without dashes in front.
        takes: how many words follow it.
        written: its first spelling.
    """

    name: str
    takes: Takes
    written: str


class Gone(NamedTuple):
    """An option that a release dropped or renamed.

    Attributes:
        flag: it.
        last: the last release that was seen with it; "" where none was looked at.
        first: the first that was seen without.
        now: what to write instead.
        renamed: there is another option for the same.
    """

    flag: Flag
    last: str
    first: str
    now: str
    renamed: bool = False


class Grammar(NamedTuple):
    """How a program reads its words.

    Attributes:
        engine: as people call it.
        flags: every spelling -> the option, and what it says where it takes no word.
        gone: spelling -> an option of older releases.
        newest: the release whose options these are.
        abbreviates: the beginning of a long option will do where no other begins so (argparse).
        folds: `_` stands for `-` in long options.
        equals: `--flag=value` is read.
        dotted: `--flag.key value` sets a key of a JSON option.
        greedy: an option that takes a word takes the next, whatever it looks like.
        usual: beginnings that everybody writes, which are not told.
        meant: beginning that became ambiguous -> the option that is meant by it.
    """

    engine: str
    flags: Mapping[str, tuple[Flag, bool]]
    gone: Mapping[str, Gone]
    newest: str
    abbreviates: bool = False
    folds: bool = False
    equals: bool = True
    dotted: bool = False
    greedy: bool = False
    usual: frozenset[str] = frozenset()
    meant: Mapping[str, str] = {}


def names(text: str) -> frozenset[str]:
    """Return the words of a text: how tables of names are written here."""
    return frozenset(text.split())


def flag_name(spelling: str) -> str:
    """Return an option's name: with underscores, without dashes in front.

    >>> flag_name("--max-model-len")
    'max_model_len'
    """
    return spelling.lstrip("-").replace("-", "_")


def spellings_of(entry: str) -> list[str]:
    """Return the spellings of one option of a table.

    >>> spellings_of("tensor-parallel-size|-tp")
    ['--tensor-parallel-size', '-tp']
    """
    return [word if word.startswith("-") else f"--{word}" for word in entry.split("|")]


def table(**kinds: str) -> dict[str, tuple[Flag, bool]]:
    """Return every spelling -> its option, and what it says where it takes no word.

    Args:
        kinds: Takes -> the options that take so much.
    """
    found: dict[str, tuple[Flag, bool]] = {}
    for takes, entries in kinds.items():
        for entry in entries.split():
            names = spellings_of(entry)
            flag = Flag(flag_name(names[0]), takes, names[0])  # type: ignore[arg-type]
            for name in names:
                found[name] = flag, True
                if takes == "pair" and name.startswith("--"):
                    found[f"--no-{name[2:]}"] = flag, False
    return found


def gone(lines: str, renamed: Mapping[str, str] | None = None) -> dict[str, Gone]:
    """Return spelling -> an option of older releases, of one line for some of a kind.

    Args:
        lines: the last release seen with them, the first without (`-` where none was looked at),
            how many words they take, the options; behind `=` what to write now.
        renamed: name -> today's, where the values are the same.

    >>> gone("0.17.1 0.18.1 one swap-space")["--swap-space"].first
    '0.18.1'
    """
    found = {}
    for line in filter(None, map(str.strip, lines.splitlines())):
        told, _, now = line.partition(" = ")
        last, first, takes, *entries = told.split()
        for spelling in (name for entry in entries for name in spellings_of(entry)):
            name = flag_name(spelling)
            name = (renamed or {}).get(name, name)
            flag = Flag(name, takes, spelling)  # type: ignore[arg-type]
            known = ("" if last == "-" else last, "" if first == "-" else first)
            found[spelling] = Gone(flag, *known, now, renamed=bool(now))
    return found


_NUMBERS = re.compile(r"\d{1,9}", re.ASCII)


def number_of(version: str | None) -> tuple[int, ...] | None:
    """Return a release as numbers to compare by; None where it is not known.

    >>> number_of("0.4.6.post1"), number_of("b6341")
    ((0, 4, 6), (6341,))
    """
    if version is None:
        return None
    return tuple(map(int, _NUMBERS.findall(version)[:3])) or None
