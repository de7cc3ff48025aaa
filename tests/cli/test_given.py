"""Every value that a command is given counts: each option of each command, as typer has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from kvcalc.cli.app import build
from kvcalc.cli.options import COMPARED
from tests.cli.harness import Outcome, call, is_fault
from tests.measure.pages import vllm

_TWO = {
    "layers": ("2", "4"),
    "kv_heads": ("2", "4"),
    "head_dim": ("64", "128"),
    "v_head_dim": ("64", "128"),
    "dtype": ("float32", "float16"),
    "engine_version": ("0.33.0", "0.20.0"),
    "max": ("1024", "2048"),
    "tp": ("1", "2"),
    "pp": ("1", "2"),
    "dp": ("1", "2"),
    "dcp": ("1", "2"),
    "gpu": ("l40s", "h200"),
    "max_num_batched_tokens": ("1024", "2048"),
    "max_num_seqs": ("16", "32"),
    "num_gpu_blocks_override": ("1000", "2000"),
    "attention_backend": ("FLASH_ATTN", "FLASHINFER"),
    "mamba_cache_dtype": ("float32", "bfloat16"),
    "mamba_ssm_cache_dtype": ("float32", "bfloat16"),
    "speculative_method": ("ngram", "none"),
    "num_speculative_tokens": ("1", "2"),
    "draft_model": ("llama-3.2-3b", "llama-3.1-70b"),
    "ctx_size": ("4096", "8192"),
    "parallel": ("1", "2"),
    "n_gpu_layers": ("1", "all"),
    "kv_memory": ("4GiB", "8GiB"),
    "gpu_memory": ("24GiB", "48GiB"),
    "gpu_free": ("20GiB", "22GiB"),
    "gpu_memory_utilization": ("0.8", "0.9"),
    "weights": ("8GiB", "16GiB"),
    "quantization": ("fp8", "int4"),
    "sequences": ("1", "8"),
    "instances": ("1", "2"),
    "lengths": ("100", "200"),
    "trace": ("serve.sh", "oom.txt"),
    "over": ("clip", "exclude"),
    "format": ("json", "csv"),
    "units": ("binary", "decimal"),
    "settings": ("one.yaml", "two.yaml"),
    "timeout": ("1", "2"),
    "backend": ("torch", "nvml"),
    "device": ("cpu", "auto"),
    "kernel": ("auto", "sdpa"),
    "running_tokens": ("100", "200"),
}
"""Two values of each option that takes one; `1GiB` and `2GiB` of others."""

_ARGUMENTS = {
    "per-token": ("llama-3.1-8b",),
    "compare": ("llama-3.1-8b",),
    "plan": ("llama-3.1-8b", "--engine", "vllm", "--gpu", "l4"),
    "capacity": ("llama-3.1-8b", "--gpu", "l4"),
    "check": ("--gpu", "l40s", "serve.sh"),
    "diff": ("before.json", "before.json"),
    "frag": ("llama-3.1-8b", "--free", "4GiB", "--largest", "1GiB"),
    "log": ("start.log",),
    "metrics": ("page.txt",),
    "probe": ("llama-3.1-8b", "--dry-run"),
    "layers": ("llama-3.1-8b",),
    "presets add": ("llama-3.1-8b",),
    "presets show": ("llama-3.1-8b",),
    "presets list": ("llama",),
    "presets validate": (),
    "gpus": (),
    "engines": (),
}
_ANY_TEXT = ("name", "prompt_column", "output_column", "log")
"""Options of which every text is a value: a preset's name, a column's, a file to write."""


@cache
def _commands() -> dict[str, Any]:
    def below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, one in getattr(command, "commands", {}).items():
            yield from below(one, f"{name} {word}".strip())
        if not hasattr(command, "commands"):
            yield name, command

    return dict(below(typer.main.get_command(build()), ""))


def _options(command: str) -> list[Any]:
    params = _commands()[command].params
    return [param for param in params if param.param_type_name == "option"]


WITH_OPTIONS = [name for name in _commands() if _options(name)]


@pytest.fixture(autouse=True)
def _files(_clean: None) -> None:
    """Files that the commands read, in the folder of the test."""
    serve = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192\n"
    Path("serve.sh").write_text(serve)
    Path("start.log").write_text(
        "INFO 10-01 12:00:00 [kv_cache_utils.py:1087] GPU KV cache size: 203,504 tokens\n"
    )
    Path("page.txt").write_text(vllm())
    Path("oom.txt").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    Path("one.yaml").write_text("units: binary\n")
    Path("two.yaml").write_text("units: decimal\n")
    call("check", "--gpu", "l40s", "serve.sh", "--report", "json:before.json")


def test_every_command_is_here() -> None:
    assert set(_ARGUMENTS) == set(WITH_OPTIONS)


def _words(command: str, option: Any) -> list[str]:
    """Return a command line that takes the option, which is not on it yet."""
    words = [*command.split(), *_ARGUMENTS[command]]
    if option.name in ("free", "largest") and command == "frag":
        at = words.index(option.opts[0])
        words = words[:at] + words[at + 2 :]
    for flag in option.opts:
        if flag in words:
            at = words.index(flag)
            words[at : at + 2] = []
    if option.name in ("ctx_size", "parallel", "n_gpu_layers"):
        words = [w for w in words if w not in ("--engine", "vllm")]
        words += ["--engine", "llama.cpp"] if command not in ("log", "metrics") else []
    elif command in ("per-token", "compare") and option.name != "engine":
        words += ["--engine", "vllm", "--gpu", "l4"] if option.name != "gpu" else []
    if option.name == "dcp":
        words += ["--tp", "8"]
    if option.name == "num_speculative_tokens":
        words += ["--speculative-method", "ngram"]
    if option.name == "draft_model":
        words += ["--speculative-method", "draft_model", "--num-speculative-tokens", "1"]
    return words


@pytest.mark.parametrize("command", WITH_OPTIONS)
def test_no_value_is_dropped(command: str) -> None:
    """Of an option that takes one value, several are compared or refused: never the last alone."""
    for option in _options(command):
        if option.multiple or option.is_flag:
            continue
        first, second = _TWO.get(option.name, ("1GiB", "2GiB"))
        flag = option.opts[0]
        form = () if option.name == "format" or command == "presets add" else ("-f", "json")
        outcome = call(*_words(command, option), *form, flag, first, flag, second)
        answers = command in ("capacity", "plan", "per-token", "compare")
        if answers and option.name in (*COMPARED, "sequences", "instances"):
            assert outcome.code == 0, (flag, outcome.err)
            refused = outcome.err.count(": refused: ")
            assert len(outcome.results) + refused == 2, (flag, outcome.err)
            assert outcome.results[-1]["flags"][1] in (first, second)
            assert outcome.document["inputs"][option.name] == [first, second]
        else:
            assert f"{first} and {second} are both given" in is_fault(outcome), flag


@pytest.mark.parametrize("command", WITH_OPTIONS)
def test_the_same_value_twice_is_one(command: str) -> None:
    once = call(*command.split(), *_ARGUMENTS[command], *_units(command))
    twice = call(*command.split(), *_ARGUMENTS[command], *_units(command), *_units(command))
    assert (once.code, once.out) == (twice.code, twice.out)


def _units(command: str) -> tuple[str, ...]:
    return ("--name", "my-model") if command == "presets add" else ("--units", "decimal")


def test_switches_that_contradict() -> None:
    outcome = call("capacity", "llama-3.1-8b", "--gpu", "l4", "--enforce-eager",
                   "--no-enforce-eager")  # fmt: skip
    assert is_fault(outcome) == "--enforce-eager/--no-enforce-eager: on and off are both given"


def test_compared_in_the_order_given() -> None:
    outcome = call("capacity", "llama-3.1-8b", "qwen3-8b", "--max", "8192", "--max", "16384",
                   "--gpu", "l40s", "--gpu", "l4", "-f", "json")  # fmt: skip
    combinations = [(r["model"], r["gpu"], r["max_model_len"]) for r in outcome.results]
    assert combinations == [
        (model, gpu, length)
        for model in ("llama-3.1-8b", "qwen3-8b")
        for gpu in ("l40s", "l4")
        for length in (8192, 16384)
    ]
    assert outcome.results[1]["flags"] == ["--gpu", "l40s", "--max", "16384"]
    alone = call("capacity", "llama-3.1-8b", "--gpu", "l40s", "--max", "16384", "-f", "json")
    assert {**outcome.results[1], "flags": []} == alone.results[0]


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_what_is_compared_is_told_apart(form: str) -> None:
    for command in ("capacity", "plan", "per-token", "compare"):
        more = ("--gpu", "l40s") if command == "capacity" else ()
        outcome = call(command, "llama-3.1-8b", *more, "--tp", "1", "--tp", "8", "-f", form)
        assert "--tp 1" in outcome.out
        assert "--tp 8" in outcome.out


def test_combinations_are_compared_with_their_like() -> None:
    """Two documents of several combinations: each has its own name."""
    for gpu in ("l4", "l40s"):
        call("capacity", "llama-3.1-8b", "--gpu", gpu, "--max", "8192", "--tp", "1", "--tp", "2",
             "-f", "json", "--report", f"json:{gpu}.json")  # fmt: skip
    found = call("diff", "l4.json", "l40s.json", "-f", "json").results
    assert {one["name"] for one in found} == {f"llama-3.1-8b on vllm --tp {tp}" for tp in (1, 2)}


def test_what_one_combination_is_refused_for() -> None:
    """The others are answered; where all are refused it is an error, as of one."""
    outcome = call("capacity", "llama-3.1-8b", "--gpu", "l40s", "--tp", "3", "--tp", "8",
                   "-f", "json")  # fmt: skip
    assert [r["deployment"]["num_gpus"] for r in outcome.results] == [8]
    (warning,) = outcome.document["warnings"]
    assert warning.startswith("vllm --tp 3: refused: ")
    both = call("capacity", "llama-3.1-8b", "--gpu", "l40s", "--tp", "3", "--tp", "5")
    assert "split over 3 ranks" in is_fault(both)
    strict = call("capacity", "llama-3.1-8b", "--gpu", "l40s", "--tp", "3", "--tp", "8",
                  "--require-fit")  # fmt: skip
    assert strict.code == 1


def test_lists_of_a_settings_file() -> None:
    Path("kvcalc.yaml").write_text("gpu: [l4, l40s]\nmax_model_len: 8192\n")
    outcome = call("capacity", "llama-3.1-8b", "-f", "json")
    assert [r["gpu"] for r in outcome.results] == ["l4", "l40s"]
    typed = call("capacity", "llama-3.1-8b", "--gpu", "h200", "-f", "json")
    assert [r["gpu"] for r in typed.results] == ["h200"]
    frag = call("frag", "--free", "1GiB", "--largest", "1GiB")
    assert is_fault(frag) == "kvcalc.yaml:1: l4 and l40s are both given"


def test_variables_of_one_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCALC_MAX", "1024")
    monkeypatch.setenv("KVCALC_MAX_MODEL_LEN", "2048")
    words = ("capacity", "llama-3.1-8b", "--gpu", "l4")
    assert is_fault(call(*words)) == "KVCALC_MAX is 1024 and KVCALC_MAX_MODEL_LEN is 2048"
    assert call(*words, "--max", "512").code == 0
    monkeypatch.setenv("KVCALC_MAX_MODEL_LEN", "1024")
    assert call(*words).code == 0


def test_too_many_combinations() -> None:
    sizes = [word for n in range(1, 70) for word in ("--max", f"{n}")]
    steps = [word for n in range(1, 70) for word in ("--tp", f"{n}")]
    outcome = call("capacity", "llama-3.1-8b", "--gpu", "l4", *sizes, *steps)
    assert is_fault(outcome) == "4761 combinations of --max, --tp"


def test_repeatable_options_with_contradictions() -> None:
    asked = ("check", "serve.sh", "--gpu", "l40s")
    two = call(*asked, "--assert", "min_max_concurrency=1", "--assert", "min_max_concurrency=2")
    assert "min_max_concurrency has two limits" in is_fault(two)
    models = call(*asked, "--model", "qwen3-8b", "--model", "llama-3.1-8b")
    assert "qwen3-8b and llama-3.1-8b are both given" in is_fault(models)
    named = call(*asked, "--model", "a=qwen3-8b", "--model", "a=llama-3.1-8b")
    assert "qwen3-8b and llama-3.1-8b are both given for a" in is_fault(named)
    own = call("plan", "llama-3.1-8b", "--engine", "llama.cpp", "-c", "4096",
               "--engine-arg", "ctx_size=8192")  # fmt: skip
    assert "ctx_size is 8192, and --ctx-size says 4096" in is_fault(own)


def _swallowed(outcome: Outcome, option: Any) -> bool:
    """Whether nothing was said of a value that cannot be."""
    if outcome.code == 2:
        assert len(outcome.errors) == 1, outcome.err
        return False
    return not any(flag in outcome.err for flag in option.opts)


@pytest.mark.parametrize("command", WITH_OPTIONS)
@pytest.mark.parametrize("junk", ["junk", "nan", "1e309"])
def test_no_junk_is_swallowed(command: str, junk: str) -> None:
    """A value that cannot be is exit 2, whether or not it plays a part in what is asked."""
    for option in _options(command):
        if option.is_flag or option.name in _ANY_TEXT:
            continue
        outcome = call(*_words(command, option), option.opts[0], junk)
        assert not _swallowed(outcome, option), (option.opts[0], outcome.err)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("metrics", "page.txt", "--tp", "4", "--kv-memory", "1GiB"), "--tp, --kv-memory have"),
        (("metrics", "page.txt", "--attention-backend", "FLASH_ATTN"), "--attention-backend has"),
        (("frag", "--oom", "oom.txt", "--tp", "4"), "--tp has"),
        (("log", "start.log", "--quantization", "fp8"), "--quantization has"),
        (("check", "--gpu", "l40s", "serve.sh", "--model", "qwen3-8b"), "--model qwen3-8b has"),
        (("check", "--gpu", "l40s", "serve.sh", "--model", "x=qwen3-8b"), "nothing serves x"),
    ],
)
def test_what_plays_no_part_is_said(words: tuple[str, ...], flags: str) -> None:
    outcome = call(*words)
    assert outcome.code == 0, outcome.err
    assert flags in outcome.err
    assert "no effect" in outcome.err


def test_the_dtype_of_layers() -> None:
    plain = call("layers", "llama-3.1-8b", "-f", "json").results[0]
    wide = call("layers", "llama-3.1-8b", "--dtype", "float32", "-f", "json").results[0]
    assert wide != plain
