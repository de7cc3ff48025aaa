"""Exit codes, and what a user reads when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from kvcalc import __version__
from kvcalc.cli.commands import COMMANDS
from kvcalc.core.errors import UnavailableError
from tests.cli.harness import Outcome, call, is_fault

FRAG = ["--free", "1GiB", "--largest", "1GiB"]
VLLM = ["plan", "llama-3.1-8b", "--engine", "vllm"]
REFUSED = [
    # arguments, a part of the error, a part of the hint
    (["compare", "--max", "32k"], "--max: '32k'", "32000 or 32768"),
    (["compare", "--max", "0"], "--max: '0'", "from 1"),
    (["compare", "--max", "1e5"], "--max: '1e5'", "8192"),
    (["compare", "--block", "0"], "--block: '0'", "16"),
    (["compare", "--block", "16.0"], "--block: '16.0'", "16"),
    (["compare", "--kv-memory", "40G"], "--kv-memory: '40G'", "40GiB (2^30) or 40GB (10^9)"),
    (["compare", "--kv-memory", "-1GiB"], "--kv-memory", "15GiB"),
    (["per-token", "llama-3.1-8b", "qwen3-8b", "--tp", "3"], "llama-3.1-8b: 8 heads", "divides"),
    (["compare", "--lengths", "200,,300"], "--lengths: '' is no length", "50x700"),
    (["compare", "--lengths", "200,5x"], "--lengths: '5x' is no length", "50x700"),
    (["frag", "--holes", "1,000MiB,2GiB"], "--holes: '1,000MiB,2GiB' mixes", "not thousands"),
    (["compare", "--lengths", ""], "--lengths", ""),
    (["compare", "--lengths", "0"], "--lengths", "from 1"),
    (["compare", "--over", "refuse"], "--over: unknown value 'refuse'", "clip, exclude, keep"),
    (["compare", "--units", "si"], "--units: unknown value 'si'", "binary, decimal"),
    (["compare", "--format", "yaml"], "--format: unknown value 'yaml'", "csv, json, markdown"),
    (["compare", "-f", "jsn"], "--format: unknown value 'jsn'", "did you mean json"),
    (["compare", "--tp", "3"], "4 heads cannot be split over 3", "tensor parallel size"),
    (["compare", "--pp", "17"], "16 layers cannot be split over 17", ""),
    (["compare", "--dcp", "2"], "decode_context_parallel_size 2", ""),
    (["compare", "--gpu", "h100-81gb"], "--gpu: unknown GPU", "h100-80gb"),
    (["compare", "--engine", "foo"], "unknown engine 'foo'", "none"),
    (["compare", "--engine", "exllama"], "unknown engine 'exllama'", "exllamav2"),
    (["compare", "--engine-version", "1"], "engine none has no engine_version", ""),
    (["compare", "--dtype", "fp7"], "fp7", "bfloat16"),
    (["compare", "--kv-cache-dtype", "fp9"], "unknown cache dtype 'fp9'", "did you mean fp8"),
    (["compare", "--kv-cache-dtype", "fp8,bf16"], "'fp8,bf16' is no cache dtype", "repeat"),
    (["compare", "--kv-cache-dtype", "fp8:"], "unknown cache dtype ''", ""),
    (["compare", "--kv-cache-dtype", "fp8_ds_mla"], "fp8_ds_mla", "another KV cache dtype"),
    (["compare", "llama3.1-8b"], "unknown model preset 'llama3.1-8b'", "did you mean llama-3.1-8b"),
    (["compare", "meta-llama/Llama-9"], "unknown model preset", "no file has this path either"),
    (["compare", "missing.yaml"], "missing.yaml: no such file", ""),
    (["compare", "model.gguf"], "model.gguf: no such file", "path"),
    (["compare", "model.safetensors"], "weights, not the model's shape", "config.json"),
    (["compare", "."], ".: the folder holds no config.json", "name the file"),
    (["compare", "llama-3.1-8b", "--layers", "3"], "'llama-3.1-8b' were both given", "leave out"),
    (["compare", "--layers", "3"], "also needs --kv-heads and --head-dim", "together"),
    (["compare", "--v-head-dim", "3"], "also needs --layers and --kv-heads and --head-dim", ""),
    (["compare", "--trace", "no.csv"], "no.csv: no such file", "stdin"),
    (["compare", "--trace", "x", "--lengths", "3"], "--lengths and --trace", "leave out"),
    (["compare", "--prompt-column", "x"], "--prompt-column", "--trace"),
    (["compare", "--report", "json"], "--report: 'json' is not FORMAT:PATH", "json:kv.json"),
    (["compare", "--report", "pdf:x"], "--report: unknown value 'pdf'", "markdown"),
    (["compare", "--report", "json:no/x.json"], "no/x.json: the report cannot be written", "fold"),
    (["compare", "--report", "json:."], ".: the report cannot be written", ""),
    (
        ["compare", "--lengths", "9", "--max", "8", "--over", "exclude"],
        "no request is left",
        "--max",
    ),
    (["frag"], "free memory and its largest hole", "--holes"),
    (["frag", "--free", "1GiB"], "free memory and its largest hole", "--largest"),
    (["frag", "--free", "1GiB", "--largest", "2GiB"], "cannot exceed", "units"),
    (["frag", "--free", "1GiB", "--largest", "0"], "not reported", ""),
    (["frag", "--holes", "1GiB", "--free", "2GiB"], "add up to", "alone"),
    (["frag", "--holes", "1GiB", "--request", "0"], "at least one byte", ""),
    (["frag", "--holes", "999999x1GiB"], "--holes: more than", "--free"),
    (["plan", "--kv-memory", "0"], "--kv-memory: a cache of 0 B holds nothing", "15GiB"),
    (["plan", "--kv-memory", "0.5B"], "--kv-memory: a cache of 0 B holds nothing", "15GiB"),
    (["plan", "--kv-cache-memory-bytes", "40G"], "--kv-memory: '40G'", "40GiB (2^30)"),
    (["plan", "--num-gpu-blocks-override", "0"], "--num-gpu-blocks-override: '0'", "16"),
    (["plan", "--max-num-seqs", "many"], "--max-num-seqs: 'many'", "16"),
    (["plan", "--max-num-batched-tokens", "2k"], "--max-num-batched-tokens: '2k'", "16"),
    (["plan", "--num-speculative-tokens", "1.5"], "--num-speculative-tokens: '1.5'", "16"),
    (["plan", "--draft-model", "nope"], "--draft-model: unknown model preset 'nope'", "list"),
    (["plan", "--enable-prefix-caching=x"], "'--enable-prefix-caching' does not take a value", ""),
    (["plan", "--num-gpu-blocks-override", "9"], "engine none has no num_gpu_blocks_override", ""),
    (["plan", "--no-async-scheduling"], "engine none has no async_scheduling", "leave it out"),
    ([*VLLM, "--tp", "3"], "llama-3.1-8b: 32 attention heads cannot be split over 3 ranks", "32"),
    ([*VLLM, "--block", "8"], "llama-3.1-8b: ", ""),
    ([*VLLM, "--gpu", "mi300x"], "llama-3.1-8b: mi300x is no CUDA card", "NVIDIA"),
    ([*VLLM, "--gpu", "h101"], "--gpu: unknown GPU", "h100"),
    ([*VLLM, "--kv-cache-dtype", "q8_0"], "q8_0", ""),
    ([*VLLM, "--kv-cache-dtype", "nvfp5"], "--kv-cache-dtype: unknown cache dtype", "nvfp4"),
    ([*VLLM, "--engine-version", "newest"], "'newest' is no vLLM release", "0.33"),
    ([*VLLM, "--engine-version", "0.20+v0"], "vLLM 0.20 has no V0 engine", "leave"),
    ([*VLLM, "--attention-backend", "FLASH"], "attention backend 'FLASH' is not known", "known"),
    ([*VLLM, "--mamba-cache-dtype", "int8"], "unknown state dtype 'int8'", "float32"),
    ([*VLLM, "--mamba-ssm-cache-dtype", "int8"], "unknown state dtype 'int8'", "float32"),
    ([*VLLM, "--speculative-method", "ngram"], "without a number of tokens", "num_speculative"),
    ([*VLLM, "--num-speculative-tokens", "2"], "no multi-token-prediction layers", "ngram"),
    (
        [*VLLM, "--speculative-method", "hydra", "--num-speculative-tokens", "2"],
        "unknown speculative method 'hydra'",
        "ngram",
    ),
    (
        [*VLLM, "--speculative-method", "medusa", "--num-speculative-tokens", "2"],
        "vLLM 0.33.0 does not propose tokens by medusa: 0.32.0 was the last that did",
        "--engine-version 0.32.0",
    ),
    (["plan", "minimax-m3", *VLLM[2:]], "minimax-m3: vLLM 0.33.0 does not serve", "--engine none"),
    (["plan", "qwen-7b", *VLLM[2:]], "qwen-7b: vLLM 0.33.0 no longer serves", "0.23"),
    (["plan", "llama-3.1-8b", "qwen-7b", *VLLM[2:]], "qwen-7b: vLLM 0.33.0 no longer serves", ""),
    (["compare", "--max-num-seqs", "3"], "engine none has no max_num_seqs", ""),
    (["per-token", "--attention-backend", "x"], "engine none has no attention_backend", ""),
    (["frag", *FRAG, "--mamba-cache-dtype", "x"], "engine none has no mamba_cache_dtype", ""),
    (["compare", "llama-3.1-8b", *VLLM[2:], "--max-num-seqs", "x"], "--max-num-seqs: 'x'", "16"),
    (["per-token", "llama-3.1-8b", *VLLM[2:], "--tp", "5"], "over 5 ranks", "divides 32"),
    (["frag", *FRAG, "llama-3.1-8b", *VLLM[2:], "--dcp", "2"], "decode_context_parallel", ""),
    (["per-token", "--tokens", "32k"], "--tokens: '32k'", "32000 or 32768"),
    (["per-token", "--tokens", "8192", "--tokens", "x"], "--tokens: 'x'", "8192"),
    (["presets", "show", "nope"], "unknown model preset 'nope'", "presets list"),
    (["presets", "show"], "name a preset", ""),
    (["presets", "validate", "no.yaml"], "no.yaml: no such file", ""),
    (["gpus", "h100-81gb"], "unknown GPU", "h100-80gb"),
    (["schema", "compar"], "unknown value 'compar'", "compare"),
]

MISTYPED = [
    (["comparee"], "compare"),
    (["pertoken"], "per-token"),
    (["presets", "lst"], "list"),
    (["compare", "--blok", "3"], "--block"),
    (["compare", "--max-modl-len", "3"], "--max-model-len"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "hint"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED]
)
def test_refusal(arguments: list[str], error: str, hint: str) -> None:
    """A slip is told in one line that names it, with one line on what to do, and exit code 2."""
    outcome = call(*arguments)

    assert error in is_fault(outcome)
    assert hint in "".join(outcome.hints)


@pytest.mark.parametrize(("arguments", "meant"), MISTYPED, ids=[" ".join(m[0]) for m in MISTYPED])
def test_mistyped(arguments: list[str], meant: str) -> None:
    """A mistyped command or option is answered with what was probably meant."""
    outcome = call(*arguments)

    is_fault(outcome)
    assert meant in outcome.err.split("see kvcalc")[0]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max", "999999999999"),
        ("--block", "99999999999"),
        ("--tp", "99999999999"),
        ("--pp", "99999999999"),
        ("--dp", "99999999999"),
        ("--dcp", "99999999999"),
        ("--dtype", "fp7"),
        ("--engine", "foo"),
        ("--engine-version", "1"),
        ("--kv-cache-dtype", "fp9"),
    ],
)
def test_fault_names_its_option(option: str, value: str) -> None:
    """A value that is refused is told with the option that it was typed for."""
    assert option in is_fault(call("compare", option, value))


@pytest.mark.parametrize("option", ["--engine", "--dtype", "--kv-cache-dtype", "--gpu", "--trace"])
def test_empty_text(option: str) -> None:
    """An empty text (a variable that a script left unset) is no name, and the default no answer."""
    assert option in is_fault(call("compare", option, ""))


def test_gpu_hint() -> None:
    """Who asks for an unknown card is sent to the command that lists cards."""
    outcome = call("gpus", "zzz")

    is_fault(outcome)
    assert "kvcalc gpus" in outcome.hints[0]


def test_missing_settings_hint() -> None:
    """A settings file that is not there is not called a preset."""
    outcome = call("compare", "--settings", "no.yaml")

    assert "no.yaml: no such file" in is_fault(outcome)
    assert "preset" not in outcome.hints[0]


def test_empty_settings_hint(tmp_path: Path) -> None:
    """An empty settings file is not called a preset."""
    (tmp_path / "kvcalc.yaml").write_text("# nothing yet\n", encoding="utf-8")
    outcome = call("compare")

    assert "preset" not in outcome.err.split("no model was named")[0]


@pytest.mark.parametrize(
    "option", ["--engine", "--kv-cache-dtype", "--gpu", "--format", "--over", "--trace", "--preset"]
)
def test_long_value(option: str) -> None:
    """An error repeats the beginning of what was typed, not all of it."""
    outcome = call("compare", option, "a" * 50_000)

    is_fault(outcome)
    assert len(outcome.err) < 2_000


@pytest.mark.parametrize("arguments", [["a" * 50_000], ["compare", "--" + "a" * 50_000]])
def test_long_name(arguments: list[str]) -> None:
    """So does one about a command or an option that there is not."""
    outcome = call(*arguments)

    is_fault(outcome)
    assert len(outcome.err) < 2_000


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nerror: b", "a\rb", "\x9bx", "\u202ereversed"])
@pytest.mark.parametrize(
    "before",
    [
        [],
        ["compare"],
        ["compare", "--max"],
        ["compare", "--gpu"],
        ["compare", "--engine"],
        ["compare", "--trace"],
        ["compare", "--kv-cache-dtype"],
        ["compare", "--settings"],
        ["compare", "--report"],
        ["presets", "show"],
        ["presets", "validate"],
        ["schema"],
    ],
    ids=" ".join,
)
def test_control_characters(before: list[str], text: str) -> None:
    """Nothing typed can move the cursor or begin a line of its own when an error repeats it."""
    outcome = call(*before, text)

    is_fault(outcome)
    assert outcome.err.replace("\n", "").isprintable(), outcome.err


def test_report_path_with_control_characters() -> None:
    """Neither can the path of a report."""
    outcome = call("gpus", "--report", "json:no/\x1b[31mx")

    is_fault(outcome)
    assert "\x1b" not in outcome.err


def _raising(error: BaseException) -> Any:
    def raiser(*_: object, **__: object) -> NoReturn:
        raise error

    return raiser


def with_error(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Outcome:
    """Run a command whose inner work raises."""
    monkeypatch.setattr("kvcalc.cli.gpus.all_gpus", _raising(error))
    return call("gpus")


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug\nof two lines"), KeyError("k"), AssertionError(), MemoryError()],
    ids=repr,
)
def test_bug(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A bug of kvcalc is one line and 70, with a word on where to take it."""
    outcome = with_error(monkeypatch, error)

    assert type(error).__name__ in is_fault(outcome, 70)
    assert "bug in kvcalc" in outcome.hints[0]


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption is 130 and no word."""
    assert with_error(monkeypatch, KeyboardInterrupt()) == Outcome(130, "", "")


def test_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed and not there is 3."""
    outcome = with_error(monkeypatch, UnavailableError("no card is here", hint="plug one in"))

    assert is_fault(outcome, 3) == "no card is here"
    assert outcome.hints == ["hint: plug one in"]


def test_presets_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation without its presets is told as such."""
    monkeypatch.setattr("kvcalc.models.presets._PACKAGE", tmp_path / "kvcalc")

    assert "presets" in is_fault(call("compare"), 3)


@pytest.mark.parametrize("arguments", [[], ["presets"]], ids=["kvcalc", "kvcalc presets"])
def test_no_arguments(arguments: list[str]) -> None:
    """Without a command the help is shown, on stdout and as lines."""
    outcome = call(*arguments)

    assert outcome.out == call(*arguments, "--help").out
    assert outcome.err == ""


@pytest.mark.parametrize("command", [[], *([c] for c in COMMANDS), ["presets", "list"]])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(command: list[str], option: str) -> None:
    """-h and --help show every command's help."""
    outcome = call(*command, option)

    assert outcome.code == 0
    assert outcome.err == ""
    assert "Usage: kvcalc" in outcome.out


def test_version() -> None:
    """--version prints the version, whatever follows it."""
    assert call("--version") == Outcome(0, f"kvcalc {__version__}\n", "")
    assert call("--version", "compare") == Outcome(0, f"kvcalc {__version__}\n", "")


def test_notes_go_to_stderr() -> None:
    """A result stands alone on stdout; what is worth a note stands on stderr."""
    outcome = call("compare", "qwen3.5-27b")

    assert outcome.code == 0
    assert "note:" not in outcome.out
    assert all(line.startswith("note: ") for line in outcome.err.splitlines())
    assert "note: no maximum was given: 8,192 tokens (--max)" in outcome.err.splitlines()


def test_notes_are_not_repeated() -> None:
    """A note that holds for several blocks is told once."""
    lines = call("compare", "qwen3.5-27b", "--block", "16", "--block", "32").err.splitlines()

    assert len(lines) == len(set(lines))


def test_first_fault_before_output() -> None:
    """A fault of the second model leaves nothing of the first on stdout."""
    is_fault(call("compare", "llama-3.1-8b", "nope"))


@pytest.mark.parametrize("form", ["json", "csv", "markdown", "table"])
def test_faulty_files(tmp_path: Path, form: str) -> None:
    """Faults of preset files are the result of `presets validate`, which leaves with 2."""
    file = tmp_path / "bad.yaml"
    file.write_text("kind: model\nname: bad\nlayerz: 3\n", encoding="utf-8")
    outcome = call("presets", "validate", "bad.yaml", "--format", form)

    assert outcome.code == 2
    assert "layerz" in outcome.out
    assert "Traceback" not in outcome.err


def test_preset_file_fault_has_its_line(tmp_path: Path) -> None:
    """A fault of a preset file that is used as a model is told with file and line."""
    file = tmp_path / "bad.yaml"
    file.write_text("kind: model\nname: bad\nname: worse\n", encoding="utf-8")

    assert "bad.yaml:3: 'name' stands twice, first on line 2" in is_fault(
        call("per-token", "./bad.yaml")
    )


@pytest.mark.parametrize("arguments", [["compare", "-", "--trace", "-"], ["per-token", "-", "-"]])
def test_stdin_twice(arguments: list[str]) -> None:
    """Stdin can be one thing only; asking for two is told as that."""
    text = (Path(__file__).parents[2] / "presets" / "models" / "opt-13b.yaml").read_bytes()

    assert "empty" not in is_fault(call(*arguments, stdin=text))


def test_both_a_preset_and_a_path(tmp_path: Path) -> None:
    """A name that is a preset and also a path is refused with both readings."""
    (tmp_path / "llama-3.1-8b").mkdir()
    outcome = call("per-token", "llama-3.1-8b")

    assert "llama-3.1-8b is a preset and also a path here" in is_fault(outcome)
    assert "./llama-3.1-8b for the path" in outcome.hints[0]
