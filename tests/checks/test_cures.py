"""Every cure that is told passes when it is applied: laws over engines, layouts and figures."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import kvcalc
from kvcalc.answers.assertions import Check
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.run import run
from tests.checks.builders import by_code, checked, codes

COMMANDS = {
    "vllm": "vllm serve meta-llama/Llama-3.1-8B --max-model-len 131072",
    "vllm-short": "vllm serve meta-llama/Llama-3.1-8B --max-model-len 131072 -tp 1",
    "sglang": "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B"
    " --context-length 131072",
    "tensorrt-llm": "trtllm-serve meta-llama/Llama-3.1-8B --max_seq_len 131072 --backend pytorch",
    "lmdeploy": "lmdeploy serve api_server meta-llama/Llama-3.1-8B --session-len 131072",
    "llama.cpp": "llama-server -m llama-3.1-8b -c 131072 -np 2 -ngl 99",
}
"""Commands that need more than the card has."""


def check(command: str, gpu: str, **asserts: object) -> CheckReport:
    return kvcalc.check(command=command, gpu=gpu, asserts=asserts)


def applied(command: str, cure: str) -> str:
    """Return a command with flags set: one that is there gets the new value."""
    words, new = shlex.split(command), shlex.split(cure)
    for flag, value in zip(new[::2], new[1::2], strict=True):
        assert flag.startswith("-"), cure
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return shlex.join(words)


def cures_of(failed: Check) -> list[str]:
    assert failed.status in ("fail", "warn"), failed
    return [each.removesuffix(" passes") for each in failed.hint.split("; ")]


@pytest.mark.parametrize(
    ("engine", "asserts"),
    [
        *((engine, {}) for engine in COMMANDS),
        # the sequences of llama-server are set: no other setting makes more of them
        *((engine, {"min_max_concurrency": 3}) for engine in COMMANDS if engine != "llama.cpp"),
    ],
)
def test_cures_are_flags_of_the_engine(engine: str, asserts: dict[str, object]) -> None:
    """A cure is in the engine's own words, so that it can be typed behind the command as it is."""
    command = COMMANDS[engine]
    name = next(iter(asserts), "fits")
    cures = cures_of(by_code(check(command, "rtx-4090", **asserts), name))

    assert cures
    for cure in cures:
        cured = check(applied(command, cure), "rtx-4090", **asserts)
        assert by_code(cured, name).status == "pass", cure
        assert not {"unknown-flag", "bad-value", "stray-word"} & {*codes(cured)}, cure


@pytest.mark.parametrize("figures", ["expected", "low", "high"])
@pytest.mark.parametrize("limit", [1.5, 4, 9])
@pytest.mark.parametrize("length", [131072, 131071, 50864])
def test_cures_hold_for_the_figure_that_counts(
    figures: str, limit: float, length: int, tmp_path: Path
) -> None:
    """What is compared is what a cure is tried on: the low figure where that is asked for."""
    source = (
        f"figures: {figures}\ngpu: l40s\nassert: {{min_max_concurrency: {limit}}}\ndeployments:\n"
        f"  - {{name: a, model: llama-3.1-8b, max_model_len: {length}%s}}\n"
    )
    found = by_code(checked(source % "", tmp_path), "min_max_concurrency")
    if found.status == "pass":
        assert found.actual is not None
        assert found.actual >= limit
        return
    for cure in cures_of(found):
        name, value = cure.split()
        line = source % ("" if name == "max_model_len" else f", {name}: {value}")
        if name == "max_model_len":
            line = line.replace(f"max_model_len: {length}", f"max_model_len: {value}")
        assert by_code(checked(line, tmp_path), "min_max_concurrency").status == "pass", cure


LAYOUTS = [
    # engine, model, tensor parallel, stages, replicas, GPUs, card
    *(("vllm", "meta-llama/Llama-3.1-8B", *sizes, "l40s") for sizes in (
        (2, 1, 4, 4), (1, 4, 1, 2), (4, 1, 1, 3), (2, 2, 2, 4), (8, 1, 1, 1), (2, 4, 2, 3),
        (1, 1, 1, 4), (2, 1, 1, 8), (4, 1, 2, 16),
    )),
    ("sglang", "meta-llama/Llama-3.1-8B", 2, 1, 2, 2, "l40s"),
    ("sglang", "meta-llama/Llama-3.1-8B", 1, 1, 1, 4, "l40s"),
    ("vllm", "Qwen/Qwen2.5-7B-Instruct", 2, 1, 1, 8, "l40s"),  # 28 heads: not over 8
    ("vllm", "Qwen/Qwen2.5-7B-Instruct", 4, 1, 1, 3, "l40s"),
    ("vllm", "meta-llama/Llama-3.1-70B", 8, 1, 1, 4, "l4"),  # four are too small
    ("lmdeploy", "meta-llama/Llama-3.1-8B", 4, 1, 1, 2, "l40s"),
]  # fmt: skip
START = {
    "vllm": ("vllm serve {}", "--tensor-parallel-size", "--pipeline-parallel-size",
             "--data-parallel-size", "--max-model-len 8192"),
    "sglang": ("python -m sglang.launch_server --model-path {}", "--tp-size", "--pp-size",
               "--dp-size", "--context-length 8192"),
    "lmdeploy": ("lmdeploy serve api_server {}", "--tp", "", "--dp", "--session-len 8192"),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layouts_that_are_told_run(layout: tuple[str, str, int, int, int, int, str]) -> None:
    """A layout for the GPUs that there are uses them, is taken by the engine and fits."""
    engine, model, tp, pp, dp, gpus, card = layout
    start, *flags, length = START[engine]
    sizes = [f"{flag} {n}" for flag, n in zip(flags, (tp, pp, dp), strict=True) if flag and n > 1]
    devices = ",".join(map(str, range(gpus)))
    command = f"CUDA_VISIBLE_DEVICES={devices} {' '.join([start.format(model), length, *sizes])}"
    found = next(
        r for r in check(command, card).results if r.assertion in ("too-few-gpus", "idle-gpus")
    )
    told = found.hint.replace(", or ", ", ").split(", ")
    asked = next(each for each in told if each.startswith("ask for "))

    assert asked == f"ask for {tp * pp * dp}"
    if layout[-1] == "l4":
        assert told == [asked]
    for each in told:
        if each == asked:
            continue
        cure = each.removeprefix("set ").partition(" for ")[0]
        cured = check(applied(command, cure), card)
        assert by_code(cured, "fits").status == "pass", cure
        assert not {"too-few-gpus", "engine-refuses"} & {*codes(cured)}, cure
        if found.assertion == "idle-gpus":
            assert "idle-gpus" not in codes(cured), cure


def test_a_model_that_is_not_known_leaves_layouts_untold() -> None:
    """Nothing says which layouts a model allows that is not known: GPUs alone are told."""
    command = "CUDA_VISIBLE_DEVICES=0 vllm serve org/no-such-model --tensor-parallel-size 4"

    assert by_code(check(command, "l40s"), "too-few-gpus").hint == "ask for 4"


def test_a_limit_of_false_has_no_cure() -> None:
    """`fits: false` of what fits is said without a reason that there is not."""
    failed = by_code(check(COMMANDS["vllm"], "h200", fits=False), "fits")

    assert (failed.message, failed.hint) == ("fits is true", "")


_LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
_SGLANG = f"python -m sglang.launch_server --model-path {_LLAMA} --context-length 8192"
_LMDEPLOY = f"lmdeploy serve api_server {_LLAMA} --session-len 8192 --cache-max-entry-count"
_TRTLLM = f"trtllm-serve {_LLAMA} --max_seq_len 8192 --backend pytorch"
SHARES = [
    # command, what is free of the card, flag
    (f"vllm serve {_LLAMA} --max-model-len 8192 --gpu-memory-utilization 0.98", None,
     "--gpu-memory-utilization"),
    (f"vllm serve {_LLAMA} --max-model-len 8192", 30 * 2**30,
     "--gpu-memory-utilization"),
    (f"{_SGLANG} --mem-fraction-static 0.98", None, "--mem-fraction-static"),
    (f"{_SGLANG} --mem-fraction-static 0.2", None, "--mem-fraction-static"),
    (f"{_LMDEPLOY} 0.99", None, "--cache-max-entry-count"),
    (f"{_LMDEPLOY} 0.01", None, "--cache-max-entry-count"),
    (f"{_TRTLLM} --kv_cache_free_gpu_memory_fraction 0.01", None,
     "--kv_cache_free_gpu_memory_fraction"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "free", "flag"), SHARES)
def test_another_share_is_offered_where_one_passes(
    command: str, free: int | None, flag: str
) -> None:
    """Too large or too small, the nearest share that surely holds the goal is told."""

    def fits(text: str) -> Check:
        options = Options(gpu="l40s", gpu_free=free)
        return by_code(run(gather((), shlex.split(text), options), figures=True), "fits")

    found = fits(command)
    cure = next(each for each in cures_of(found) if each.startswith(flag))
    given = shlex.split(command)
    share = float(cure.split()[1])

    def passes(value: float) -> bool:
        return fits(applied(command, f"{flag} {value:g}")).status == "pass"

    assert passes(share)
    toward = float(given[given.index(flag) + 1]) if flag in given else 0.92  # vLLM's own
    nearer = share + (0.001 if toward > share else -0.001)
    assert not passes(round(nearer, 3))


@pytest.mark.parametrize(
    ("command", "cure"),
    [
        (f"vllm serve {_LLAMA} --max-model-len 128", "--max-num-seqs 300"),
        (
            _SGLANG.replace("8192", "128") + " --max-running-requests 100",
            "--max-running-requests 300",
        ),
    ],
)
def test_more_sequences_are_offered_where_they_are_too_few(command: str, cure: str) -> None:
    found = by_code(kvcalc.check(command=command, gpu="l40s", sequences=300), "fits")
    assert cure in cures_of(found)
    cured = kvcalc.check(command=applied(command, cure), gpu="l40s", sequences=300)
    assert by_code(cured, "fits").status == "pass"
