"""Every context that the real llama.cpp was asked for: cells, K, V, states, refusals are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import FullAttention
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.models.gguf import WITHOUT_CACHE
from tests.conftest import ABSENT, SHARED
from tests.engines.llamacpp import record
from tests.engines.llamacpp.rows import compare, deployment, planned, pools_of, rows
from tests.engines.llamacpp.tally import FILES, tally

MORE = Path(__file__).parents[2] / "models" / "gguf" / "llamacpp_more.jsonl"
"""Small shapes of every architecture that llama.cpp builds from key-values alone."""

MTP_ROWS = Path(__file__).with_name("mtp_rows.jsonl")
"""Contexts of the layers that predict further tokens, asked later."""

UNREAD = {
    "mimo2 pattern shorter": "kvcalc's reader refuses a list shorter than the layers",
}
NO_MTP = ("minimax-m3", "kimi-linear", "falcon-h1", "granitehybrid", "lfm2")
"""llama.cpp makes an MTP context with all layers for these, which no graph of theirs can use."""


def test_every_answer_is_equal() -> None:
    """Sized or refused, each answer is kvcalc's own."""
    for name in FILES:
        assert tally(name).wrong == ()


def test_as_many_are_compared_as_were_asked() -> None:
    found = tally("rows.jsonl")
    assert (found.questions, found.answers, found.refusals) == (221, 218, 3)
    assert not found.left_out
    further = tally("more_rows.jsonl")
    assert (further.questions, further.answers, further.refusals) == (400, 306, 92)
    assert sum(further.left_out.values()) == 2


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_the_compact_form_has_every_question() -> None:
    """The shared answers, put into compact form anew, are what the tests compare with."""
    models: dict[str, Any] = {}
    assert record.shared_rows(models) == rows()
    written = json.loads(record.MODELS.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(models)).items() <= written.items()


def _conserves(found: CachePlan) -> None:
    longest = found.max_model_len
    for n in sorted({1, 2, 127, 128, 129, 1000, 1025, longest // 2, longest - 1, longest}):
        if n > longest:
            continue
        for wastes in (found.wastes(n), found.wastes_at_admission(n), found.contiguous().wastes(n)):
            named = sum(wastes.by_name().values())
            assert wastes.reserved_bytes == wastes.used_bytes + named
        assert found.bytes_held(n) == found.wastes(n).reserved_bytes


def test_reserved_is_used_plus_wastes() -> None:
    """On every row, for short and long sequences."""
    for row in rows():
        if not row.get("refused"):
            _conserves(planned(row))


def test_a_sequence_of_the_whole_context_fits() -> None:
    """All sequences fit where each has cells of its own; one does where they share."""
    for row in rows():
        if row.get("refused"):
            continue
        found = planned(row)
        sequences = row["ctx"].get("n_seq_max", 1)
        apart = not row["ctx"].get("kv_unified", False)
        names = {pool.name for pool in found.rank.pools}
        expected = sequences if apart or "csa" in names or names == {"state"} else 1
        answer = found.capacity()
        assert answer.fits
        assert answer.max_sequences == expected, row["name"]
        assert answer.max_model_len_that_fits == found.max_model_len


def test_no_more_memory_is_used_than_there_is() -> None:
    """A cache that the settings fix does not start in less than it takes."""
    found = planned(rows()[0])
    total = rows()[0]["total"]
    assert found.capacity(total).fits
    assert not found.capacity(total - 1).fits
    assert found.capacity(total - 1).max_model_len_that_fits == 0


def test_more_architectures() -> None:
    """A small shape of every other architecture, drafts' contexts and odd corners as well."""
    compared = 0
    for line in MORE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["name"] in UNREAD or row["arch"] in WITHOUT_CACHE:
            continue
        asked, spec = deployment(row["ctx"]), record.read_model(row)
        if row["ctx"].get("ctx_type") == "mtp" and row["arch"] in NO_MTP:
            with pytest.raises(UnsupportedError, match="no MTP context"):
                plan(spec, asked)
            continue
        found = plan(spec, asked)
        assert compare(record.caches(row), pools_of(found, row["ctx"])) == [], row["name"]
        _conserves(found)
        compared += 1
    assert compared >= 180


def test_contexts_of_prediction_layers() -> None:
    """mimo2's rows are what its log says, as its graph then misses weights that no shape has."""
    asked = [json.loads(line) for line in MTP_ROWS.read_text(encoding="utf-8").splitlines()]
    for row in asked:
        found = plan(record.read_model(row), deployment(row["ctx"]))
        assert compare(record.caches(row), pools_of(found, row["ctx"])) == [], row["name"]
        _conserves(found)
    assert {row["arch"] for row in asked} == {
        "mimo2",
        "deepseek2",
        "glm-dsa",
        "cohere2moe",
        "qwen35",
    }


def test_a_context_of_prediction_layers_needs_a_graph_of_its_own() -> None:
    """glm4, exaone-moe and bailingmoe2 never load them; nemotron_h's context has all layers."""
    heads = FullAttention(num_kv_heads=2, head_dim=64)
    layers = (LayerRun(count=2, caches=(heads,)),)
    for arch in ("glm4", "exaone-moe", "bailingmoe2", "nemotron_h"):
        model = ModelSpec(
            name="x",
            num_hidden_layers=2,
            dtype="float16",
            layers=layers,
            draft_layers=(LayerRun(count=1, caches=(heads,)),),
            architecture=arch,
        )
        asked = Deployment(engine="llama.cpp", speculative_method="mtp", max_model_len=512)
        with pytest.raises(UnsupportedError, match=f"no MTP context for {arch}"):
            plan(model, asked)


@pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)
def test_corpus_files_end_to_end() -> None:
    """Every GGUF file of the corpus gives a plan; where llama.cpp ran it, its bytes."""
    files = sorted((SHARED / "corpus" / "gguf").glob("*.gguf"))
    asked = {row["model"] for row in rows()}
    for path in files:
        spec = record.read_model({"gguf": path.name})
        found = plan(spec, Deployment(engine="llama.cpp"))
        assert found.max_sequences == 4
        assert found.capacity().fits
        assert path.name in asked
    assert len(files) >= 10
