"""Two thousand slips: each is one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.harness import call, is_fault
from tests.guards import HANG

SEED = 20261129
EACH = 200


class Slip(NamedTuple):
    """A command line that must be refused, and the file it names."""

    arguments: list[str]
    file: tuple[str, bytes] | None = None


WORDS = [
    "",
    " ",
    "abc",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "None",
    "null",
    "true",
    "½",
    "١٢",
    "\uff12",
    "\u20131",
]
WORDS += ["0x10", "1_000", "1e3", "1e400", "--", "-", "+", ".", ",", "1,2,3", "1,23", "12,34,567"]
WORDS += ["16 tokens", "sixteen", "é", "漢字", "🙂", "\u202e16", "\x1b[1m16", "16\n17", "\ufeff16"]
NOT_A_NUMBER = [*WORDS, "0", "-1", "-0", "+1", "1.5", "16.0", "1/2", "32k", "1K", "9" * 60]
NOT_TOKENS = [*WORDS, "0", "-1", "+8192", "8192.5", "1.0", "32k", "32K", "128 k", "1M", "8192B"]
NOT_TOKENS += ["1GiB", "9" * 13, "9" * 60, "1000000000001", "8192,", "8192,1"]
NOT_A_SIZE = [*WORDS, "40G", "40g", "32k", "40gb", "40GIB", "40gib", "1T", "2 m", "-1GiB", "+1GiB"]
NOT_A_SIZE += ["GiB", "1.GiB", ".5GiB", "1GiBB", "1XiB", "1 GiB 2", "1e9", "1e9B", "9" * 61, "1EiB"]
NAMES = [
    "nope",
    "vlm",
    "llama",
    "llama-3.1",
    "h100-",
    "fp",
    "bf17",
    "tabel",
    "jsonl",
    "clipp",
    "x/y",
]
NAMES += [*(w for w in WORDS if w.strip() and w not in ("--", "-", "."))]

COUNTS = ["--block", "--block-size", "--tp", "--pp", "--dp", "--dcp", "--max-num-seqs"]
COUNTS += ["--max-num-batched-tokens", "--num-gpu-blocks-override", "--num-speculative-tokens"]
COMMANDS = ["compare", "per-token", "frag", "plan"]
NAMING = ["--engine", "--dtype", "--kv-cache-dtype", "--gpu", "--format", "--units"]
NAMING += ["--preset", "--settings", "--draft-model"]
FRAG = ["--free", "1GiB", "--largest", "512MiB"]


def command(rng: random.Random) -> list[str]:
    """Return a command that would do without what is added to it."""
    name = rng.choice(COMMANDS)
    return [name, *FRAG] if name == "frag" else [name]


def long(rng: random.Random) -> str:
    """Return a text that no option takes, sometimes very long."""
    letters = string.ascii_letters + string.digits + "-_./:é漢🙂 "
    size = rng.choice([1, 3, 20, 300, 5_000])
    return "zz" + "".join(rng.choice(letters) for _ in range(size)) + "z"


def counts(rng: random.Random) -> Slip:
    value = rng.choice([*NOT_A_NUMBER, long(rng)])
    return Slip([*command(rng), f"{rng.choice(COUNTS)}={value}"])


def shapes(rng: random.Random) -> Slip:
    values = {"--layers": "4", "--kv-heads": "2", "--head-dim": "64"}
    broken = rng.choice([*values, "--v-head-dim"])
    values[broken] = rng.choice([*NOT_A_NUMBER, long(rng), str(2**31), "9" * 19])
    return Slip([*command(rng), *(f"{k}={v}" for k, v in values.items())])


def tokens(rng: random.Random) -> Slip:
    value = rng.choice([*NOT_TOKENS, long(rng)])
    option = rng.choice(["--max", "--max-model-len", "--tokens", "--lengths"])
    if option == "--tokens":
        return Slip(["per-token", f"--tokens={value}"])
    if option == "--lengths":
        if value in ("1,2,3", "12,34,567", "1,23", "8192,1"):
            value = "0"
        good = ["200", "3x200"] * rng.randint(0, 2)
        return Slip(["compare", "--lengths=" + ",".join([*good, value])])
    return Slip([*command(rng), f"{option}={value}"])


def sizes(rng: random.Random) -> Slip:
    value = rng.choice([*NOT_A_SIZE, long(rng)])
    option = rng.choice(["--kv-memory", "--free", "--largest", "--request", "--holes"])
    if option == "--kv-memory":
        return Slip([rng.choice(["compare", "plan"]), f"--kv-memory={value}"])
    if option == "--holes":
        value = "-1GiB" if "," in value else value
        return Slip(["frag", "--holes=" + rng.choice(["", "1GiB,", "3x"]) + value])
    rest = {"--free": "1GiB", "--largest": "1MiB", "--request": "1KiB"}
    rest[option] = value
    return Slip(["frag", *(f"{k}={v}" for k, v in rest.items())])


def names(rng: random.Random) -> Slip:
    value = rng.choice([*NAMES, long(rng)])
    kind = rng.choice([*NAMING, "--over", "--trace", "--report", "model", "show", "gpus", "schema"])
    match kind:
        case "--over" | "--trace":
            return Slip(["compare", f"{kind}={value}"])
        case "--kv-cache-dtype":
            return Slip([*command(rng), f"{kind}={rng.choice(['', 'fp8:', 'bf16:'])}{value}"])
        case "--report":
            return Slip([*command(rng), f"{kind}={value}:out"])
        case "model":
            return Slip([*command(rng), "--", value])
        case "show":
            return Slip(["presets", "show", "--", value])
        case "gpus" | "schema":
            return Slip([kind, "--", value])
        case _:
            return Slip([*command(rng), f"{kind}={value}"])


CONTRADICTIONS = [
    ["compare", "--lengths", "1", "--trace", "x.csv"],
    ["compare", "--prompt-column", "a"],
    ["compare", "--output-column", "a"],
    ["compare", "--max", "8", "--over", "exclude"],
    ["per-token", "llama-3.1-8b", "--layers", "1"],
    ["per-token", "llama-3.1-8b", "--v-head-dim", "1"],
    ["per-token", "--layers", "1", "--kv-heads", "2"],
    ["per-token", "--engine-version", "0.33"],
    ["plan", "llama-3.1-8b", "--engine", "sglang", "--kv-cache-dtype", "q8_0"],
    ["plan", "llama-3.1-8b", "--engine", "sglang", "--engine-version", "0.4"],
    ["plan", "minimax-m3", "--engine", "sglang"],
    ["plan", "rwkv-5-world-3b", "--engine", "sglang"],
    ["plan", "qwen3.5-27b", "--engine", "tensorrt-llm"],
    ["plan", "llama-3.1-8b", "--engine", "tensorrt-llm", "--tp", "2", "--dcp", "2"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--engine-arg", "page_size=64"],
    ["plan", "llama-3.1-8b", "--engine", "sglang", "--engine-arg", "page_size"],
    ["plan", "llama-3.1-8b", "--engine", "sglang", "--engine", "vllm", "--engine-arg", "a=1"],
    ["compare", "--engine", "sglang", "--engine", "vllm"],
    ["plan", "llama-3.1-8b", "--engine-version", "0.33"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--engine-version", "0.1.9"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--engine-version", "x"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--engine-version", "0.20+v0"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--engine-version", "0.1"],
    ["plan", "qwen3.5-27b", "--engine", "vllm", "--engine-version", "0.10"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--block", "8"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--tp", "3"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--tp", "2", "--dcp", "2"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--kv-cache-dtype", "q8_0"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--kv-cache-dtype", "fp8_ds_mla"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--gpu", "mi300x"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--attention-backend", "FLASHMLA"],
    ["plan", "llama-3.1-8b", "--engine", "vllm", "--speculative-method", "mtp"],
    ["plan", "deepseek-v4-flash", "--engine", "vllm", "--block", "64"],
    ["plan", "deepseek-v4-flash", "--engine", "vllm", "--disable-hybrid-kv-cache-manager"],
    ["plan", "gpt-oss-20b", "--engine", "vllm", "--tp", "16"],
    ["per-token", "llama-3.1-8b", "--tp", "3"],
    ["per-token", "llama-3.1-8b", "--tp", "12"],
    ["per-token", "llama-3.1-8b", "--pp", "33"],
    ["per-token", "llama-3.1-8b", "--dcp", "2"],
    ["per-token", "llama-3.1-8b", "--tp", "4", "--dcp", "3"],
    ["per-token", "llama-3.1-8b", "--kv-cache-dtype", "fp8_ds_mla"],
    ["per-token", "deepseek-v3", "--kv-cache-dtype", "fp8_ds_mla:bf16"],
    ["frag"],
    ["frag", "--free", "1GiB"],
    ["frag", "--largest", "1GiB"],
    ["frag", "--free", "1GiB", "--largest", "2GiB"],
    ["frag", "--free", "1GiB", "--largest", "0"],
    ["frag", "--holes", "1GiB,2GiB", "--free", "2GiB"],
    ["frag", "--holes", "1GiB,2GiB", "--largest", "1GiB"],
    ["frag", "--holes", "1GiB", "--request", "0"],
    ["compare", "--report", "json"],
    ["compare", "--report", ":x"],
    ["compare", "--report", "json:"],
    ["compare", "--report", "json:no/where/x.json"],
    ["compare", "--settings", "no.yaml"],
    ["compare", "--max"],
    ["layers", "nope"],
    ["layers", "--kv-cache-dtype", "fp9"],
    ["compare", "-", "--trace", "-"],
    ["per-token", "-", "-"],
    ["compare", "--nope"],
    ["nope"],
    ["presets", "nope"],
    ["presets", "show"],
    ["schema", "a", "b"],
    ["--nope"],
]


def contradictions(rng: random.Random) -> Slip:
    chosen = list(rng.choice(CONTRADICTIONS))
    if chosen[0] in COMMANDS and chosen[-1] != "--max":
        chosen += rng.choice([[], ["--explain"], ["-f", "json"], ["-f", "csv"], ["--block", "8"]])
    return Slip(chosen)


PRESET = """kind: model
name: mine
title: Mine
aliases: [own/mine]
architecture: MineForCausalLM
dtype: bfloat16
num_hidden_layers: 4
max_position_embeddings: 4096
layers:
  - {count: 2, kind: full_attention, num_kv_heads: 2, head_dim: 64}
  - {count: 2, kind: sliding_window, num_kv_heads: 2, head_dim: 64, sliding_window: 128}
notes: ["a note"]
source:
  repository: own/mine
  file: config.json
expect:
  bytes_per_token: {bfloat16: 2048}
  confirmed_by: ["by hand"]
"""
NUMBERS = ["num_hidden_layers: 4", "count: 2", "num_kv_heads: 2", "head_dim: 64"]
NUMBERS += ["sliding_window: 128", "max_position_embeddings: 4096", "bfloat16: 2048"]
BAD_NUMBERS = ["0", "-1", "1.5", "abc", "'2'", "true", "1e3", "99999999999", "9" * 30, "[2]", "{}"]
BAD_NUMBERS += ["0x10", "1_000", "2026-01-01", "!!int 2", "&a 2", "*a", "nan", ".inf", "2: 3"]
BAD_NUMBERS += ["32k", "2 # \x07", "'\x1b'", "\ufffe", '"\\e[31m"', "{{2}}", "[", "}", "1" * 5000]
REQUIRED = ["kind: model\n", "name: mine\n", "title: Mine\n", "architecture: MineForCausalLM\n"]
REQUIRED += ["dtype: bfloat16\n", "num_hidden_layers: 4\n", "  repository: own/mine\n"]
REQUIRED += ["  file: config.json\n", "  bytes_per_token: {bfloat16: 2048}\n"]
REQUIRED += ['  confirmed_by: ["by hand"]\n']
REPLACED = [
    ("kind: model", "kind: modell"),
    ("kind: model", "kind: gpu"),
    ("name: mine", "name: Mine"),
    ("name: mine", "name: ''"),
    ("name: mine", "name: 7"),
    ("dtype: bfloat16", "dtype: bfloat61"),
    ("dtype: bfloat16", "dtype: int8"),
    ("kind: full_attention", "kind: full_atention"),
    ("kind: full_attention", "kind: [full_attention]"),
    ("head_dim: 64", "headdim: 64"),
    ("head_dim: 64}", "head_dim: 64, head_dim: 64}"),
    ("bfloat16: 2048", "bfloat16: 2047"),
    ("bfloat16: 2048", "bfloat17: 2048"),
    ("notes:", "note:"),
    ("source:", "sources:"),
    ("title: Mine", "title: Mine\ntitle: Mine"),
    ("title: Mine", "title: [Mine"),
    ("title: Mine", "title: 'Mine"),
    ("title: Mine", "title: Mine: yours"),
    ("title: Mine", "title: ''"),
    ("title: Mine", "title: \x00"),
    ("title: Mine", "\ttitle: Mine"),
    ("layers:\n", "layers: 3\nrest:\n"),
    ("notes: [", "notes: [3, "),
    ("expect:", "---\nexpect:"),
    ("aliases: [own/mine]", "aliases: own/mine"),
]


def presets(rng: random.Random) -> Slip:
    text = PRESET
    match rng.randrange(6):
        case 0:
            text = text.replace(rng.choice(REQUIRED), "", 1)
        case 1:
            number = rng.choice(NUMBERS)
            bad = [b for b in BAD_NUMBERS if not (number.startswith("bfloat16") and b == "0x10")]
            text = text.replace(number, f"{number.split(': ')[0]}: {rng.choice(bad)}", 1)
        case 2 | 3:
            before, after = rng.choice(REPLACED)
            text = text.replace(before, after, 1)
        case 4:
            lines = text.splitlines(keepends=True)
            tops = [i for i, line in enumerate(lines) if line[0] not in " \n" and ": " in line]
            twice = rng.choice(tops)
            lines.insert(rng.choice(tops), lines[twice])
            text = "".join(lines)
        case _:
            data = bytearray(text.encode())
            data[rng.randrange(len(data))] = rng.choice([0, 1, 7, 0x80, 0xC0, 0xFF])
            return Slip(["per-token", "./bad.yaml"], ("bad.yaml", bytes(data)))
    return Slip(["per-token", "./bad.yaml"], ("bad.yaml", text.encode()))


WHOLE_FILES = [b"", b"\n\n", b"\x00", b"GGUF\x03\x00", b"PK\x03\x04", b"\x1f\x8bnot gzip", b"[]"]
WHOLE_FILES += [
    b"{}",
    b"3",
    b"null",
    b"a",
    b"\xff\xfea\x00",
    b"\xef\xbb\xbf",
    b"{" * 5000,
    b"- - - -",
]
WHOLE_FILES += [b"[" * 100_000, b"a: " * 3000, b"\xf0\x28\x8c\xbc", b"\r\r\r", b"---\n---\n", b"%"]


def foreign(rng: random.Random) -> Slip:
    data = rng.choice([*WHOLE_FILES, bytes(rng.randrange(256) for _ in range(rng.randint(8, 400)))])
    kind = rng.choice(["model", "trace", "settings"])
    if kind == "model":
        return Slip(["per-token", "./bad.yaml"], ("bad.yaml", data))
    if kind == "trace":
        if data.strip().isdigit():
            data = b"-" + data  # a whole number alone is a trace of one request
        return Slip(["compare", "--trace", "bad.csv"], ("bad.csv", data))
    if not data.strip() or data in (b"{}", b"\xef\xbb\xbf"):
        data = b"\x00"  # nothing set is no fault of a settings file
    return Slip(["compare", "--settings", "bad.yaml"], ("bad.yaml", data))


CELLS = [
    "",
    " ",
    "abc",
    "NaN",
    "nan",
    "inf",
    "-1",
    "-5",
    "1.5",
    "1e10",
    "9" * 15,
    "9" * 5000,
    "1,5",
]
CELLS += [
    "12 34",
    "0x10",
    "1_000",
    "१२",
    "½",
    "None",
    "null",
    "TRUE",
    "1e-3",
    "--",
    "1;2",
    '"',
    "'5'",
]
HEADERS = [
    "",
    "a,b",
    "ContextTokens",
    "GeneratedTokens,TIMESTAMP",
    "1,2",
    "prompt_len,input_length",
]
HEADERS += ["input_tokens,output_tokens,input_length,output_length", "ContextTokens,ContextTokens"]
VALUES = [
    '"5"',
    "null",
    "-1",
    "1.5",
    "true",
    "[1]",
    "{}",
    "1e99",
    "NaN",
    "Infinity",
    "-0.5",
    "9" * 40,
]


def traces(rng: random.Random) -> Slip:
    rows = rng.randint(1, 60)
    bad = rng.randrange(rows)
    name = rng.choice(["t.csv", "t.jsonl", "t.tsv"])
    arguments = ["compare", "--trace", name]
    if name == "t.jsonl":
        lines = ['{"input_length": 100, "output_length": 28}'] * rows
        lines[bad] = rng.choice(
            [
                f'{{"input_length": {rng.choice(VALUES)}, "output_length": 28}}',
                '{"input_length": 100}',
                '{"input_length": 100, "output_length": 28, "output_length": 28}',
                '{"input_length": 100, "output_length": 28',
                "[100, 28]",
                "100",
                '{"input_length" 100}',
            ]
        )
        if bad == 0 and rng.random() < 0.5:
            arguments += ["--prompt-column", "input_len"]
        return Slip(arguments, (name, "\n".join(lines).encode()))
    delimiter = "\t" if name == "t.tsv" else ","
    cells = [["2026-11-29", "100", "28"] for _ in range(rows)]
    header = delimiter.join(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
    match rng.randrange(5):
        case 0:
            header = rng.choice(HEADERS).replace(",", delimiter)
        case 1:
            cells[bad] = cells[bad][: rng.randint(1, 2)]
        case 2:
            arguments += ["--prompt-column", rng.choice(["x", "contexttoken", "é", "", "a" * 3000])]
        case _:
            cell = rng.choice(CELLS)
            if delimiter == "\t" and cell == "1,5":
                cell = "1.5"
            cells[bad][rng.randint(1, 2)] = cell
    text = "\n".join([header, *(delimiter.join(row) for row in cells)]) + rng.choice(["", "\n"])
    if rng.random() < 0.3:
        text = text.replace("\n", "\r\n")
    return Slip(arguments, (name, text.encode()))


SETTINGS = ["model", "engine", "engine_version", "dtype", "kv_cache_dtype", "block_size", "gpu"]
SETTINGS += ["max_model_len", "tensor_parallel_size", "kv_memory", "lengths", "over", "units"]
SETTINGS += ["max_num_batched_tokens", "max_num_seqs", "num_gpu_blocks_override"]
SETTINGS += ["num_speculative_tokens", "draft_model"]
BAD_VALUES = [
    "{a: 1}",
    "[[1]]",
    "true",
    "",
    "~",
    "nope",
    "-1",
    "0",
    "1.5",
    "'32k'",
    '"\\u200b"',
    "!!x",
]
BAD_VALUES += ["&a 1", "[1", "{", "'", "@x", "1" * 30, "9" * 5000, "zz" * 2000, "fp8:"]


def settings(rng: random.Random) -> Slip:
    key = rng.choice(SETTINGS)
    value = rng.choice(BAD_VALUES)
    if (key, value) == ("kv_memory", "0"):
        value = "-1"
    if (key, value) == ("kv_memory", "1.5"):
        value = "40G"  # 1.5 B is a size, rounded down
    text = f"{key}: {value}\n"
    match rng.randrange(4):
        case 0:
            text = f"{long(rng)[:30].replace(':', '').replace('#', '')}: 3\n"
        case 1:
            text = f"units: binary\n{key}: 1\n{key}: 1\n"
        case _:
            text = f"# mine\n{text}"
    return Slip(["compare", "--settings", "bad.yaml"], ("bad.yaml", text.encode()))


KINDS: list[Callable[[random.Random], Slip]] = [
    counts,
    shapes,
    tokens,
    sizes,
    names,
    contradictions,
    presets,
    foreign,
    traces,
    settings,
]


def slips(kind: Callable[[random.Random], Slip]) -> Iterator[Slip]:
    """Yield as many slips of one kind as are tried, always the same ones."""
    rng = random.Random(f"{SEED} {kind.__name__}")
    for _ in range(EACH):
        yield kind(rng)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_refused(kind: Callable[[random.Random], Slip]) -> None:
    """Each slip is refused with one error line, at most one hint, and nothing on stdout, at once.

    Nothing of it can steer a terminal, whatever was typed or stood in the file.
    """
    wrong = []
    for slip in slips(kind):
        if slip.file is not None:
            Path(slip.file[0]).write_bytes(slip.file[1])
        start = time.process_time()
        outcome = call(*slip.arguments)
        took = time.process_time() - start
        try:
            is_fault(outcome)
            assert outcome.err.replace("\n", "").isprintable()
            assert took < HANG
        except AssertionError:
            wrong.append(f"{slip!r:.300} -> {outcome!r:.300} in {took:.2f} s")

    assert wrong == [], f"{len(wrong)} of {EACH}"


def test_how_many() -> None:
    """They are two thousand."""
    assert len(KINDS) * EACH == 2_000
