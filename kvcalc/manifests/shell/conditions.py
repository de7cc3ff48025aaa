"""`[ ... ]`, `[[ ... ]]` and `test`: true, false, or not to be known from the script alone."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from kvcalc.manifests.found import Word
from kvcalc.manifests.templates import MARK

__all__ = ["decide"]

_NUMBERS = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
_NUMBER = re.compile(r"-?[0-9]{1,15}")
_JOINTS = (("||", True), ("-o", True), ("&&", False), ("-a", False))
_LONGEST_PATTERN = 200


def decide(words: Sequence[Word]) -> bool | None:
    """Return whether a test holds; None where a word of it is not known, or what it asks is not.

    Args:
        words: of the test, its own name first.
    """
    inner = [word for word in words[1:] if word.text not in ("]", "]]")]
    for joint, either in _JOINTS:
        places = [at for at, word in enumerate(inner) if word.text == joint]
        if places:
            parts = inner[: places[0]], inner[places[0] + 1 :]
            return _joined([decide([words[0], *part]) for part in parts], either=either)
    if inner and inner[0].text == "!":
        held = decide([words[0], *inner[1:]])
        return None if held is None else not held
    if any(word.unresolved or MARK in word.text for word in inner):
        return None
    return _held([word.text for word in inner], glob=words[0].text == "[[")


def _joined(parts: Sequence[bool | None], *, either: bool) -> bool | None:
    """Return what two tests joined by "or" (either) or "and" say."""
    if either in parts:
        return either
    return None if None in parts else not either


def _held(texts: Sequence[str], *, glob: bool) -> bool | None:
    """Return whether a test of known words holds.

    Args:
        texts: the words.
        glob: a pattern stands on the right of `=`.
    """
    match texts:
        case []:
            return False
        case [text]:
            return bool(text)
        case ["-n", text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==", right]:
            return _equal(left, right, glob=glob)
        case [left, "!=", right]:
            return not _equal(left, right, glob=glob)
        case [left, compare, right] if compare in _NUMBERS:
            return _compared(left, compare, right)
    return None


def _equal(left: str, right: str, *, glob: bool) -> bool:
    matched = glob and len(right) < _LONGEST_PATTERN
    return fnmatch.fnmatchcase(left, right) if matched else left == right


def _compared(left: str, compare: str, right: str) -> bool | None:
    if not _NUMBER.fullmatch(left) or not _NUMBER.fullmatch(right):
        return None
    one, two = int(left), int(right)
    return {
        "-eq": one == two,
        "-ne": one != two,
        "-lt": one < two,
        "-le": one <= two,
        "-gt": one > two,
        "-ge": one >= two,
    }[compare]
