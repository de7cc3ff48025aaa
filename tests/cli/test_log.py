"""kvcalc log: one start or two, in every format, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.harness import call, is_fault, validate
from tests.measure.logs.samples import ALL

KEYS = ("engine", "engine_version", "facts", "predicted", "differences")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name, text in ALL.items():
        Path(f"{name}.log").write_text(text, encoding="utf-8")
    return "vllm-v1.log"


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("name", ALL)
def test_every_sample_is_a_document(name: str) -> None:
    """What the schema says, with the keys that the contract promises; notes alone on stderr."""
    found = call("log", f"{name}.log", "--format", "json")

    assert found.code == 0, found.err
    assert validate("log", found.document) == []
    (result,) = found.results
    assert all(key in result for key in KEYS)
    for difference in result["differences"]:
        assert {"name", "logged", "predicted", "explained_by"} <= set(difference)
    assert all(line.startswith("note: ") for line in found.err.splitlines())


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("form", ["table", "markdown", "csv"])
def test_formats(form: str) -> None:
    found = call("log", "vllm-v1.log", "--format", form)

    assert found.code == 0
    assert "36,832" in found.out or "36832" in found.out
    assert "kv_cache_tokens" in found.out.replace("\\", "")


def test_csv_is_the_json(log: str) -> None:
    rows = list(csv.DictReader(io.StringIO(call("log", log, "-f", "csv").out)))
    (result,) = call("log", log, "-f", "json").results
    metrics = {row["metric"]: row["value"] for row in rows}

    assert metrics["facts.kv_cache_tokens.low"] == str(result["facts"]["kv_cache_tokens"]["low"])
    assert metrics["predicted.max_concurrency.text"] == "1.12"


def test_stdin(log: str) -> None:
    del log
    found = call("log", "-", "-f", "json", stdin=ALL["vllm-v1"].encode())
    assert found.results[0]["file"] == "stdin"


def test_flags_come_before_the_log(log: str) -> None:
    """What is given on the command line is right about what the log says."""
    found = call("log", log, "-f", "json", "--model", "llama-3.1-8b", "--kv-cache-dtype", "fp8")
    (result,) = found.results
    settings = {s["name"]: (s["value"], s["source"]) for s in result["settings"]}

    assert result["model"] == "llama-3.1-8b"
    assert settings["kv_cache_dtype"] == ("fp8", "given")
    assert result["differences"]


def test_a_card_makes_a_budget(log: str) -> None:
    (result,) = call("log", log, "-f", "json", "--gpu", "rtx-4090").results
    assert result["budget"][0]["total_bytes"] == result["total_bytes"]
    assert {term["name"] for term in result["terms"]} >= {"weights", "activation", "cache"}
    text = call("log", log, "--gpu", "rtx-4090").out
    assert "wwww" in text
    assert "kvcalc without the log" in text


def test_two_logs(log: str) -> None:
    Path("b.log").write_text(
        ALL["vllm-v1"]
        .replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8")
        .replace("36,832", "73,664"),
        encoding="utf-8",
    )
    found = call("log", log, "b.log", "-f", "json")

    assert found.code == 0
    assert validate("log-diff", found.document) == []
    (result,) = found.results
    assert result["tokens_gained"] == 73_664 - 36_832
    assert "kv_cache_dtype" in call("log", log, "b.log").out


def test_starts(log: str) -> None:
    Path("two.log").write_text("\n".join([ALL["vllm-v1"]] * 2), encoding="utf-8")
    first = call("log", "two.log", "--start", "1", "-f", "json").results[0]
    both = call("log", "two.log", log, "--start", "1", "--start", "1")

    assert (first["start"], first["starts"]) == (1, 2)
    assert both.code == 0


def test_a_settings_file_does_not_override_a_log(log: str) -> None:
    Path("kvcalc.yaml").write_text("model: opt-13b\nunits: decimal\n", encoding="utf-8")
    found = call("log", log, "-f", "json")

    assert found.results[0]["model"] == "qwen3-8b"
    assert "not taken from the settings file" in found.err


def test_llamacpp_flags(log: str) -> None:
    del log
    (result,) = call("log", "llama.cpp.log", "-f", "json", "--ctx-size", "4096").results
    assert any(d["name"] == "cells" for d in result["differences"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no log was named"),
        (["a", "b", "c"], "3 logs"),
        (["-", "-"], "stdin is asked for twice"),
        (["none.log"], "no such file"),
        (["vllm-v1.log", "--start", "4"], "there is no start 4"),
        (["vllm-v1.log", "--start", "x"], "is not the number of a start"),
        (["vllm-v1.log", "--start", "0"], "is not the number of a start"),
        (["vllm-v1.log", "--engine", "sglang"], "these are lines of vllm"),
        (["vllm-v1.log", "--start", "1", "--start", "2"], "more starts than logs"),
        (["vllm-v1.log", "--model", "opt-13b", "--model", "opt-1.3b"], "a log is of one model"),
        (["vllm-v1.log", "--block", "16", "--block", "32"], "a log is of one deployment"),
        (["vllm-v1.log", "--gpu", "h10"], "unknown GPU"),
        (["vllm-v1.log", "--report", "json:vllm-v1.log"], "would replace"),
        (["plain.txt"], "no start-up line of a known engine"),
    ],
)
def test_refusals(log: str, arguments: list[str], message: str) -> None:
    """One line, one hint, exit 2."""
    del log
    Path("plain.txt").write_text("nothing here\n", encoding="utf-8")
    assert message in is_fault(call("log", *arguments))


def test_words_of_a_log_do_no_harm(log: str) -> None:
    """Escapes and control characters of a log reach no terminal."""
    del log
    hostile = ALL["vllm-v1"].replace("Qwen/Qwen3-8B", "x\x1b]0;title\x07\x1b[2J[red]")
    found = call("log", "-", stdin=hostile.encode())

    assert found.code == 0
    assert "\x1b" not in found.out + found.err
    json.loads(call("log", "-", "-f", "json", stdin=hostile.encode()).out)
