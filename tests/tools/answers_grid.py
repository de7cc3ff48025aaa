"""Every answer over a grid of commands, for a look at what a change of the house changes.

python -m tests.tools.answers_grid write FOLDER    the answers as they are now
python -m tests.tools.answers_grid diff BEFORE AFTER    which commands answer otherwise

The grid: the plan, the formula and the layer table of every preset with every engine, dtypes and
splits over GPUs; capacity and compare of some; the commands of tests/reports and the examples of
the engines' refusals. Whole outputs are kept, so that a difference is shown as lines.
"""

from __future__ import annotations

import difflib
import gzip
import json
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from pathlib import Path

import msgspec

from kvcalc.answers.per_token import per_token, usual_lengths
from kvcalc.answers.plan_summary import summarise
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.engines import ENGINES, plan
from kvcalc.engines.refusals import TABLES, rows
from kvcalc.models.presets import load_model_preset, model_names
from tests.cli.harness import call

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "tests" / "reports"
PLAN = "PLAN"
SOME = 17
"""One of so many presets stands in the grids of capacity, compare and releases."""

DTYPES = {"none": ("auto", "fp8"), "llama.cpp": ("auto", "q8_0"), "mlx-lm": ("auto", "8bit")}
SPLITS = ((1, 1), (2, 1), (8, 1), (2, 2))
RELEASES = {
    "vllm": ("0.6.6", "0.9.2", "0.11.0", "0.17.0", "0.25.1"),
    "sglang": ("0.5.10", "0.5.12"),
    "llama.cpp": ("b5000", "b7000"),
}


Words = tuple[str, ...]


def plans() -> Iterator[Words]:
    """Yield (model, engine, dtype, tp, pp) of each plan."""
    for model, engine in product(model_names(), ENGINES):
        for dtype in DTYPES.get(engine, ("auto", "fp8")):
            for tp, pp in SPLITS:
                yield (PLAN, model, engine, dtype, str(tp), str(pp))


def commands() -> Iterator[Words]:
    """Yield every command of the grid, without its format."""
    for model in model_names()[::SOME]:
        for engine in ENGINES:
            for gpu in ("h100-80gb", "rtx-4090"):
                how = ("--engine", engine, "--gpu", gpu)
                yield ("capacity", model, *how, "--max", "8192", "--levers")
                yield ("capacity", model, *how, "--tp", "2")
            yield ("compare", model, "--engine", engine, "--max", "8192")
            for release in RELEASES.get(engine, ()):
                yield ("plan", model, "--engine", engine, "--engine-version", release)
    for line in (REPORTS / "cases.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        yield tuple(shlex.split(line.split("\t")[1])[1:])
    for engine in TABLES:
        for row in rows(engine):
            yield ("check", *shlex.split(row.example))


def answer(words: Words) -> str:
    """Return what one command leaves with and prints; of a plan, what it and its formula hold."""
    if words[0] == PLAN:
        return _planned(*words[1:])
    if "--format" not in words and words[0] != "diff":
        own = words.index("--") if "--" in words else len(words)
        words = (*words[:own], "--format", "json", *words[own:])
    done = call(*words)
    return f"exit {done.code}\n{done.out}\n{done.err}"


def _planned(name: str, engine: str, dtype: str, tp: str, pp: str) -> str:
    model = _model(name)
    try:
        found = plan(
            model,
            Deployment(
                engine=engine,
                kv_cache_dtype=dtype,
                tensor_parallel_size=int(tp),
                pipeline_parallel_size=int(pp),
            ),
        )
        result = [summarise(found), per_token(found, tokens=usual_lengths([model]), explain=True)]
    except KvcalcError as error:
        return f"{type(error).__name__}: {error}\n{error.hint}"
    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


@lru_cache(maxsize=2)
def _model(name: str) -> ModelSpec:
    return load_model_preset(name).spec


def _answers(batch: list[Words]) -> list[tuple[str, str]]:
    os.chdir(REPORTS)
    return [(shlex.join(words), answer(words)) for words in batch]


def write(folder: Path) -> None:
    """Write the answers of the whole grid, in parts."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    grid = list(dict.fromkeys((*plans(), *commands())))
    batches = [grid[at : at + 500] for at in range(0, len(grid), 500)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for number, found in enumerate(pool.map(_answers, batches)):
            with gzip.open(folder / f"{number:03}.json.gz", "wt", compresslevel=1) as file:
                json.dump(found, file)
            print(f"{number + 1} of {len(batches)}", file=sys.stderr)


def read(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands of a folder with their answers."""
    for path in sorted(folder.glob("*.json.gz")):
        with gzip.open(path, "rt") as file:
            yield from json.load(file)


def diff(before: Path, after: Path) -> int:
    """Print what differs; return how many answers do."""
    new = dict(read(after))
    differ = 0
    total = 0
    for command, old in read(before):
        total += 1
        if new.get(command) == old:
            continue
        differ += 1
        print(f"== {command}")
        lines = difflib.unified_diff(
            old.splitlines(), new.get(command, "").splitlines(), lineterm="", n=0
        )
        for line in list(lines)[2:12]:
            print(f"   {line[:160]}")
    print(f"{differ} of {total} answers differ")
    return differ


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder))
        case ["diff", before, after]:
            sys.exit(min(diff(Path(before), Path(after)), 1))
        case _:
            sys.exit(__doc__)
