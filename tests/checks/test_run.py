"""Running checks: figures are those of capacity, cures pass, what is missing is said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.answers.metrics import METRICS
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.run import run
from kvcalc.sizing import Question
from kvcalc.sizing.question import work
from kvcalc.sizing.worked import Worked
from tests.checks.builders import by_code, checked, gpus, report_on, server

_OFTEN = 2
"""Times that a deployment without a finding is worked out, at most."""

ONE = """\
gpu: %s
deployments:
  - name: a
    model: %s
    tensor_parallel_size: %d
    max_model_len: %d
    assert:
      %s
"""


@pytest.mark.parametrize(
    ("model", "tp", "gpu", "engine"),
    [
        ("llama-3.1-8b", 1, "l40s", "vllm"),
        ("llama-3.1-70b", 4, "h100-80gb", "vllm"),
        ("gemma-3-27b", 2, "h100-80gb", "sglang"),
        ("qwen3.5-27b", 1, "h100-80gb", "vllm"),
        ("llama-3.1-8b", 1, "l40s", "tensorrt-llm"),
        ("llama-3.1-8b", 1, "rtx-4090", "llama.cpp"),
    ],
)
def test_figures_are_those_of_capacity(model: str, tp: int, gpu: str, engine: str) -> None:
    """A check knows no figure that kvcalc.capacity would not give."""
    fields: dict[str, Any] = (
        {} if engine == "llama.cpp" else {"max_model_len": 8192, "tensor_parallel_size": tp}
    )
    args: dict[str, Any] = {"ctx_size": 8192} if engine == "llama.cpp" else {}
    report = report_on(server(model, engine=engine, gpu=gpus(tp, gpu), args=args, **fields))
    found = report.deployments[0].figures
    deployment = kvcalc.Deployment(engine=engine, gpu=gpu, engine_args=dict(args), **fields)
    answer = kvcalc.capacity(kvcalc.load_model(model), deployment)

    same = (
        *("fits", "may_fit", "max_concurrency", "kv_cache_tokens", "needed_bytes"),
        *("missing_bytes", "block_size", "max_model_len_that_fits", "num_blocks"),
    )
    for name in same:
        if getattr(answer, name) is not None:
            assert found[name] == getattr(answer, name), name
    assert found["num_gpus"] == answer.deployment.num_gpus
    assert found["duplication_factor"] == answer.deployment.duplication_factor
    assert found["total_kv_cache_tokens"] == answer.deployment.kv_cache_tokens


@pytest.mark.parametrize(
    ("model", "tp", "gpu", "length", "assertion"),
    [
        ("llama-3.1-8b", 1, "rtx-4090", 131072, "fits: true"),
        ("llama-3.1-70b", 2, "h100-80gb", 32768, "fits: true"),
        ("llama-3.1-70b", 2, "h100-80gb", 32768, "min_max_concurrency: 32"),
        ("gemma-3-27b", 1, "h100-80gb", 131072, "min_max_concurrency: 16"),
        ("qwen3.5-27b", 1, "h100-80gb", 131072, "min_kv_cache_tokens: 1500000"),
        ("deepseek-v3", 8, "h200", 131072, "min_total_concurrency: 64"),
        ("llama-3.1-8b", 1, "l40s", 8192, "max_needed_bytes: 512MiB"),
    ],
)
def test_cures_pass(
    model: str, tp: int, gpu: str, length: int, assertion: str, tmp_path: Path
) -> None:
    """What a failure says would pass does, and one token more than the length does not."""
    name = assertion.partition(":")[0]
    source = ONE % (gpu, model, tp, length, assertion)
    failed = by_code(checked(source, tmp_path), name)
    assert failed.status in ("fail", "warn")
    cures = [cure.removesuffix(" passes") for cure in failed.hint.split("; ")]
    assert cures
    assert len(cures) <= 3

    for cure in cures:
        keys = cure.split()
        pairs = dict(zip(keys[::2], keys[1::2], strict=True))
        lines = [
            line for line in source.splitlines() if line.strip().partition(":")[0] not in pairs
        ]
        at = lines.index("    assert:")
        cured = [*lines[:at], *(f"    {k}: {v}" for k, v in pairs.items()), *lines[at:]]
        assert by_code(checked("\n".join(cured) + "\n", tmp_path), name).status == "pass", cure
        if "max_model_len" in pairs:
            more = [
                f"    max_model_len: {int(pairs['max_model_len']) + 1}"
                if line.startswith("    max_model_len")
                else line
                for line in cured
            ]
            assert by_code(checked("\n".join(more) + "\n", tmp_path), name).status != "pass"


@pytest.mark.parametrize(
    ("engine", "gpu", "setting"),
    [
        ("vllm", "rtx-4090", "gpu_memory_utilization"),
        ("sglang", "rtx-4090", "mem_fraction_static"),
        ("tensorrt-llm", "rtx-4090", "free_gpu_memory_fraction"),
        ("lmdeploy", "rtx-4090", "cache_max_entry_count"),
    ],
)
def test_what_may_fit_neither_fails_nor_passes(engine: str, gpu: str, setting: str) -> None:
    """Over all shares of a card: `fits` fails where no end fits, and passes where both do.

    No finding calls an error what may run.
    """
    found: dict[tuple[bool, bool], set[str]] = {}
    for hundredths in range(2, 100, 2):
        share = hundredths / 100
        field: dict[str, Any] = {}
        if setting == "gpu_memory_utilization":
            field = {setting: share}
        args = {} if field else {setting: share}
        report = report_on(
            server(engine=engine, gpu=gpus(1, gpu), args=args, max_model_len=8192, **field)
        )
        figures = report.deployments[0].figures
        ends = bool(figures["fits"]), bool(figures["may_fit"])
        result = by_code(report, "fits")
        found.setdefault(ends, set()).add(result.status)
        assert ("not certain" in result.message) == (ends == (False, True)), share
        if ends[1]:
            assert not report.failures, share

    assert found[True, True] == {"pass"}
    assert found[False, True] == {"warn"}
    assert found.get((False, False), {"fail"}) == {"fail"}


def test_cures_in_the_engine_s_words() -> None:
    """A command's cure is a flag of the engine that it starts."""
    wrong: dict[str, Any] = {"max_model_len": 131072, "gpu": gpus(1, "rtx-4090")}
    vllm = by_code(report_on(server(**wrong)), "fits")
    sglang = by_code(report_on(server(engine="sglang", **wrong)), "fits")

    assert "--max-model-len" in vllm.hint
    assert "--kv-cache-dtype fp8" in vllm.hint or "--tensor-parallel-size 2" in vllm.hint
    assert "--context-length" in sglang.hint
    assert "--tp-size 4" in sglang.hint


def test_unknown_model_does_not_stop_the_rest() -> None:
    """An unknown model is refused with how to name it; other servers and findings are checked."""
    report = report_on(
        server("org/Llama-3.1-8B-FP8", name="a", tensor_parallel_size=2, max_model_len=8192),
        server(name="b", max_model_len=8192),
    )
    refused = by_code(report, "unknown-model")

    assert refused.status == "refused"
    assert (refused.file, refused.line) == ("deploy.yaml", 10)
    assert "org/Llama-3.1-8B-FP8: {model: llama-3.1-8b, quantization: fp8}" in refused.hint
    assert [(r.name, r.assertion, r.status) for r in report.results[1:]] == [
        ("a", "too-few-gpus", "fail"),
        ("a", "fits", "skip"),
        ("b", "fits", "pass"),
    ]
    assert report.exit_code() == 2


def test_unknown_gpu_is_skipped_with_how_to_name_it() -> None:
    """Without a card there is no verdict, but what needs none is checked."""
    none = report_on(
        server(max_model_len=8192, gpu=gpus(1, None)),
        asserts={"max_bytes_per_token": "128KiB", "min_max_concurrency": 1},
    )
    odd = report_on(server(max_model_len=8192, gpu=gpus(1, "nvidia-x9000")))

    assert [r.status for r in none.results] == ["skip", "pass", "skip"]
    assert "--gpu h100-80gb" in none.results[0].hint
    assert {r.status for r in odd.results} <= {"skip", "warn"}
    assert any("nvidia-x9000" in r.message for r in odd.results)
    assert none.exit_code() == odd.exit_code() == 0


def test_one_of_two_cards_is_not_guessed() -> None:
    """A label that two cards have names none."""
    report = report_on(server(max_model_len=8192, gpu=gpus(1, "A100")))

    skip = by_code(report, "fits")
    assert skip.status == "skip"
    assert "a100-40gb or a100-80gb" in skip.hint


def test_open_variables() -> None:
    """A size that hangs on a variable without a value makes no figure."""
    report = report_on(server(max_model_len=8192, tensor_parallel_size=None))
    skip = by_code(report, "fits")

    assert skip.status == "skip"
    assert "nothing gives --tensor-parallel-size a value" in skip.message


def test_automatic_length() -> None:
    """`auto` is shortened to what fits, which is told."""
    report = report_on(server(gpu=gpus(1, "nvidia-l4"), other={"max_model_len": "auto"}))

    assert by_code(report, "fits").status == "pass"
    assert "an automatic maximum comes to about" in by_code(report, "length-is-shortened").message


def test_replicas_count() -> None:
    """Copies of a server are counted where all of them are asked about."""
    one = report_on(server(max_model_len=8192)).deployments[0].figures
    three = report_on(server(max_model_len=8192, replicas=3)).deployments[0].figures

    assert three["num_gpus"] == 3 * one["num_gpus"]
    assert three["total_kv_cache_tokens"] == 3 * one["total_kv_cache_tokens"]
    assert three["kv_cache_tokens"] == one["kv_cache_tokens"]


def test_price(tmp_path: Path) -> None:
    """A price makes an hour of a million tokens and of a sequence; without one it is said."""
    source = ONE % ("l40s", "llama-3.1-8b", 1, 8192, "max_cost_per_sequence_hour: 1")
    without = by_code(checked(source, tmp_path), "max_cost_per_sequence_hour")
    report = checked("price_per_gpu_hour: 2\n" + source, tmp_path)
    figures = report.deployments[0].figures

    assert without.status == "skip"
    assert "price_per_gpu_hour: 2.5" in without.hint
    assert figures["cost_per_sequence_hour"] == 2 / figures["total_concurrency"]
    assert figures["cost_per_million_tokens_hour"] == 2e6 / figures["total_kv_cache_tokens"]


@pytest.mark.parametrize(
    "name", [name for name, metric in METRICS.items() if metric.needs == "workload"]
)
def test_workload_figures(name: str, tmp_path: Path) -> None:
    """Every figure over requests is one of kvcalc.compare's."""
    source = (
        "gpu: l40s\nworkloads: {chat: [200, 1200, 700, 2600]}\ndeployments:\n"
        "  - {name: a, model: llama-3.1-8b, max: 8192, workload: chat,"
        f" assert: {{min_{name}: 0}}}}\n"
    )
    found = by_code(checked(source, tmp_path), f"min_{name}").actual
    deployment = kvcalc.Deployment(engine="vllm", gpu="l40s", max_model_len=8192)
    plan = kvcalc.plan(kvcalc.load_model("llama-3.1-8b"), deployment)
    compared = kvcalc.compare(plan, [200, 1200, 700, 2600])

    if name == "reserved_gain":
        assert found == compared.reserved_gain
    elif name == "workload_concurrency":
        assert isinstance(found, float)
        assert found > 1
    else:
        side, _, waste = name.removesuffix("_ratio").partition("_")
        total = compared.paged_total if side == "paged" else compared.contiguous_total
        part = total.waste_bytes if waste == "waste" else getattr(total.waste, f"{waste}_bytes")
        assert found == part / total.reserved_bytes


def test_no_workload_is_said(tmp_path: Path) -> None:
    """An assertion over requests without any is skipped with how to name them."""
    source = ONE % ("l40s", "llama-3.1-8b", 1, 8192, "max_paged_waste_ratio: 5 %")
    skip = by_code(checked(source, tmp_path), "max_paged_waste_ratio")

    assert skip.status == "skip"
    assert "workload: chat" in skip.hint


def test_trace(tmp_path: Path) -> None:
    """Requests of a trace are read from beside the file."""
    (tmp_path / "requests.csv").write_text("prompt,output\n100,100\n1000,200\n", encoding="utf-8")
    source = (
        "gpu: l40s\nworkloads: {real: {trace: requests.csv, prompt_column: prompt,"
        " output_column: output}}\ndeployments:\n  - {name: a, model: llama-3.1-8b, max: 8192,"
        " workload: real, assert: {max_paged_waste_ratio: 10 %}}\n"
    )

    assert checked(source, tmp_path).ok


def test_levels_of_findings(tmp_path: Path) -> None:
    """A finding counts as what kvcalc.yaml says of its code."""
    source = (
        "gpu: l40s\nfindings: {cache-duplicated: %s}\ndeployments:\n"
        "  - {name: a, model: qwen2.5-3b, max: 8192, tp: 4}\n"
    )
    found = {
        level: by_code(checked(source % level, tmp_path), "cache-duplicated").status
        for level in ("off", "note", "warn", "error")
    }

    assert found == {"off": "off", "note": "note", "warn": "warn", "error": "fail"}


def test_refusal_can_be_lowered(tmp_path: Path) -> None:
    """An unknown model stops nobody who says so."""
    source = "gpu: l40s\nfindings: {unknown-model: warn}\ndeployments:\n  - {name: a, model: nix}\n"
    made = checked(source, tmp_path)

    assert by_code(made, "unknown-model").status == "warn"
    assert made.exit_code() == 0


def test_two_hundred_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 deployments of five models, two engines and many lengths: each is worked out by itself.

    How often is counted, which no neighbour on the machine changes: seconds are tests/bench's.
    """
    models = ("llama-3.1-8b", "llama-3.1-70b", "qwen2.5-72b", "gemma-3-27b", "qwen3.5-27b")
    lines = [
        f"  - {{name: d{i}, model: {models[i % 5]}, tp: 8, max: {4096 + 16 * i},"
        f" engine: {'sglang' if i % 4 == 0 else 'vllm'}, assert: {{min_max_concurrency: 1}}}}"
        for i in range(200)
    ]
    path = tmp_path / "kvcalc.yaml"
    path.write_text("\n".join(["gpu: h100-80gb", "deployments:", *lines[:4], ""]), encoding="utf-8")
    run(gather([str(path)], (), Options()))  # all modules are imported
    calls = [0]

    def counted(asked: Question) -> Worked:
        calls[0] += 1
        return work(asked)

    for module in [one for name, one in sys.modules.items() if name.startswith("kvcalc.")]:
        if getattr(module, "work", None) is work:
            monkeypatch.setattr(module, "work", counted)
    found = {}
    for count in (20, 200):
        text = "\n".join(["gpu: h100-80gb", "deployments:", *lines[:count], ""])
        path.write_text(text, encoding="utf-8")
        calls[0] = 0
        report = run(gather([str(path)], (), Options()))
        found[count] = calls[0]

    assert report.summary.passed >= 300
    assert 200 <= found[200] <= _OFTEN * 200
    assert found[200] <= 10 * found[20]


def test_pytest_one_liner() -> None:
    """A test of one's own is one line."""
    kvcalc.check(
        command="vllm serve meta-llama/Llama-3.1-8B --max-model-len 8192", gpu="l40s"
    ).raise_for_failures()


def test_api(tmp_path: Path) -> None:
    """A program says what the options say."""
    path = tmp_path / "kvcalc.yaml"
    path.write_text(
        "assert: {min_max_concurrency: 1}\ndeployments:\n  - {name: a, model: ours, max: 8192}\n",
        encoding="utf-8",
    )
    report = kvcalc.check(path, gpu="l40s", models={"ours": "llama-3.1-8b"})
    failed = kvcalc.check(
        path, gpu="l40s", models={"ours": "llama-3.1-8b"}, asserts={"min_max_concurrency": 900}
    )

    assert report.ok
    assert not failed.ok
    with pytest.raises(AssertionError, match="max_concurrency"):
        failed.raise_for_failures()
