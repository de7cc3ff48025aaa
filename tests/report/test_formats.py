"""Every format of every command: no text of a stranger steers, calculates, notifies, tells keys."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.credentials import without_credentials
from kvcalc.report import formats
from kvcalc.report.formats import COMMON, OWN, Answer, names, render
from tests.cli.harness import call, rows_of
from tests.measure.logs.samples import ALL
from tests.measure.oom_samples import SAMPLES
from tests.measure.pages import PAGES
from tests.measure.test_snapshot import made
from tests.report.hostile import FORMULA, STEERING, WORD, planted

COMMANDS = {
    "capacity": "capacity llama-3.1-8b --gpu l40s --max 131072 --levers --suggest --layouts",
    "check": "check deploy.sh --gpu l40s --show",
    "compare": "compare llama-3.1-8b --kv-memory 15GiB --explain",
    "diff": "diff before.json after.json --all",
    "engines": "engines",
    "frag": "frag --snapshot s.json --request 105MiB --explain",
    "frag-oom": "frag --oom oom.txt",
    "gpus": "gpus l40s",
    "layers": "layers gemma-3-27b",
    "layers-diff": "layers llama-3.1-8b llama-3.1-70b",
    "log": "log serve.log",
    "log-diff": "log serve.log other.log",
    "metrics": "metrics page.txt llama-3.1-8b",
    "per-token": "per-token llama-3.1-8b --explain",
    "plan": "plan gemma-3-27b --engine vllm --max 8192 --kv-memory 20GiB",
    "presets-list": "presets list llama-3.1",
    "presets-show": "presets show qwen3.5-27b",
    "presets-validate": "presets validate bad.yaml",
    "probe": "probe --dry-run",
}
"""Each command with results -> a line that has many of them."""

CASES = [(command, form) for command in COMMANDS for form in names(command)]
every_format = pytest.mark.parametrize(("command", "form"), CASES)


def files() -> None:
    """Write what the commands read."""
    flags = "--max-model-len 8192 --kv-cache-dtype fp8 --max-num-seqs 8"
    texts = {
        "deploy.sh": f"vllm serve meta-llama/Llama-3.1-8B {flags}\n",
        "serve.log": ALL["vllm-v1"],
        "other.log": ALL["vllm-v1"].replace("36,832", "36,816"),
        "oom.txt": "\n".join(SAMPLES.values()),
        "page.txt": PAGES["vllm"],
        "bad.yaml": "kind: model\nname: good\ntittle: Bad\n",
        "s.json": json.dumps(made().snapshot()),
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    for name, card in (("before.json", "l40s"), ("after.json", "l4")):
        found = call("check", "deploy.sh", "--gpu", card, "-f", "json")
        Path(name).write_text(found.out, encoding="utf-8")


@pytest.fixture
def answer(command: str, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """What a command has to print."""
    files()
    found: list[Answer] = []

    def keep(form: str, given: Answer, *others: Any) -> str:
        found.append(given)
        return render(form, given, *others)

    monkeypatch.setattr(formats, "render", keep)
    outcome = call(*COMMANDS[command].split())
    assert len(found) == 1, outcome.err
    assert found[0].command == command
    return found[0]


def _hostile(answer: Answer, text: str) -> Answer:
    members = {name: planted(member, text) for name, member in answer.members.items()}
    return answer._replace(
        inputs={**planted(dict(answer.inputs), text), "typed": text},
        results=[planted(result, text) for result in answer.results],
        notes=[text],
        warnings=[text],
        members=members,
    )


def test_every_command_and_format_is_here() -> None:
    """A command with results, or a format, that is new is tried too."""
    from kvcalc.cli.commands import COMMANDS as LINES

    tried = {words.split()[0] for words in COMMANDS.values()}
    assert set(LINES) - tried == {"help", "schema"}
    assert {*COMMON, *(form for own in OWN.values() for form in own)} == {f for _, f in CASES}


@every_format
def test_strangers_texts(answer: Answer, form: str) -> None:
    """Whatever stands in a text of the answer, wherever it came from."""
    text = render(form, _hostile(answer, STEERING), "binary")

    assert [c for c in set(text) if not c.isprintable() and c != "\n"] == []
    assert WORD not in text
    assert text.isascii() or text.encode("utf-8")
    _READERS[form](text, answer)


@pytest.mark.parametrize("command", [*COMMANDS])
def test_programs_read_what_was_there(answer: Answer) -> None:
    """JSON has escapes of its own: a program gets every character, and no terminal does."""
    odd = "\x1b[31m\x9b\u202e\u2028\x7f"
    document = json.loads(render("json", _hostile(answer, odd), "binary"))

    assert document["notes"] == [odd]
    assert document["inputs"]["typed"] == odd


def _json(text: str, answer: Answer) -> None:
    document = json.loads(text)
    assert list(document)[:6] == [
        *("schema", "kvcalc_version", "inputs", "results", "notes", "warnings")
    ]
    assert len(document["results"]) == len(answer.results)


def _csv(text: str, answer: Answer) -> None:
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    del answer


def _markdown(text: str, answer: Answer) -> None:
    del answer
    prose = re.sub(r"^(`{3,})(?:text|sh)\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "@everyone" not in prose
    assert not re.search(r"(?<!\\)(<script|\[a\b)", prose)
    assert not re.search(r"https://|^ *([-*] )?#+ (?!#)x", prose)
    for table in prose.split("\n\n"):
        if table.startswith("|"):
            assert len({len(row) for row in rows_of(table)}) == 1


def _junit(text: str, answer: Answer) -> None:
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert len(root.findall(".//testcase")) == len(answer.results)


def _gitlab(text: str, answer: Answer) -> None:
    del answer
    assert all(entry["location"]["path"] for entry in json.loads(text))


def _github(text: str, answer: Answer) -> None:
    del answer
    assert all(re.match("::(error|warning|notice) ", line) for line in text.splitlines())


def _table(text: str, answer: Answer) -> None:
    del answer
    assert not re.search(r"^(#|::)", text, re.MULTILINE)


_READERS = {
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
    "junit": _junit,
    "gitlab": _gitlab,
    "github": _github,
    "table": _table,
}


@pytest.mark.parametrize("command", [*COMMANDS])
@pytest.mark.parametrize(
    "mark", [FORMULA, "@SUM(1)", "+1+cmd|' /C calc'!A0", "-1+1", " =1", "\uff1d1"]
)
def test_no_cell_is_a_formula(answer: Answer, mark: str) -> None:
    """A text that a spreadsheet would calculate with is marked as text; a number never is."""
    rows = list(csv.reader(io.StringIO(render("csv", _hostile(answer, mark), "binary"))))
    plain = list(csv.reader(io.StringIO(render("csv", answer, "binary"))))

    for row in rows:
        for cell in row:
            assert not re.match(r"\s*[=@+\uff1d]|-(?!-?[a-z\d])", cell), cell
            assert mark == "-1+1" or not cell.startswith("-1+1")
    numbers = [cell for row in plain for cell in row if re.fullmatch(r"-?[\d.]+", cell)]
    assert numbers
    assert len(rows) == len(plain)


ESCAPES = "\x1b[3\x1b[0m1m\x1bc\x1b]0;t\x07\x9b31m\x00\x7f\u202e\u2066\u200b"
ADDRESS = f"https://u:{WORD}@h/m?sig={WORD}"
READ = {
    # what is read: (file, its text, the command)
    "a log": (
        "serve.log",
        (
            f"(APIServer pid=1) INFO vLLM API server version 0.11.0{ESCAPES}\n"
            f"INFO Initializing a V1 LLM engine (v0.11.0{ESCAPES}) with config: model='{ADDRESS}',"
            f" dtype=torch.bf{ESCAPES}16, max_seq_len=8192, api_key='{WORD}'\n"
            f"INFO non-default args: {{'model': '{ADDRESS}', 'api_key': ['{WORD}'],"
            f" 'kv_cache_dtype': 'fp8{ESCAPES}', 'served_model_name': ['a{ESCAPES}'],"
            f" 'hf_token': '{WORD}'}}\n"
            f"INFO Resolved architecture: Foo{ESCAPES}ForCausalLM\n"
            "INFO GPU KV cache size: 36,832 tokens\n"
            f"ValueError: {ESCAPES} {ADDRESS} --api-key {WORD} HF_TOKEN={WORD}"
            f" Authorization: Bearer {WORD}\n"
        ),
        "log serve.log",
    ),
    "a log of llama.cpp": (
        "serve.log",
        (
            f"llama_model_loader: - kv   0: general.architecture str = llama{ESCAPES}\n"
            f"llama_model_loader: - kv   1: general.name str = {ADDRESS}{ESCAPES}\n"
            f"build: 6000 (a{ESCAPES}b) with cc for x86_64\n"
            f"llama_kv_cache: CUDA0{ESCAPES} KV buffer size =  1024.00 MiB\n"
        ),
        "log serve.log",
    ),
    "an out-of-memory text": (
        "oom.txt",
        (
            f"CUDA out of memory. {ESCAPES}Tried to allocate 2.00{ESCAPES} GiB. GPU 0 has a total"
            f" capacity of 24.00 GiB of which 1.00 GiB is free. Process {ESCAPES} {ADDRESS}\n"
            f"ggml: failed to allocate {ADDRESS[:30]} buffer of size 99999999\n"
        ),
        "frag --oom oom.txt",
    ),
    "a page": (
        "page.txt",
        PAGES["vllm"]
        .replace("org/some-model", f"{ADDRESS}{ESCAPES}")
        .replace('cache_dtype="auto"', f'cache_dtype="auto{ESCAPES}"')
        + f"vllm:{ESCAPES} what{{ 1 {ADDRESS}\n",
        "metrics page.txt",
    ),
    "a script": (
        "deploy.sh",
        (
            f"vllm serve '{ADDRESS}{ESCAPES[:-8]}' --max-model-len 8192"
            f" --quantization 'x{ESCAPES[:9]}'"
            f" --api-key {WORD} --revision 'r{ESCAPES[:9]}' --served-model-name 'n{ESCAPES[:9]}'\n"
        ),
        "check deploy.sh --show --gpu l40s --allow-skips",
    ),
    "a card": ("deploy.sh", "vllm serve a/b\n", f"check deploy.sh --gpu x{ESCAPES[:9]} --show"),
    "a model": ("deploy.sh", "vllm serve a/b\n", f"per-token {ADDRESS}"),
    "a config": (
        "config.json",
        json.dumps({"model_type": f"a{ESCAPES}", "architectures": [f"{ADDRESS}{ESCAPES}"]}),
        "per-token config.json",
    ),
    "a preset": (
        "bad.yaml",
        'kind: model\nname: "a\\e[31m"\nti\u202ettle: x\nx: "\\u202e"\n',
        "presets validate bad.yaml",
    ),
}


@pytest.mark.parametrize(
    ("what", "form"), [(what, f) for what in READ for f in names(READ[what][2].split()[0])]
)
def test_what_is_read(what: str, form: str) -> None:
    """From the file to the terminal, stderr too: no reader and no error has a way around."""
    name, text, command = READ[what]
    Path(name).write_text(text, encoding="utf-8")
    outcome = call(*command.split(" "), "-f", form)

    assert outcome.code in (0, 1, 2), outcome.err
    assert "bug" not in outcome.err
    for shown in (outcome.out, outcome.err):
        assert [c for c in set(shown) if not c.isprintable() and c != "\n"] == []
        assert WORD not in shown
    if form == "json" and outcome.out:
        assert WORD not in json.dumps(outcome.document)


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 2048 passes",
        "--swa-full-tokens-ratio 0.002",
        "--bytes-per-token 131072",
        "--tokenizer org/name --tokenizer-mode auto",
        "--long-prefill-token-threshold 4096",
        "--hf-tokenizer-config-path a.json",
        "--engine-arg NAME:KEY=VALUE",
    ],
)
def test_settings_are_no_credentials(text: str) -> None:
    """A cure whose number is masked is no cure."""
    assert without_credentials(text) == text
