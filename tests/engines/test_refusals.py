"""What a start refuses: every row of every table by its example, its neighbours and its line."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from kvcalc.answers.finding_codes import FINDING_CODES
from kvcalc.engines.refusals import TABLES, Row, by_code, rows
from tests.docs.refusals import RELEASES, checked, logged

ROWS = [(engine, row) for engine in TABLES for row in rows(engine)]
each = pytest.mark.parametrize(
    ("engine", "row"), ROWS, ids=[f"{engine}-{row.code}-{row.since}" for engine, row in ROWS]
)
examples = pytest.mark.parametrize(
    ("engine", "row"),
    [(engine, row) for engine, row in ROWS if row.example],
    ids=[f"{engine}-{row.code}-{row.since}" for engine, row in ROWS if row.example],
)

NOT_CHECKED = {
    "sglang": {"host-cache-too-large"},
    "tensorrt-llm": {"experts-over-ranks", "length-over-cache", "chunk-not-whole-pages"},
    "vllm": {"kernel-width-over-ranks", "swap-over-host", "memory-freed-meanwhile"},
}
"""Engine -> what hangs on nothing that a command says."""
AS_FITS = {
    "sglang": {"no-memory-for-blocks"},
    "tensorrt-llm": {"component-without-memory"},
    "vllm": {"share-not-free", "no-memory-for-blocks", "length-over-cache"},
}
"""Engine -> what `check` tells as memory that does not suffice."""
WORDLESS = {
    "sglang": {"width-over-ranks", "quantised-width-over-ranks", "too-few-gpus"},
    "tensorrt-llm": {"heads-over-ranks", "block-not-taken", "cache-dtype-refused"},
    "vllm": {"threshold-below-block"},
}
"""Engine -> assertions that log no line of their own."""


def _of(by_engine: dict[str, set[str]], engine: str) -> set[str]:
    return by_engine.get(engine, set())


@each
def test_a_row_is_whole(engine: str, row: Row) -> None:
    """Every cell is filled, the code is known, and the first release is not after the last."""
    assert row.code in FINDING_CODES
    assert row.what.endswith("."), row.what
    assert row.settings
    assert row.source
    assert bool(row.line) is (row.code not in _of(WORDLESS, engine))
    assert row.example or row.code in _of(NOT_CHECKED, engine)
    if row.since and row.until:
        numbers = [tuple(map(int, text.split(".")[:3])) for text in (row.since, row.until)]
        assert numbers == sorted(numbers)


@examples
def test_the_example_is_refused(engine: str, row: Row) -> None:
    """`kvcalc check` fails with the refusal's code; what it cannot know is listed above."""
    _, failed = checked(row)
    told = row.code in failed

    assert told is (row.code not in _of(NOT_CHECKED, engine) | _of(AS_FITS, engine)), failed
    if row.code in _of(AS_FITS, engine):
        assert "fits" in failed


def _neighbours() -> Iterator[tuple[Row, str]]:
    """Yield vLLM's rows with the releases right before and right after their own."""
    known = [tuple(map(int, text.split("."))) for text in RELEASES]
    for row in rows("vllm"):
        inside = [at for at in known if row.stands(at)]
        first, last = known.index(inside[0]), known.index(inside[-1])
        for at in (first - 1, last + 1):
            if row.example and 0 <= at < len(known):
                yield row, RELEASES[at]


NEIGHBOURS = list(_neighbours())


@pytest.mark.parametrize(
    ("row", "version"), NEIGHBOURS, ids=[f"{row.code}-{version}" for row, version in NEIGHBOURS]
)
def test_a_neighbour_does_not_refuse_it(row: Row, version: str) -> None:
    """The release before the first and the one after the last have no such check."""
    assert len(by_code("vllm")[row.code]) == 1

    assert row.code not in checked(row, version)[1]


@each
def test_the_line_is_read(engine: str, row: Row) -> None:
    """As the only line of a log, it is a start that failed for this cause."""
    if row.line:
        assert logged(engine, row) == row.code


LIFTED = {
    "length-over-model": "--max-model-len 131072",
    "prompt-over-step": "--max-num-batched-tokens 8192",
    "step-below-sequences": "--max-num-seqs 64",
    "active-over-sequences": "--max-num-active-seqs 16",
    "partial-prefills": "--max-long-partial-prefills 2",
    "threshold-over-length": "--long-prefill-token-threshold 8192",
    "block-over-step": "--max-num-batched-tokens 1072",
    "threshold-below-block": "--long-prefill-token-threshold 544",
    "encoder-over-step": "--max-num-batched-tokens 1500",
    "heads-over-ranks": "--tensor-parallel-size 4",
    "width-over-ranks": "--tensor-parallel-size 2",
    "quantised-width-over-ranks": "--enable-expert-parallel",
    "shared-kv-over-stages": "--pipeline-parallel-size 1",
    "stages-not-served": "--pipeline-parallel-size 1",
    "too-few-gpus": "--tensor-parallel-size 2",
    "bfloat16-on-old-gpu": "--dtype float16",
    "float16-refused": "--dtype bfloat16",
    "fp8-e5m2-checkpoint": "--kv-cache-dtype fp8_e4m3",
    "nvfp4-with-mla": "--kv-cache-dtype fp8",
    "block-not-taken": "--block-size 32",
    "proposals-not-divided": "--speculative-config.num_speculative_tokens 2",
    "step-below-drafts": "--max-num-batched-tokens 512",
    "step-below-adapter-drafts": "--max-num-seqs 910",
    "graphs-below-proposals": "--max-num-seqs 2",
    "async-with-stages": "--no-async-scheduling",
    "async-with-proposals": "--no-async-scheduling",
    "adapter-rank": "--max-lora-rank 64",
    "adapters-on-host": "--max-cpu-loras 4",
    "sequences-over-state-blocks": "--max-num-seqs 321",
    "graphs-over-state-blocks": "--max-num-seqs 321",
    "prefixes-need-chunks": "--no-enable-prefix-caching",
}
"""Refusal of vLLM's -> what its hint says to set, in the engine's flags."""


@pytest.mark.parametrize("code", LIFTED)
def test_what_the_hint_says_lifts_it(code: str) -> None:
    """The example with what its hint says behind it is not refused for the same any more."""
    (row,) = by_code("vllm")[code]
    lifted = row._replace(example=f"{row.example} {LIFTED[code]}")

    assert code in checked(row)[1]
    assert code not in checked(lifted)[1]


@pytest.mark.parametrize("code", ["sequences-over-state-blocks", "graphs-over-state-blocks"])
def test_one_more_is_refused_again(code: str) -> None:
    """The cure is not lower than it must be: one more sequence does not start."""
    (row,) = by_code("vllm")[code]
    more = {"sequences-over-state-blocks": 322, "graphs-over-state-blocks": 336}[code]

    assert code in checked(row._replace(example=f"{row.example} --max-num-seqs {more}"))[1]


@pytest.mark.parametrize(("engine", "package"), TABLES.items())
def test_what_the_rules_refuse_is_in_the_table(engine: str, package: str) -> None:
    """A code that an engine's rules name is a row of its table."""
    module = import_module(package)
    folder = Path(str(module.__file__)).parent
    told = {code for path in folder.glob("*.py") for code in _codes(path)}

    assert told
    assert told - set(by_code(engine)) == set()


def _codes(path: Path) -> Iterator[str]:
    """Yield the codes that a source names: `code="..."`, and second in refuse(at, "...")."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        if getattr(node.func, "id", "") == "refuse":
            given.append(node.args[1])
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def test_examples_name_their_release() -> None:
    """An example without a release would follow the newest one, and change with it."""
    for _, row in ROWS:
        assert not row.example or "--engine-version" in shlex.split(row.example), row
