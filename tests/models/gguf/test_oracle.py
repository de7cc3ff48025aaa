"""Every answer of llama.cpp, layer by layer and to the byte, from a file with the same keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.models.gguf import ARCHITECTURES, WITHOUT_CACHE, GgufModel, read_gguf
from tests.models.gguf.oracle import compare
from tests.models.gguf.writer import metadata

SHARED = Path(__file__).parents[4] / "shared"
CORPUS = SHARED / "corpus" / "gguf"
ABSENT = "../shared is absent"


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.get("ok", True)]


ORACLE = _rows(SHARED / "oracle" / "llamacpp_results.jsonl")
WRITTEN = [row for row in ORACLE if row["hp"]]
FILES = [row for row in ORACLE if row["gguf"]]
MORE = _rows(Path(__file__).with_name("llamacpp_more.jsonl"))
"""Recorded with ../shared/oracle/llamacpp_oracle.py and xllamacpp 2026.10.11549: a small shape of
every architecture that it builds from key-values alone, and variations. Keys that no rule reads
are left out."""

NOT_COMPARED = {
    "mimo2 pattern shorter": "kvcalc refuses a list shorter than the layers; llama.cpp pads it",
}
"""Rows that are not compared, and why."""


def _read(tmp_path: Path, row: dict[str, Any]) -> GgufModel:
    path = tmp_path / "m.gguf"
    path.write_bytes(metadata(row["arch"], row["hp"]))
    return read_gguf(str(path))


@pytest.mark.skipif(not WRITTEN, reason=ABSENT)
def test_every_oracle_row(tmp_path: Path) -> None:
    """All rows that ran and have keys are equal: layers, K and V a cell, states a sequence."""
    models: dict[str, GgufModel] = {}
    faults = {}
    for row in WRITTEN:
        key = json.dumps([row["arch"], row["hp"]], sort_keys=True)
        if key not in models:
            models[key] = _read(tmp_path, row)
        if fault := compare(row, models[key]):
            faults[row["name"]] = fault
    assert not faults
    assert len(WRITTEN) >= 190


@pytest.mark.skipif(not FILES, reason=ABSENT)
def test_corpus_files() -> None:
    """The files of the corpus keep what llama.cpp allocated for them."""
    for row in FILES:
        model = read_gguf(str(CORPUS / row["gguf"]))
        assert compare({**row, "arch": model.spec.architecture}, model) == [], row["name"]
    assert {row["gguf"] for row in FILES} == {path.name for path in CORPUS.glob("*.gguf")}


def test_more_architectures(tmp_path: Path) -> None:
    """A small shape of every other architecture, and the odd corners, are equal as well."""
    faults = {}
    for row in MORE:
        if row["name"] in NOT_COMPARED or row["arch"] in WITHOUT_CACHE:
            continue
        if fault := compare(row, _read(tmp_path, row)):
            faults[row["name"]] = fault
    assert not faults


def test_coverage() -> None:
    """Only these architectures rest on the source alone, with no answer of llama.cpp."""
    seen = {row["arch"] for row in (*WRITTEN, *MORE)}
    unseen = set(ARCHITECTURES) - seen
    plain = {"qwen3tts", "chameleon", "plm", "apertus", "eagle3"}
    assert unseen == plain | {"t5", "rwkv6qwen2"} or not WRITTEN


def test_no_cache_in_llama_cpp_either() -> None:
    """Where the oracle built an architecture that kvcalc refuses, it had no memory at all."""
    rows = [row for row in MORE if row["arch"] in WITHOUT_CACHE]
    assert len(rows) >= 5
    assert all(row["memory"] is None for row in rows)
