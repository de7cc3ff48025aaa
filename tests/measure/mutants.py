"""Logs with faults in them: no traceback, and none takes a second.

    python -m tests.measure.mutants 10000

makes so many mutants of the samples of `tests.measure.logs` (and of the logs that real engines left
in `tests/measure/recorded`), reads and answers each, and prints how long the slowest took.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes
from kvcalc.measure.logs import Given, answered, compared, read_start
from kvcalc.models import load_model
from kvcalc.report.log import comparison_blocks, log_blocks
from tests.measure.logs.samples import ALL

__all__ = ["LONGEST_SECONDS", "mutants", "tried"]

LONGEST_SECONDS = 1.0

_LARGEST = 2**18
"""Characters of a mutant: time grows with the log, by about half a minute a gigabyte."""

_NUMBERS = (
    "0", "-1", "1", "99999999999999999999", "-0.00", "1e9", "NaN", "1,,2", "9" * 300, "0.0000001",
    "999999999999999.99", "2147483648", "-", "1,000", "1,0000",
)  # fmt: skip
_JUNK = (
    "\x00", "\x1b[", "\x1b]8;;", "\r", "\t", "é漢", "\ud7ff", "(" * 3000, "[" * 3000, "{" * 3000,
    "'" * 999, "a" * 70_000, " " * 5000, "1" * 5000, "= " * 2000, "|" * 500, "\\x1b[31m",
    '{"log": ', "(Worker_TP0 pid=", "[repeated 99999999999x across cluster]", "INFO " * 300,
    "[TP0" * 500, "2025-01-01T00:00:00Z " * 200, "<std", ", " * 4000, "K (f16): " * 300,
)  # fmt: skip


def _lines(text: str) -> list[str]:
    return text.split("\n")


def _digits(chance: random.Random, text: str) -> str:
    places = [i for i, c in enumerate(text) if c.isdigit()]
    if not places:
        return text
    at = chance.choice(places)
    return text[:at] + chance.choice(_NUMBERS) + text[at + 1 :]


def _character(chance: random.Random, text: str) -> str:
    if not text:
        return text
    at = chance.randrange(len(text))
    return text[:at] + chr(chance.choice((32, 44, 46, 40, 41, 39, 0x7F, 0x2028))) + text[at + 1 :]


def _junk(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(_JUNK) + text[at:]


def _drop(chance: random.Random, text: str) -> str:
    lines = _lines(text)
    del lines[chance.randrange(len(lines))]
    return "\n".join(lines)


def _double(chance: random.Random, text: str) -> str:
    lines = _lines(text)
    at = chance.randrange(len(lines))
    lines[at:at] = [lines[at]] * chance.choice((1, 2, 50, 2000))
    return "\n".join(lines)


def _shuffle(chance: random.Random, text: str) -> str:
    lines = _lines(text)
    chance.shuffle(lines)
    return "\n".join(lines)


def _cut(chance: random.Random, text: str) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _splice(chance: random.Random, text: str) -> str:
    other = _lines(chance.choice(list(ALL.values())))
    lines = _lines(text)
    mixed = [line for pair in zip(lines, other, strict=False) for line in pair]
    return "\n".join(mixed + lines[len(other) :] + other[len(lines) :])


def _joined(chance: random.Random, text: str) -> str:
    lines = _lines(text)
    at = chance.randrange(len(lines))
    return "\n".join(lines[:at]) + "".join(lines[at:])


_CHANGES: tuple[Callable[[random.Random, str], str], ...] = (
    *(_digits, _digits, _digits, _character, _junk, _junk),
    *(_drop, _double, _shuffle, _cut, _splice, _joined),
)


def _sources() -> list[str]:
    recorded = sorted((Path(__file__).parent / "recorded").glob("*.log"))
    return [*ALL.values(), *(path.read_text(encoding="utf-8") for path in recorded)]


def mutants(count: int, seed: int = 0) -> Iterator[str]:
    """Yield logs with one to six faults, always the same for a seed."""
    chance = random.Random(seed)
    sources = _sources()
    for _ in range(count):
        text = chance.choice(sources)
        for _ in range(chance.choice((1, 1, 2, 3, 6))):
            text = chance.choice(_CHANGES)(chance, text)[:_LARGEST]
        yield text


def tried(text: str, *, known: bool) -> float:
    """Read and answer a log, and return the seconds that it took; a refusal is an answer.

    Args:
        text: the log.
        known: the model is given.
    """
    given = Given(model=load_model("llama-3.1-8b")) if known else Given()
    data = text.encode("utf-8", "surrogatepass")
    began = time.process_time()
    try:
        read = read_start("-", given, stdin=io.BytesIO(data))
        answer = answered(read, given)
        log_blocks([answer], format_bytes)
        msgspec.json.encode(answer)
        comparison_blocks([compared(read, read)], format_bytes)
    except KvcalcError:
        pass
    return time.process_time() - began


def main(arguments: list[str]) -> int:
    """Try as many as asked for; 1 where one took too long. A traceback ends it."""
    count = int(arguments[0]) if arguments else 10_000
    slowest, which = 0.0, 0
    for number, text in enumerate(mutants(count)):
        took = tried(text, known=number % 2 == 0)
        if took > slowest:
            slowest, which = took, number
    print(f"{count:,} mutants, no traceback; the slowest (number {which}) took {slowest:.2f} s")
    return int(slowest > LONGEST_SECONDS)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
