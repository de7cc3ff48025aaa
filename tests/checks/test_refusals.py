"""What an engine refuses: the setting at its line, every one of them, and nothing of variables."""

from __future__ import annotations

import pytest

from kvcalc.answers.assertions import Check
from kvcalc.answers.check_report import CheckReport
from kvcalc.checks.gather import Options, gather
from kvcalc.checks.run import run
from kvcalc.engines.refusals import by_code
from tests.checks.builders import codes, gpus, report_on, server


def refused(report: CheckReport) -> list[Check]:
    """Return what the engine refuses: under the refusal's own code where it has one."""
    return [r for r in report.results if r.assertion in {"engine-refuses", *by_code("vllm")}]


def command(*words: str, version: str | None = None, gpu: str = "h100-80gb") -> CheckReport:
    return run(gather([], words, Options(gpu=gpu, engine_version=version)))


@pytest.mark.parametrize(
    ("engine", "settings", "name"),
    [
        ("vllm", {"max_model_len": 8192, "kv_cache_dtype": "int8"}, "kv_cache_dtype"),
        ("vllm", {"max_model_len": 8192, "tensor_parallel_size": 3}, "tensor_parallel_size"),
        ("vllm", {"max_model_len": 8192, "dtype": "int3"}, "dtype"),
        ("vllm", {"max_model_len": 8192, "attention_backend": "NOPE"}, "attention_backend"),
        ("vllm", {"max_model_len": 8192, "speculative_method": "mtp"}, "speculative_method"),
        ("sglang", {"max_model_len": 8192, "tensor_parallel_size": 3}, "tensor_parallel_size"),
    ],
)
def test_at_the_setting(engine: str, settings: dict[str, object], name: str) -> None:
    """A refusal stands at the setting without which there is none, whatever else is set."""
    made = server(engine=engine, gpu=gpus(8), **settings)  # type: ignore[arg-type]
    line = next(s.line for s in made.settings if s.name == name)

    assert [r.line for r in refused(report_on(made))] == [line]


def test_all_of_them_at_once() -> None:
    """Every refusal is told in one run, not one a run."""
    made = server(
        kv_cache_dtype="int8", max_model_len=8192, tensor_parallel_size=3, dtype="x", gpu=gpus(8)
    )

    assert sorted(r.line for r in refused(report_on(made))) == [11, 13, 14]


def test_names_of_a_file_are_told_at_once(tmp_path: object) -> None:
    """An engine, a card and a model of kvcalc.yaml that are not known are all told: exit code 2."""
    path = tmp_path / "kvcalc.yaml"  # type: ignore[operator]
    path.write_text(
        "deployments:\n  - name: a\n    engine: vlm\n    gpu: l4os\n    model: lama\n",
        encoding="utf-8",
    )
    report = run(gather([str(path)], (), Options()))

    assert [(r.assertion, r.line, r.status) for r in report.results[:3]] == [
        ("unknown-engine", 3, "refused"),
        ("unknown-gpu", 4, "refused"),
        ("unknown-model", 5, "refused"),
    ]
    assert report.exit_code() == 2


RELEASES = [
    ("vllm", "0.1.9"), ("sglang", "0.4.9"), ("sglang", "0.5.6"), ("tgi", "2.4.0"),
    ("tensorrt-llm", "0.9.0"), ("llama.cpp", "b4500"), ("lmdeploy", "0.15.0"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "version"), RELEASES)
def test_releases_that_kvcalc_does_not_know_are_skipped(engine: str, version: str) -> None:
    """A file's release may be right: that kvcalc does not know it fails nobody's build."""
    args = {"ctx_size": 8192} if engine == "llama.cpp" else {}
    fields: dict[str, object] = {} if args else {"max_model_len": 8192}
    made = report_on(server(engine=engine, version=version, args=args, **fields))  # type: ignore[arg-type]

    assert {r.status for r in made.results} == {"skip"}, made.results
    assert made.exit_code() == 0
    assert made.exit_code(fail_on_skip=True) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lmdeploy"])
def test_cards_whose_rules_kvcalc_does_not_know_are_skipped(engine: str) -> None:
    """So it is with a card of another maker."""
    made = report_on(server(engine=engine, max_model_len=8192, gpu=gpus(1, "mi300x")))

    assert {r.status for r in made.results} == {"skip"}
    assert made.exit_code() == 0


def test_a_release_that_is_typed_is_refused() -> None:
    """A release that the caller names is a name: one that is not known is exit code 2."""
    words = ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-model-len", "8192")

    assert command(*words, version="0.1.9").exit_code() == 2
    assert command(*words, version="0.19.0").exit_code() == 0


def test_what_the_engine_refuses_still_fails() -> None:
    """A refusal of the engine's own is a failure, as ever."""
    made = report_on(server(tensor_parallel_size=3, max_model_len=8192, gpu=gpus(3)))

    assert codes(made) == ["heads-over-ranks"]
    assert made.exit_code() == 1
