"""Counting requests by length, and reading one number of tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from operator import add
from typing import NamedTuple

from kvcalc.workload.faults import fault, quoted

__all__ = ["MAX_TOKENS", "Reading", "Tally", "is_number", "read_tokens"]

MAX_TOKENS = 10**9
SHORT_DIGITS = 9  # digits that cannot exceed it
"""Tokens beyond which a cell is taken for a time or an id, and refused."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_MAX_CELL = 100  # characters; keeps the exact conversion of a hostile number short


class Tally:
    """Requests by total length, and the tokens of either part if told; grows by batches."""

    __slots__ = ("counts", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.prompt_tokens = 0
        self.output_tokens = 0

    def add(self, prompts: Sequence[int], outputs: Sequence[int] | None = None) -> None:
        """Count one request for each place of two sequences of tokens, equally long.

        Without outputs, the first sequence is of totals, and neither part grows.
        """
        if outputs is None:
            self.counts.update(prompts)
            return
        self.counts.update(map(add, prompts, outputs))
        self.prompt_tokens += sum(prompts)
        self.output_tokens += sum(outputs)


class Reading(NamedTuple):
    """What a format's reader hands back."""

    format: str
    columns: tuple[str, ...]
    """Prompt and output, or that of totals, or none where the file is a plain list."""
    tally: Tally


def is_number(text: str) -> bool:
    """Say whether a text is a number, whole or not, of whatever sign and of some 100 characters."""
    return len(text) <= _MAX_CELL and bool(_NUMBER.fullmatch(text))


def read_tokens(cell: str, column: str | None, file: str, line: int) -> int:
    """Read a number of tokens: an int (4808), or a number that is whole (4808.0).

    Args:
        cell: the number as it is written.
        column: where it stands, for the error; None in a plain list.
        file: the file, for the error.
        line: likewise.

    Raises:
        InputError: blank, not a number, negative, a fraction, or beyond 10^9.
    """
    text = cell.strip()
    if len(text) <= SHORT_DIGITS and text.isascii() and text.isdigit() and int(text) <= MAX_TOKENS:
        return int(text)
    name = "the length" if column is None else f"column {quoted(column)}"
    shown = f"{name} is {quoted(cell)}"
    hint = f"each request needs a whole number of tokens from 0 to {MAX_TOKENS}"
    if not text:
        raise fault(file, line, f"{name} is blank ({quoted(cell)})", hint)
    if len(text) > _MAX_CELL or not _NUMBER.fullmatch(text):
        raise fault(file, line, f"{shown}, not a number of tokens", hint)
    number = Decimal(text)
    if number < 0:
        raise fault(file, line, f"{shown}, which is negative", hint)
    if number > MAX_TOKENS:
        raise fault(file, line, f"{shown}, more than {MAX_TOKENS} tokens", hint)
    if number != int(number):
        raise fault(file, line, f"{shown}, which is not a whole number", hint)
    return int(number)
