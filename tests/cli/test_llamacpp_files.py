"""The command line beside what the real llama.cpp allocated for every GGUF file of the corpus.

The bytes stand in the README of ../shared/corpus/gguf: K, V and states, cells and streams, of three
runs of each file (llama.cpp b11549).
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.harness import call, rows_of
from tests.conftest import ABSENT, SHARED

FOLDER = SHARED / "corpus" / "gguf"
RUNS = {
    "A": ("-c", "4096", "-np", "1"),
    "B": ("-c", "8192", "-np", "4", "--engine-arg", "kv_unified=true", "--kv-cache-dtype", "q8_0"),
    "C": ("-c", "5000", "-np", "3"),
}
"""The README's runs as a user types them: tokens, sequences, one pool or one each, types."""

FILES = tuple(
    f"{name}.gguf"
    for name in (
        "deepseek-v3.meta",
        "deepseek2-mla-tiny",
        "gemma-3-27b.meta",
        "gemma3-iswa-tiny",
        "gpt-oss-iswa-sinks-tiny",
        "jamba-mamba-hybrid-tiny",
        "lfm2-hybrid-per-layer-heads-tiny",
        "llama-3.1-8b.meta",
        "llama-gqa-tiny",
        "qwen2-gqa-bias-tiny",
        "qwen3-next-80b-a3b.meta",
    )
)
_CACHE = re.compile(r"(kv|base|swa|attn): (\d+) x (\d+), (\d+)")
_KEYS = ("k", "latent", "rope")

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)


class Allocated(NamedTuple):
    """A row of the README: caches as (cells in all, layers), and bytes."""

    caches: tuple[tuple[int, int], ...]
    recurrent: bool
    k_bytes: int
    v_bytes: int
    state_bytes: int
    total_bytes: int


@cache
def readme() -> dict[tuple[str, str], Allocated]:
    """Return the README's rows by file and run."""
    found = {}
    for row in rows_of((FOLDER / "README.md").read_text(encoding="utf-8")):
        if len(row) == 7 and row[1] in RUNS:
            caches = tuple(
                (int(cells) * int(streams), int(layers))
                for _, cells, streams, layers in _CACHE.findall(row[2])
            )
            sizes = [int(cell.replace(",", "")) for cell in row[3:]]
            found[f"{row[0]}.gguf", row[1]] = Allocated(caches, "recr" in row[2], *sizes)
    return found


def planned(file: Path, run: str) -> Any:
    """Return the one result of `kvcalc plan FILE` for a run."""
    outcome = call("plan", str(file), "--engine", "llama.cpp", *RUNS[run], "--format", "json")
    assert outcome.code == 0, outcome
    (found,) = outcome.results
    return found


def test_every_file_and_row_is_asked() -> None:
    """No file of the folder and no row of its README is left out."""
    assert {path.name for path in FOLDER.glob("*.gguf")} == set(FILES)
    assert set(readme()) == {(file, run) for file in FILES for run in RUNS}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("file", FILES)
def test_bytes_are_those_that_llama_cpp_allocated(file: str, run: str) -> None:
    expected = readme()[file, run]
    (rank,) = planned(FOLDER / file, run)["ranks"]
    pools = rank["pools"]
    rows = [pool for pool in pools if pool["name"] != "state"]

    assert tuple((pool["units"], pool["layers"]) for pool in rows) == expected.caches
    assert any(pool["name"] == "state" for pool in pools) == expected.recurrent
    sizes = [(role, size) for pool in rows for role, size in pool["role_bytes"].items()]
    assert sum(size for role, size in sizes if role in _KEYS) == expected.k_bytes
    assert sum(size for role, size in sizes if role == "v") == expected.v_bytes
    assert {role for role, _ in sizes} <= {*_KEYS, "v"}
    states = sum(pool["total_bytes"] for pool in pools if pool["name"] == "state")
    assert states == expected.state_bytes
    assert sum(pool["total_bytes"] for pool in pools) == expected.total_bytes


@cache
def model_bytes() -> dict[str, int]:
    """Return what the weights of each whole file took of a CPU's buffers, as llama.cpp counts."""
    found = {}
    for line in (SHARED / "oracle" / "llamacpp_results.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if (row.get("gguf") or "").endswith("-tiny.gguf") and row["ok"]:
            found[row["gguf"]] = sum(buffer["model"] for buffer in row["breakdown"])
    return found


@pytest.mark.parametrize("file", [file for file in FILES if "-tiny" in file])
def test_weights_are_those_that_llama_cpp_loaded(file: str) -> None:
    """All of them in host memory: sums of tensors that start at multiples of 32, no copy."""
    outcome = call(
        "plan", str(FOLDER / file), "--engine", "llama.cpp", *RUNS["A"],
        "--engine-arg", "n_gpu_layers=0", "--format", "json",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    (rank,) = outcome.results[0]["ranks"]
    assert (rank["name"], rank["weights_bytes"]) == ("host", model_bytes()[file])
