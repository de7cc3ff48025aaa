"""What comes out: table, json, csv and markdown, on stdout and in reports."""

from __future__ import annotations

import ast
import csv
import errno
import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcalc import __version__
from kvcalc.answers.results import FileFault
from kvcalc.engines import ENGINES
from tests.cli.harness import call, is_fault, python, rows_of, validate

FRAG = ["frag", "--free", "15GiB", "--largest", "1.9GiB", "--request", "2GiB"]
HYBRIDS = ["qwen3.5-27b", "gemma-3-27b", "nemotron-3-nano-30b-a3b", "llama-4-scout"]
VLLM = ["--engine", "vllm", "--max", "8192"]
# One of every kind that vLLM groups and pages in a way of its own.
GROUPED = ["qwen3.5-27b", "gemma-3-27b", "gpt-oss-120b", "llama-4-scout", "jamba-v0.1"]
GROUPED += ["deepseek-v3.2", "deepseek-v4-flash", "kimi-k3", "falcon-mamba-7b"]
COMMANDS = {
    "probe": [
        ["probe", "--dry-run"],
        ["probe", "qwen3.5-27b", *VLLM, "--gpu", "h200", "--dry-run", "--repeat", "1"],
    ],
    "per-token": [
        ["per-token"],
        ["per-token", *HYBRIDS, "deepseek-v3", "opt-13b"],
        ["per-token", "llama-3.1-405b", "--tokens", "1000000000000", "--explain"],
        ["per-token", "llama-3.1-70b", "--tp", "16", "--pp", "3", "--explain"],
        ["per-token", "--layers", "3", "--kv-heads", "5", "--head-dim", "33"],
        ["per-token", "deepseek-v2-lite", "--kv-cache-dtype", "6bit"],
        ["per-token", *GROUPED, *VLLM],
    ],
    "compare": [
        ["compare"],
        ["compare", "--block", "16", "--block", "32", "--block", "64", "--block", "128"],
        ["compare", *HYBRIDS, "--block", "8", "--kv-memory", "80GiB", "--explain"],
        ["compare", "--lengths", "99999999999999999999x2147483647", "--max", "2147483647"],
        ["compare", "--kv-memory", "99999PiB"],
        ["compare", "--kv-memory", "0"],
        ["compare", "--tp", "8", "--pp", "2", "--units", "decimal"],
        ["compare", "--max", "100", "--over", "keep"],
        ["compare", *GROUPED, *VLLM, "--kv-memory", "80GiB", "--explain"],
    ],
    "frag": [
        FRAG,
        [*FRAG, "llama-3.1-8b", "qwen3.5-27b", "--explain", "--units", "decimal"],
        ["frag", "--holes", "1.9GiB,29x512MiB", "--request", "2GiB"],
        ["frag", "--free", "0", "--largest", "0"],
        ["frag", "--free", "99999PiB", "--largest", "99998PiB", "--request", "1"],
        [*FRAG, *GROUPED, *VLLM],
    ],
    "plan": [
        ["plan"],
        ["plan", *HYBRIDS, "deepseek-v4-flash", "--kv-memory", "15GiB"],
        ["plan", *GROUPED, *VLLM],
        ["plan", *GROUPED, *VLLM, "--kv-memory", "15GiB", "--units", "decimal"],
        ["plan", *GROUPED, *VLLM, "--kv-memory", "100MiB"],
        ["plan", "llama-3.1-8b", *VLLM, "--kv-memory", "99999PiB"],
        ["plan", "llama-3.1-8b", *VLLM, "--num-gpu-blocks-override", "100"],
        ["plan", "qwen3-next-80b-a3b", *VLLM, "--pp", "5", "--tp", "2", "--kv-memory", "15GiB"],
        [
            "plan",
            "gemma-3-27b",
            *VLLM,
            "--block",
            "32",
            "--block",
            "64",
            "--kv-cache-dtype",
            "bf16",
            "--kv-cache-dtype",
            "fp8",
        ],
        [
            "plan",
            "gemma-3-27b",
            *VLLM,
            "--engine-version",
            "0.19.1",
            "--kv-memory",
            "15GiB",
            "--disable-hybrid-kv-cache-manager",
            "--max-num-batched-tokens",
            "2048",
        ],
        [
            "plan",
            "llama-2-7b",
            "jamba-v0.1",
            *VLLM[:2],
            "--engine-version",
            "0.6.4",
            "--kv-memory",
            "10GiB",
        ],
        [
            "plan",
            "qwen3.5-27b",
            *VLLM,
            "--speculative-method",
            "mtp",
            "--num-speculative-tokens",
            "2",
            "--no-enable-prefix-caching",
        ],
        ["plan", "llama-3.1-8b", "qwen3-8b", "--max", "8192", "--kv-memory", "10GiB"]
        + [word for engine in ENGINES if engine != "tgi" for word in ("--engine", engine)],
    ],
    "capacity": [
        ["capacity", "llama-3.1-8b", "--gpu", "l40s", "--max", "131072", "--levers", "--suggest"],
        ["capacity", *GROUPED, *VLLM, "--kv-memory", "15GiB", "--at", "1000", "--layouts"],
        ["capacity", *HYBRIDS, "--gpu", "b200", "--tp", "2", "--pp", "2", "--max", "4096"],
        ["capacity", "gemma-3-27b", "--gpu", "rtx-4090", "--units", "decimal", "--solve", "gpus"],
        [
            "capacity",
            "qwen3-8b",
            "--engine",
            "llama.cpp",
            "--gpu",
            "rtx-4090",
            "-c",
            "8192",
            "--solve",
            "ngl",
            "--quantization",
            "q4_k_m",
        ],
        [
            "capacity",
            "llama-3.1-8b",
            "--gpu-memory",
            "24GiB",
            "--instances",
            "2",
            "--lengths",
            "50x200,3000",
        ],
    ],
    "engines": [["engines"]],
    "layers": [["layers", "gemma-3-27b"], ["layers", *HYBRIDS, "--kv-cache-dtype", "fp8"]],
    "layers-diff": [
        ["layers", "llama-3.1-8b", "llama-3.1-70b"],
        ["layers", "qwen3.5-27b", "jamba-v0.1"],
    ],
    "gpus": [["gpus"], ["gpus", "h100-80gb", "mi300x"]],
    "presets-list": [["presets", "list"]],
    "presets-show": [["presets", "show", *HYBRIDS, "deepseek-v3"]],
    "presets-validate": [["presets", "validate"]],
}
ALL = [(name, arguments) for name, cases in COMMANDS.items() for arguments in cases]
IDS = [" ".join(arguments)[:60] for _, arguments in ALL]
every_command = pytest.mark.parametrize(("name", "arguments"), ALL, ids=IDS)

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

TRACE = "ContextTokens,GeneratedTokens\n100,28\n4000,96\n"
CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "dtype": "bfloat16",
        "max_position_embeddings": 2048,
        "vocab_size": 100,
    }
)
HOSTILE = "a|b<c>*_[x](y)`#~~é漢 [/] & .csv"


class TestJson:
    @every_command
    def test_valid(self, name: str, arguments: list[str]) -> None:
        """Every command's JSON is what its shipped schema says, and knows its own name."""
        outcome = call(*arguments, "--format", "json")
        document = outcome.document

        assert outcome.code == 0
        assert all(line.startswith("note: ") for line in outcome.err.splitlines())
        assert validate(name, document) == []
        assert list(document) == [
            "schema",
            "kvcalc_version",
            "inputs",
            "results",
            "notes",
            "warnings",
        ]
        assert document["schema"] == f"kvcalc.{name}/1"
        assert document["kvcalc_version"] == __version__
        assert isinstance(document["results"], list)

    @every_command
    def test_bytes_are_ints(self, name: str, arguments: list[str]) -> None:
        """What is counted in bytes is an int or null, and nothing is a dash."""
        for path, value in _leaves(call(*arguments, "--format", "json").results):
            if ".sources." in path:
                continue  # words on where a figure was read
            assert value != "-"
            if path.endswith(("_bytes", ".bytes")):
                assert value is None or type(value) is int, (path, value)
            if path.endswith("_ratio"):
                assert value is None or 0 <= value <= 1, (path, value)

    @every_command
    def test_no_paths(self, name: str, arguments: list[str]) -> None:
        """No absolute path of this machine is told."""
        text = call(*arguments, "--format", "json").out

        assert str(Path.cwd()) not in text
        assert str(Path(__file__).parents[2]) not in text

    def test_deterministic(self) -> None:
        """Twice the same question is twice the same text: no time, no random part."""
        assert call(*FRAG, "-f", "json") == call(*FRAG, "-f", "json")

    def test_repeats_its_combination(self) -> None:
        """Each entry of compare, frag and per-token says which combination it is for."""
        for command in (["compare"], FRAG, ["per-token"], ["plan"]):
            results = call(*command, "--block", "8", "--block", "64", "-f", "json").results
            assert [r["block_size"] for r in results] == [8, 64], command
            for key in ("model", "engine", "max_model_len"):
                assert all(key in r for r in results), (command, key)

    def test_inputs(self) -> None:
        """The inputs are echoed as typed, and as resolved where a default was taken."""
        document = call("compare", "--kv-memory", "15 GiB", "-f", "json").document

        assert document["inputs"]["kv_memory"] == "15 GiB"
        text = json.dumps(document["inputs"])
        assert "8192" in text
        assert "qwen3.5-27b-attention" in text

    def test_contract_keys(self) -> None:
        """Every key that the contract promises is there."""
        compare = call("compare", "--kv-memory", "1GiB", "-f", "json").results[0]
        frag = call(*FRAG, "-f", "json").results[0]
        per_token = call("per-token", "-f", "json").results[0]
        plan = call("plan", "gemma-3-27b", *VLLM, "--kv-memory", "1GiB", "-f", "json").results[0]

        for text, found in (
            (COMPARE_KEYS, compare),
            (FRAG_KEYS, frag),
            (SIZE_KEYS, per_token),
            (PLAN_KEYS, plan),
        ):
            paths = {re.sub(r"\.\d+", "", path) for path, _ in _leaves(found)}
            for key in text.split():
                assert any(p == key or p.startswith(f"{key}.") for p in paths), key

    def test_concurrency_only_when_asked(self) -> None:
        """Without a cache there is nothing to say of what fits."""
        assert call("compare", "-f", "json").results[0]["concurrency"] is None

    def test_undecodable_file_name(self, tmp_path: Path) -> None:
        """A trace whose name is no UTF-8 is compared like any other."""
        name = os.fsdecode(b"\xff.csv")
        try:
            Path(name).write_text(TRACE, encoding="utf-8")
        except OSError:
            pytest.skip("this file system takes no such name")
        outcome = call("compare", "--trace", name, "-f", "json")

        assert outcome.code == 0, outcome.err
        assert outcome.results[0]["workload"]["requests"] == 2

    def test_narrow_encoding(self) -> None:
        """A console without é gets JSON that says é all the same."""
        Path("é漢.csv").write_text(TRACE, encoding="utf-8")
        outcome = call("compare", "--trace", "é漢.csv", "-f", "json", encoding="ascii")

        assert outcome.results[0]["workload"]["name"] == "é漢.csv"


COMPARE_KEYS = """
model engine bytes_per_token state_bytes block_size max_model_len
contiguous.reserved_bytes_per_request
paged.block_bytes paged.max_tail_tokens paged.max_tail_bytes paged.mean_tail_bytes
workload.name workload.requests workload.over workload.used_bytes
contiguous_total.reserved_bytes contiguous_total.used_bytes contiguous_total.waste_bytes
contiguous_total.waste_ratio contiguous_total.waste.reservation_bytes
contiguous_total.waste.future_bytes contiguous_total.waste.tail_bytes
contiguous_total.waste.retention_bytes contiguous_total.waste.page_padding_bytes
contiguous_total.waste.group_padding_bytes contiguous_total.waste.pool_overhead_bytes
contiguous_total.waste.external_bytes paged_total.waste.external_bytes paged_total.waste_ratio
reserved_gain concurrency.contiguous concurrency.paged concurrency.gain
"""
FRAG_KEYS = """
free_bytes largest_free_bytes holes request_bytes fits_contiguous fits_paged assumes
external_fragmentation_ratio unusable_ratio sequences_of_max.bytes sequences_of_max.in_request
sequences_of_max.in_free sequences_of_max.in_holes verdict
"""
SIZE_KEYS = """
model kv_cache_dtype bytes_per_token growth.bytes growth.tokens bytes_per_token_past_windows
state_bytes encoder_bytes block_size block_bytes layers.kind layers.count layers.bytes_per_token
layers.state_bytes sequences.tokens sequences.bytes
"""
PLAN_KEYS = """
model engine engine_version kv_cache_dtype num_gpus block_size block_bytes max_model_len
bytes_per_token reuse_tokens units_needed needed_bytes
request.reserved_bytes request.used_bytes request.waste_bytes request.waste_ratio
request.waste.reservation_bytes request.waste.future_bytes request.waste.tail_bytes
request.waste.retention_bytes request.waste.page_padding_bytes request.waste.group_padding_bytes
request.waste.pool_overhead_bytes request.waste.external_bytes
groups.pool groups.name groups.layers groups.block_size groups.keeps groups.page_bytes
groups.group_bytes groups.content_bytes groups.units_held groups.units_needed
ranks.name ranks.num_gpus ranks.block_bytes ranks.needed_bytes
start_up.kv_cache_bytes start_up.num_blocks start_up.kv_cache_tokens start_up.max_concurrency
start_up.max_sequences start_up.fits start_up.needed_bytes start_up.max_model_len_that_fits
start_up.overhead_bytes start_up.start start_up.max_model_len_served start_up.beside_bytes
start_up.log notes convention source
"""


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{i}" if path else str(i))
    else:
        yield path, value


class TestCsv:
    @every_command
    def test_same_as_json(self, name: str, arguments: list[str]) -> None:
        """Every number of the JSON is a row of the CSV, with all its digits."""
        rows = list(csv.DictReader(io.StringIO(call(*arguments, "-f", "csv").out)))
        results = call(*arguments, "-f", "json").results
        found = [(row["metric"], row["value"]) for row in rows]
        keys = set(rows[0]) - {"metric", "value"}
        expected = [
            (path, "" if v is None else str(v).lower() if isinstance(v, bool) else str(v))
            for result in results
            for path, v in _leaves(result)
            if path not in keys
        ]

        assert found == expected

    @every_command
    def test_rows_tell_their_combination(self, name: str, arguments: list[str]) -> None:
        """No two rows of different values look alike but for the value."""
        rows = list(csv.reader(io.StringIO(call(*arguments, "-f", "csv").out)))

        assert len({len(row) for row in rows}) == 1
        assert len({tuple(row[:-1]) for row in rows}) == len({tuple(row) for row in rows})

    def test_blocks_of_frag(self) -> None:
        """Rows of frag say which block they are for."""
        text = call(*FRAG, "--block", "8", "--block", "64", "-f", "csv").out

        assert "block_size" in text.splitlines()[0]


class TestMarkdown:
    @every_command
    def test_well_formed(self, name: str, arguments: list[str]) -> None:
        """Every table has as many cells in each row as in its head."""
        text = call(*arguments, "-f", "markdown").out

        _check_tables(text)

    def test_hostile_trace(self) -> None:
        """A trace's name can neither break a table nor make a tag, a link or emphasis."""
        name = HOSTILE.replace("/", "")
        Path(name).write_text(TRACE, encoding="utf-8")
        outcome = call("compare", "--trace", name, "-f", "markdown")

        assert outcome.code == 0
        _check_tables(outcome.out)
        _check_inert(outcome.out)

    def test_hostile_preset(self) -> None:
        """Neither can the title, the aliases, the sources and the notes of a preset."""
        _hostile_preset()
        outcome = call("presets", "show", "mine", "-f", "markdown")

        assert outcome.code == 0, outcome.err
        _check_tables(outcome.out)
        _check_inert(outcome.out)


@pytest.fixture(autouse=True)
def _own_presets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own" / "models").mkdir(parents=True)
    monkeypatch.setenv("KVCALC_PRESETS", str(tmp_path / "own"))


def _hostile_preset() -> None:
    text = "'" + HOSTILE + "'"
    Path("own/models/mine.yaml").write_text(
        f"kind: model\nname: mine\ntitle: {text}\naliases: [{text}]\narchitecture: {text}\n"
        "dtype: bfloat16\nnum_hidden_layers: 2\n"
        "layers:\n"
        "  - {kind: full_attention, num_kv_heads: 1, head_dim: 64}\n"
        f"  - {{caches: [], note: {text}}}\n"
        f"notes: [{text}]\n"
        f"source: {{repository: {text}, file: {text}}}\n"
        f"expect: {{bytes_per_token: {{bfloat16: 256}}, confirmed_by: [{text}]}}\n",
        encoding="utf-8",
    )


def _check_tables(text: str) -> None:
    width = 0
    for line in [*text.splitlines(), ""]:
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(rows_of(line)[0])
        assert cells == (width or cells), line
        width = cells
    heads = re.findall(r"^\|.*\|\n\|[ :|-]+\|$", text, re.MULTILINE)
    assert len(heads) == len(re.findall(r"(?:\A|\n\n)\|", text))


def _check_inert(text: str) -> None:
    bare = text.replace("\\\\", "")
    for pattern in (r"(?<!\\)[<*_`]", r"(?<!\\)\]\(", r"(?<!\\)~~"):
        found = re.search(pattern, bare)
        assert found is None, bare[found.start() - 30 : found.end() + 30]


def _logged(value: Any) -> Iterator[str]:
    """Yield the lines of logs in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from inner if key == "log" else _logged(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _logged(inner)


class TestTable:
    @every_command
    @pytest.mark.parametrize("columns", [80, 60, 200])
    def test_nothing_is_cut(
        self, name: str, arguments: list[str], columns: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At any width every number and every word of the full table is there."""
        full = call(*arguments).out
        monkeypatch.setenv("COLUMNS", str(columns))
        narrow = call(*arguments).out

        assert "…" not in narrow
        missing = set(NUMBER.findall(full)) - set(NUMBER.findall(narrow))
        assert missing == set()
        assert set(full.split()) - set(narrow.split()) - _rules(full) == set()

    @every_command
    def test_80_columns(
        self, name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No line is wider than 80 columns where there are 80, beside numbers of 10^18 and more.

        A log's lines are the engine's own, to be searched for: they are never broken.
        """
        monkeypatch.setenv("COLUMNS", "80")
        whole = set(_logged(call(*arguments, "--format", "json").document))

        shown = call(*arguments).out
        huge = any(len(number) > 24 for number in NUMBER.findall(shown))

        for line in shown.splitlines():
            if line not in whole:
                assert len(line) <= 80 or huge or " " not in line.strip(), line

    @every_command
    def test_lines(self, name: str, arguments: list[str]) -> None:
        """Output begins and ends with what it says: no blank first line, no space at an end."""
        lines = call(*arguments).out.split("\n")

        assert lines[0].strip() != ""
        assert lines[-1] == ""
        assert lines[-2] != ""
        assert all(line == line.rstrip() for line in lines)
        assert "\n\n\n" not in "\n".join(lines)

    def test_natural_width_in_a_pipe(self) -> None:
        """Where nobody says how wide the output is, nothing is wrapped."""
        lines = call("frag", *FRAG[1:]).out.splitlines()

        assert len(lines[0]) > 200
        assert any("one range" in line or "no largest hole" in line for line in lines)

    def test_wide_characters(self) -> None:
        """Columns stand under one another although some characters are twice as wide."""
        _hostile_preset()
        outcome = call("presets", "show", "mine")

        assert outcome.code == 0, outcome.err
        assert "é漢 [/]" in outcome.out

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
    def test_narrow_encodings(self, encoding: str) -> None:
        """A console without block characters gets bars and rules that it can show."""
        outcome = call("compare", "--block", "16", encoding=encoding)

        assert outcome.code == 0
        assert outcome.out.isascii()
        assert "######" in outcome.out
        assert "....." in outcome.out
        assert "?" not in outcome.out
        assert "---" in outcome.out

    def test_bars(self) -> None:
        """Bars are on one scale: the article's contiguous bar is seven times the paged one."""
        lines = call("compare").out.splitlines()
        (whole,) = [line for line in lines if line.startswith("contiguous ") and "wasted" in line]
        (paged,) = [line for line in lines if line.startswith("paged") and "wasted" in line]

        assert whole.count("█") + whole.count("░") == 40
        assert paged.count("█") == whole.count("█") == 6

    def test_same_model_twice(self) -> None:
        """Presets of one name from two folders are two models, each with its own contiguous."""
        for folder, layers in (("one", 1), ("two", 2)):
            Path(folder).mkdir()
            Path(folder, "mine.yaml").write_text(
                "kind: model\nname: mine\ntitle: Mine\narchitecture: X\ndtype: bfloat16\n"
                f"num_hidden_layers: {layers}\n"
                f"layers: [{{count: {layers}, kind: full_attention, num_kv_heads: 1,"
                " head_dim: 64}]\n"
                "source: {repository: here, file: here}\n"
                f"expect: {{bytes_per_token: {{bfloat16: {256 * layers}}}, confirmed_by: [me]}}\n",
                encoding="utf-8",
            )
        shown = call("compare", "one/mine.yaml", "two/mine.yaml").out

        assert shown.count("contiguous reserves a request") == 2

    def test_colour(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing but a terminal gets colours, whatever is set."""
        for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CLICOLOR_FORCE"):
            monkeypatch.setenv(name, "1")

        assert "\x1b" not in call("compare").out
        assert "\x1b" not in call("per-token", *HYBRIDS).out


def _rules(text: str) -> set[str]:
    """Parts of a table that are drawn to its width."""
    return {word for word in text.split() if set(word) <= set("─-█░#.")}


class TestUnits:
    def test_decimal(self) -> None:
        """--units decimal prints kB, MB and GB throughout."""
        for arguments in (["compare", "--kv-memory", "15GB"], FRAG, ["per-token"]):
            shown = call(*arguments, "--units", "decimal").out
            assert re.search(r"\d (kB|MB|GB)\b", shown)
            assert not re.search(r"\d [KMGT]iB", shown)

    def test_binary(self) -> None:
        """The default prints KiB, MiB and GiB."""
        for arguments in (["compare"], FRAG, ["per-token"]):
            assert not re.search(r"\d (kB|MB|GB)\b", call(*arguments).out)

    def test_json_is_the_same(self) -> None:
        """Units are for people: the numbers of the JSON do not change."""
        binary, decimal = (
            call("compare", "--units", u, "-f", "json").results for u in ("binary", "decimal")
        )

        assert binary == decimal


class TestReports:
    def test_every_format(self, tmp_path: Path) -> None:
        """One run writes as many formats as are asked for, each as it would be printed."""
        forms = ("json", "csv", "markdown", "table")
        reports = [f"--report={form}:out.{form}" for form in forms]
        shown = call("compare", *reports)

        assert shown.code == 0
        assert shown.out == call("compare").out
        for form in forms:
            text = Path(f"out.{form}").read_bytes().decode("utf-8")
            assert text == call("compare", "-f", form).out
        assert sorted(os.listdir()) == ["out.csv", "out.json", "out.markdown", "out.table", "own"]

    def test_replaces(self) -> None:
        """A report replaces the file of an earlier run, whole."""
        Path("out.csv").write_text("x" * 100_000, encoding="utf-8")
        call("gpus", "l4", "--report", "csv:out.csv")

        assert Path("out.csv").read_bytes().decode() == call("gpus", "l4", "-f", "csv").out

    def test_missing_folder(self) -> None:
        """Where the folder is missing nothing is written, and nothing is printed."""
        is_fault(call("compare", "--report", "json:no/out.json"))

        assert os.listdir() == ["own"]

    def test_second_report_at_fault(self) -> None:
        """Neither is anything printed when a later report cannot be written."""
        is_fault(call("compare", "--report", "json:a.json", "--report", "json:no/b.json"))
        assert [n for n in os.listdir() if n.startswith(".")] == []

    def test_fault_before_reports(self) -> None:
        """A command that is refused writes no report."""
        is_fault(call("compare", "--report", "json:out.json", "--format", "pdf"))
        is_fault(call("compare", "nope", "--report", "json:out.json"))

        assert os.listdir() == ["own"]

    def test_same_path_twice(self) -> None:
        """Two reports into one file are refused: the second would swallow the first."""
        is_fault(call("compare", "--report", "json:out", "--report", "csv:out"))

    @pytest.mark.parametrize("named", ["t.csv", "./t.csv", "own/../t.csv", "link.csv", "hard.csv"])
    def test_a_trace_is_kept(self, named: str) -> None:
        """A report does not replace the trace that is read, whatever either is called."""
        Path("t.csv").write_text(TRACE, encoding="utf-8")
        Path("link.csv").symlink_to("t.csv")
        os.link("t.csv", "hard.csv")
        reports = ("--report", "json:a.json", "--report", f"csv:{named}")
        outcome = call("compare", "--trace", "t.csv", *reports)

        assert "--report: the report would replace t.csv" in is_fault(outcome)
        assert "another file" in outcome.hints[0]
        assert Path("t.csv").read_text(encoding="utf-8") == TRACE
        assert not Path("a.json").exists()

    @pytest.mark.parametrize(
        ("arguments", "report"),
        [
            (["per-token", "m/config.json"], "m/config.json"),
            (["per-token", "--config", "m/config.json"], "m/config.json"),
            (["compare", "m"], "m/config.json"),
            (["layers", "./m/"], "m/config.json"),
            (["per-token", "--preset", "./mine.yaml"], "mine.yaml"),
            (["presets", "validate", "mine.yaml"], "mine.yaml"),
            (["presets", "show", "mine.yaml"], "mine.yaml"),
            (["compare", "--settings", "s.yaml"], "s.yaml"),
            (["compare"], "kvcalc.yaml"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else value,
    )
    def test_what_is_read_is_kept(self, arguments: list[str], report: str) -> None:
        """Nor does it replace a model's file, a preset or the settings."""
        Path("m").mkdir()
        _hostile_preset()
        os.rename("own/models/mine.yaml", "mine.yaml")
        Path("m/config.json").write_text(CONFIG, encoding="utf-8")
        for settings in ("s.yaml", "kvcalc.yaml"):
            Path(settings).write_text("units: decimal", encoding="utf-8")
        before = Path(report).read_bytes()
        outcome = call(*arguments, "--report", f"json:{report}")

        assert "the report would replace" in is_fault(outcome)
        assert Path(report).read_bytes() == before
        assert call(*arguments, "--report", "json:m/kv.json").code == 0
        assert call(*arguments, "--report", "json:m/kv.json").code == 0  # an earlier report

    def test_presets_of_ones_own_are_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor the presets in folders that KVCALC_PRESETS names."""
        _hostile_preset()
        monkeypatch.setenv("KVCALC_PRESETS", "own")
        before = Path("own/models/mine.yaml").read_bytes()
        for arguments in (["per-token", "mine"], ["presets", "validate", "own"]):
            outcome = call(*arguments, "--report", "json:own/models/mine.yaml")
            assert "the report would replace" in is_fault(outcome)
        assert Path("own/models/mine.yaml").read_bytes() == before

    def test_stdin_is_kept(self) -> None:
        """Nor the file that stdin comes from."""
        Path("t.csv").write_text(TRACE, encoding="utf-8")
        command = [sys.executable, "-m", "kvcalc", "compare", "--trace", "-"]
        with Path("t.csv").open("rb") as stdin:
            done = subprocess.run(
                [*command, "--report", "csv:t.csv"],
                stdin=stdin,
                capture_output=True,
                text=True,
                check=False,
            )

        assert done.returncode == 2
        assert "would replace stdin" in done.stderr
        assert Path("t.csv").read_text(encoding="utf-8") == TRACE

    def test_dash(self) -> None:
        """`-` is no file: the format on stdout is --format's."""
        outcome = call("gpus", "l4", "--report", "json:-")

        assert "not to stdout" in is_fault(outcome)
        assert "--format json" in outcome.hints[0]
        assert os.listdir() == ["own"]
        assert call("gpus", "l4", "--report", "json:./-").code == 0
        assert Path("-").is_file()

    @pytest.mark.parametrize(
        ("path", "hint"),
        [
            pytest.param(
                "/dev/full",
                "make room",
                marks=pytest.mark.skipif(
                    not Path("/dev/full").exists(), reason="no /dev/full here"
                ),
            ),
            ("own", "name a file in that folder"),
            ("no/x.json", "a folder that exists"),
            ("file/x.json", "a folder that exists"),
            ("x" * 300, "a shorter name"),
        ],
        ids=["full", "folder", "missing", "file", "long"],
    )
    def test_hint_fits_the_cause(self, path: str, hint: str) -> None:
        """What to do about a report that cannot be written depends on why."""
        Path("file").touch()
        outcome = call("gpus", "l4", "--report", f"json:{path}")

        assert "the report cannot be written" in is_fault(outcome)
        assert hint in outcome.hints[0]
        assert sorted(os.listdir()) == ["file", "own"]

    @pytest.mark.parametrize(
        ("number", "hint"),
        [(errno.ENOSPC, "make room"), (errno.EACCES, "may write to"), (errno.EIO, "another file")],
    )
    def test_nothing_is_left(self, number: int, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A report that fails half way leaves neither a part nor a temporary file."""
        Path("out.json").write_text("old", encoding="utf-8")

        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "replace", fail)
        outcome = call("gpus", "l4", "--report", "json:out.json")

        assert os.strerror(number) in is_fault(outcome)
        assert hint in outcome.hints[0]
        assert sorted(os.listdir()) == ["out.json", "own"]
        assert Path("out.json").read_text(encoding="utf-8") == "old"

    def test_colon_in_path(self) -> None:
        """Only the first colon parts the format from the path."""
        assert call("gpus", "l4", "--report", "json:a:b.json").code == 0
        assert Path("a:b.json").is_file()

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_pipe(self) -> None:
        """A named pipe (or /dev/stdout) stays what it is: the report is written into it."""
        os.mkfifo("pipe")
        reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
        outcome = call("gpus", "l4", "--report", "csv:pipe")
        found = os.read(reader, 100_000)
        os.close(reader)

        assert outcome.code == 0
        assert stat.S_ISFIFO(os.stat("pipe").st_mode)
        assert found.decode() == call("gpus", "l4", "-f", "csv").out

    @pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout here")
    def test_stdout_in_a_pipeline(self) -> None:
        """/dev/stdout is written to where it is a pipe, too."""
        outcome = python("-m", "kvcalc", "gpus", "l4", "-f", "json", "--report=csv:/dev/stdout")

        assert outcome.code == 0, outcome.err
        assert outcome.out == "".join(call("gpus", "l4", "-f", f).out for f in ("csv", "json"))

    @pytest.mark.skipif(os.name == "nt", reason="links need a right on Windows")
    def test_link(self) -> None:
        """A link stays a link: the file that it points to gets the report."""
        Path("real.csv").write_text("old", encoding="utf-8")
        Path("link.csv").symlink_to("real.csv")
        call("gpus", "l4", "--report", "csv:link.csv")

        assert Path("link.csv").is_symlink()
        assert Path("real.csv").read_text(encoding="utf-8") != "old"

    @pytest.mark.skipif(os.name == "nt", reason="no modes on Windows")
    def test_mode(self) -> None:
        """A new report has the mode that the umask gives, an old one keeps its own."""
        before = os.umask(0o077)
        try:
            Path("old.csv").touch()
            os.chmod("old.csv", 0o640)
            call("gpus", "l4", "--report", "csv:new.csv", "--report", "csv:old.csv")
        finally:
            os.umask(before)

        assert stat.S_IMODE(os.stat("new.csv").st_mode) == 0o600
        assert stat.S_IMODE(os.stat("old.csv").st_mode) == 0o640


class TestExplain:
    @pytest.mark.parametrize(
        "arguments",
        [
            ["llama-3.1-8b"],
            ["deepseek-v3"],
            ["deepseek-v3", "--kv-cache-dtype", "fp8_ds_mla"],
            ["deepseek-v2-lite", "--kv-cache-dtype", "6bit"],
            ["gemma-3-27b", "--kv-cache-dtype", "q8_0"],
            ["gpt-oss-20b", "--kv-cache-dtype", "fp8:bf16"],
            ["qwen3.5-27b"],
            ["jamba-v0.1"],
            ["nemotron-3-nano-30b-a3b", "--tp", "2"],
            ["llama-4-scout", "--tp", "8", "--pp", "2"],
            ["llama-3.1-70b", "--tp", "8", "--pp", "3"],
            ["--layers", "3", "--kv-heads", "5", "--head-dim", "96", "--v-head-dim", "64"],
        ],
        ids=" ".join,
    )
    def test_arithmetic(self, arguments: list[str]) -> None:
        """Each line's product comes to what it says, and the lines add up to the result."""
        result = call("per-token", *arguments, "--explain", "-f", "json").results[0]
        lines = [line for line in result["explain"] if not line.startswith("assumed: ")]
        a_token = a_state = 0
        for line in lines:
            sides = [_value(side) for side in line.partition(": ")[2].split(" = ")]
            assert len(set(sides)) == 1, line
            if line.endswith((" B a token", " B a token in reach")) and " = " in line:
                a_token += sides[-1]
            elif line.endswith(" B a sequence"):
                a_state += sides[-1]

        assert len(lines) >= 4
        assert a_token == result["bytes_per_token"]
        assert a_state == result["state_bytes"]
        for sequence in result["sequences"]:
            (line,) = [n for n in lines if n.startswith(f"sequence of {sequence['tokens']:,} ")]
            assert line.endswith(f" = {sequence['bytes']:,} B")
        assert any(line.startswith("assumed: ") for line in result["explain"])

    def test_in_every_command(self) -> None:
        """Both compare and frag explain their sequences in the same words."""
        line = "8 KV heads x 128 x 2 B (bfloat16) = 131,072 B a token"

        for command in (["compare"], FRAG, ["per-token"]):
            assert line in call(*command, "llama-3.1-8b", "--explain").out
            assert line not in call(*command, "llama-3.1-8b").out


def _value(text: str) -> int:
    """Return what one side of an explanation's equation comes to."""
    text = re.sub(r"\((?:K and V|\w+|\d+ elements in \w+)\)", "", text)
    words = re.findall(r"[()+]|(?<!\S)x(?!\S)|(?<![\w.,])\d[\d,]*(?:\.\d+)?(?!\w)", text)
    expression = " ".join(w.replace(",", "").replace("x", "*") for w in words)
    return int(_computed(ast.parse(expression, mode="eval").body))


def _computed(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    assert isinstance(node, ast.BinOp)
    left, right = _computed(node.left), _computed(node.right)
    return left * right if isinstance(node.op, ast.Mult) else left + right


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_order_of_lengths(form: str) -> None:
    """The order in which requests are listed, and how, changes nothing."""
    outputs = {
        call("compare", "--lengths", lengths, "-f", form, "--kv-memory", "15GiB").out.replace(
            lengths, ""
        )
        for lengths in (
            "200,1200,700,2600,200",
            "2600,200,200,700,1200",
            "2x200,700,1200,2600",
            " 200 , 1200 ,700,2600, 200 ",
        )
    }

    assert len(outputs) == 1


def test_trace_from_stdin() -> None:
    """A trace on stdin is compared like the same one in a file."""
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    piped = call("compare", "--trace", "-", "-f", "json", stdin=TRACE.encode()).results[0]
    file = call("compare", "--trace", "t.csv", "-f", "json").results[0]

    assert piped["workload"].pop("name") == "stdin"
    assert file["workload"].pop("name") == "t.csv"
    assert piped == file


def test_model_from_stdin() -> None:
    """A preset on stdin is read like a file."""
    text = Path(__file__).parents[2] / "presets" / "models" / "llama-3.1-8b.yaml"
    outcome = call("per-token", "-", "-f", "json", stdin=text.read_bytes())

    assert outcome.results == call("per-token", "llama-3.1-8b", "-f", "json").results


def test_over() -> None:
    """Requests over the maximum are cut, left out or kept, and always counted."""
    Path("t.csv").write_text(TRACE, encoding="utf-8")
    arguments = ("compare", "--trace", "t.csv", "--max", "1024", "-f", "json")
    loads = {
        over: call(*arguments, "--over", over).results[0]["workload"]
        for over in ("clip", "exclude", "keep")
    }

    assert {over: load["over_requests"] for over, load in loads.items()} == dict.fromkeys(loads, 1)
    assert {over: load["tokens"] for over, load in loads.items()} == {
        "clip": 128 + 1024,
        "exclude": 128,
        "keep": 128 + 4096,
    }
    assert call(*arguments).results[0]["workload"] == loads["clip"]
    for over, words in (("clip", "cut to"), ("exclude", "left out"), ("keep", "kept")):
        shown = call(*arguments[:-2], "--over", over).out
        assert f"1 over the maximum, {words}" in shown


TESTED_APART = {
    # schema: with its command's own tests, as it reads what other tests have no need of
    *("check", "diff", "kvcalc-yaml"),  # test_check, checks/test_file
    *("log", "log-diff", "frag-oom", "metrics", "probe"),  # test_log, test_frag_files, measure
}


def test_schema_command() -> None:
    """`kvcalc schema` lists the schemas and prints each."""
    names = call("schema").out.split()

    assert {*COMMANDS, *TESTED_APART, "model-preset", "gpu-preset"} == set(names)
    for name in names:
        assert json.loads(call("schema", name).out)["$schema"].endswith("draft-07/schema#")


def test_sound_files() -> None:
    """`presets validate` finds no fault in what is shipped, and says so of each file."""
    results = call("presets", "validate", "-f", "json").results

    assert len(results) > 16
    assert all(r["message"] is None for r in results)
    assert FileFault.__struct_fields__ == tuple(results[0])


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"bad\xff", "bad\\udcff"),
        (b"a\nb\x1b[31mx", "a\\nb\\x1b[31mx"),
        ("a\u202eb\u200bc".encode(), "a\\u202eb\\u200bc"),
        ("é漢 x".encode(), "é漢 x"),
    ],
    ids=["no UTF-8", "escape", "direction", "plain"],
)
def test_name_of_a_models_file(name: bytes, shown: str, form: str, *, folder: bool) -> None:
    """A model is called after its file or folder, in characters that every output can hold."""
    path = Path(os.fsdecode(name)) / "config.json" if folder else Path(os.fsdecode(name + b".json"))
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(CONFIG, encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes no such name")
    for command in ("per-token", "compare", "layers"):
        outcome = call(command, str(path), "-f", form, f"--report={form}:out")

        assert outcome.code == 0, outcome.err
        assert outcome.out.replace("\n", "").isprintable()
        assert outcome.err.replace("\n", "").isprintable()
        Path("out").read_bytes().decode()
        if form == "json":
            assert shown in {r.get("model", r.get("name")) for r in outcome.results}
        elif form != "markdown":
            assert shown in outcome.out


@pytest.mark.parametrize(
    "name", ["Bad Name", "Upper", "a_b", "-a", "a..b", "é", "", "a\nkind: gpu", "7", "1.5", "null"]
)
def test_name_of_an_added_preset(name: str) -> None:
    """A preset is not printed under a name that it could not be read by."""
    outcome = call("presets", "add", "llama-3.1-8b", f"--name={name}")

    assert is_fault(outcome).startswith("--name: ")
    assert "--name" in outcome.hints[0]


def test_added_preset() -> None:
    """What is printed is a preset, under the name that was given and under the file's own."""
    Path("Bad Name.json").write_text(CONFIG, encoding="utf-8")
    for arguments, name in ((["--name", "my-7b.v2"], "my-7b.v2"), ([], "bad-name")):
        outcome = call("presets", "add", "Bad Name.json", *arguments)
        assert outcome.code == 0, outcome.err
        assert outcome.out.splitlines()[1] == f"name: {name}"
        Path(f"{name}.yaml").write_text(outcome.out, encoding="utf-8")
        assert call("presets", "validate", f"{name}.yaml").code == 0
