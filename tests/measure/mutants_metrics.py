"""Metrics pages with faults in them: no traceback, and none takes a second.

    python -m tests.measure.mutants_metrics 10000

makes so many mutants of the pages of `tests.measure.pages` (and of those that real engines left in
`tests/measure/recorded`), reads each, compares it with a model, draws it, and prints the slowest.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec

import kvcalc
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import format_bytes
from kvcalc.measure.metrics import judged, read_metrics
from kvcalc.measure.metrics.predicted import compared
from kvcalc.report.metrics import metrics_blocks
from tests.measure.pages import PAGES

__all__ = ["LONGEST_SECONDS", "main", "mutants", "tried"]

LONGEST_SECONDS = 1.0
_LARGEST = 2**18  # characters of a mutant

_VALUES = ("NaN", "+Inf", "-Inf", "-1", "1e308", "1e-308", "0", "0x1", "", "9" * 400, "1_0", "2.5")
_LABELS = (
    "None", "", "-1", "0", "1", "9" * 30, "1e9", "nan", "\\n", "\\\\", '\\"', "é漢", "a" * 50_000,
    "auto", "fp8", "fp8_ds_mla", "True", "2147483647", "9007199254740993",
)  # fmt: skip
_JUNK = (
    "{", "}", '"', "\\", "=", ",", "#", " # {", "\x00", "\ud7ff", "\r", "\x85", "\u2028",
    "{" * 9_999,
    '{x="' * 3_000, "# EOF\n", "# TYPE x gauge\n", "# TYPE vllm:kv_cache_usage_perc counter\n",
    "vllm:", "sglang:x 1\n", "tgi_ 1\n", '{"vllm:x"} 1\n', "\n" * 9_999, "a" * 70_000,
)  # fmt: skip


def _value(chance: random.Random, lines: list[str]) -> None:
    at = chance.randrange(len(lines))
    head, _, _ = lines[at].rpartition(" ")
    lines[at] = f"{head} {chance.choice(_VALUES)}"


def _label(chance: random.Random, lines: list[str]) -> None:
    told = [i for i, line in enumerate(lines) if '="' in line]
    if not told:
        return
    at = chance.choice(told)
    pieces = lines[at].split('"')
    pieces[chance.randrange(1, len(pieces), 2)] = chance.choice(_LABELS)
    lines[at] = '"'.join(pieces)


def _line(chance: random.Random, lines: list[str]) -> None:
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[other])
        case _:
            lines[at], lines[other] = lines[other], lines[at]


def _junk(chance: random.Random, lines: list[str]) -> None:
    at = chance.randrange(len(lines))
    place = chance.randrange(len(lines[at]) + 1)
    lines[at] = lines[at][:place] + chance.choice(_JUNK) + lines[at][place:]


def _cut(chance: random.Random, lines: list[str]) -> None:
    at = chance.randrange(len(lines))
    lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]


_CHANGES: tuple[Callable[[random.Random, list[str]], None], ...] = (
    *(_value, _value, _label, _label, _label),
    *(_line, _junk, _cut),
)


def mutants(count: int, seed: int = 0) -> Iterator[str]:
    """Yield so many pages, each with one to six faults."""
    chance = random.Random(seed)
    recorded = sorted((Path(__file__).parent / "recorded").glob("*.metrics"))
    pages = [*PAGES.values(), *(path.read_text(encoding="utf-8") for path in recorded)]
    for _ in range(count):
        lines = chance.choice(pages).split("\n")
        for _ in range(chance.randint(1, 6)):
            if lines:
                chance.choice(_CHANGES)(chance, lines)
        yield "\n".join(lines)[:_LARGEST]


@cache
def _model() -> kvcalc.ModelSpec:
    return kvcalc.load_model("llama-3.1-8b")


def tried(page: str) -> float:
    """Read a page, compare it and draw it as the command does; return the seconds it took.

    Whatever is wrong with a page is an error with a message, or a figure that is not told.
    """
    start = time.perf_counter()
    try:
        reading = read_metrics(page, where="a mutant")
        for server, settings in zip(reading.servers, reading.settings, strict=True):
            try:
                asked = kvcalc.Deployment(engine=server.engine)
                held = compared(server, _model(), asked, settings)
            except KvcalcError as error:
                assert str(error)
                held = server
            answer = judged(held, 1000)
            msgspec.json.encode(answer)
            metrics_blocks([answer], format_bytes)
    except KvcalcError as error:
        assert str(error)
    return time.perf_counter() - start


def main(count: int) -> None:
    """Try so many and print the slowest."""
    slowest = max(tried(page) for page in mutants(count))
    print(f"{count:,} pages, no traceback, the slowest {slowest:.3f} s")
    if slowest > LONGEST_SECONDS:
        raise SystemExit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
