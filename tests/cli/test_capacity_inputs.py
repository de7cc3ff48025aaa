"""What kvcalc capacity is given: settings files, variables, several engines, requests, sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcalc.cli.app import build
from kvcalc.cli.settings import ALL_SWITCHES, SETTINGS
from tests.cli.harness import call, is_fault, validate
from tests.models.gguf.writer import metadata
from tests.models.test_sources import GGUF_KEYS

LLAMA = ("llama-3.1-8b", "--engine", "vllm", "--gpu", "l40s", "--max", "8192")


def results(*arguments: str) -> Any:
    outcome = call("capacity", *arguments, "--format", "json")
    assert outcome.code == 0, outcome
    return outcome.results


def _options() -> list[Any]:
    import typer

    group: Any = typer.main.get_command(build())
    return list(group.commands["capacity"].params)


def test_whatever_has_a_variable_can_stand_in_the_file() -> None:
    """Precedence is one for all: an option that a variable sets has a key as well."""
    with_variable = {p.name for p in _options() if p.envvar and p.name != "settings"}
    assert "gpu_memory_utilization" in with_variable
    assert with_variable <= set(SETTINGS.values())


_VALUES = {
    "gpu_memory": "30GiB",
    "gpu_free": "40GiB",
    "gpu_memory_utilization": "0.8",
    "weights": "9GiB",
    "quantization": "fp8",
    "sequences": "3",
    "instances": "2",
    "at": "4096",
    "max_num_seqs": "16",
    "kv_memory": "4GiB",
}


@pytest.mark.parametrize("name", _VALUES)
def test_flag_variable_and_file_say_the_same(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    value, flag = _VALUES[name], "--" + name.replace("_", "-")
    typed = results(*LLAMA, flag, value)
    assert typed != results(*LLAMA)
    Path("kvcalc.yaml").write_text(f"{name}: {value}\n", encoding="utf-8")
    assert results(*LLAMA) == typed
    Path("kvcalc.yaml").unlink()
    monkeypatch.setenv(f"KVCALC_{name.upper()}", value)
    assert results(*LLAMA) == typed


@pytest.mark.parametrize("name", ALL_SWITCHES)
def test_switches_in_the_file(name: str) -> None:
    dash = name.replace("_", "-")
    base = (
        "qwen3-30b-a3b-instruct-2507",
        "--engine",
        "vllm",
        "--gpu",
        "h100-80gb",
        "--max",
        "8192",
    )
    for word, flag in (("true", f"--{dash}"), ("off", f"--no-{dash}")):
        typed = results(*base, flag)
        Path("kvcalc.yaml").write_text(f"{name}: {word}\n", encoding="utf-8")
        assert results(*base) == typed
        Path("kvcalc.yaml").unlink()


def test_layers_on_the_card_in_the_file() -> None:
    base = ("llama-3.1-8b", "--engine", "llama.cpp", "--gpu", "rtx-4090", "-c", "8192")
    typed = results(*base, "-ngl", "10")
    Path("kvcalc.yaml").write_text("n_gpu_layers: 10\nat: [1024, 2048]\n", encoding="utf-8")
    found = results(*base)
    assert found[0]["budget"] == typed[0]["budget"]
    assert [at["tokens"] for at in found[0]["at"]] == [1024, 2048]


def test_the_file_is_one_for_capacity_and_check() -> None:
    """A file of capacity's settings is no fault of check, which takes them for all deployments."""
    text = (
        "model: llama-3.1-8b\nengine: vllm\ngpu: l40s\nmax_model_len: 8192\n"
        "gpu_memory_utilization: 0.8\nweights: 9GiB\nsequences: 3\nat: 4096\n"
        "deployments:\n  - name: chat\n"
    )
    Path("kvcalc.yaml").write_text(text, encoding="utf-8")
    (found,) = results()
    checked = call("check", "kvcalc.yaml", "--format", "json")
    assert checked.code == 0, checked
    figures = str(checked.document)
    assert str(found["kv_cache_tokens"]) in figures
    assert found["sequences"] == 3


@pytest.mark.parametrize(
    "text",
    ["gpu_memory_utilization: 2\n", "weights: 0\n", "sequences: 0\n", "instances: none\n",
     "enforce_eager: 3\n", "gpu_free: lots\n", "at: many\n", "n_gpu_layers: -7\n"],
)  # fmt: skip
def test_a_bad_setting_has_its_line(text: str) -> None:
    Path("kvcalc.yaml").write_text(text, encoding="utf-8")
    message = is_fault(call("capacity", "llama-3.1-8b", "--gpu", "l40s", "--max", "8192"))
    assert message.startswith("kvcalc.yaml:1: ")


class TestSeveralEngines:
    ASKED = ("llama-3.1-8b", "--gpu", "l40s", "--max", "8192", "--engine", "vllm",
             "--engine", "sglang", "--engine", "mlc-llm")  # fmt: skip

    def test_one_that_refuses_is_a_warning(self) -> None:
        outcome = call("capacity", *self.ASKED, "--format", "json")
        assert outcome.code == 0, outcome
        assert [found["engine"] for found in outcome.results] == ["vllm", "sglang"]
        assert any(w.startswith("mlc-llm: refused: ") for w in outcome.document["warnings"])
        assert any("warning: mlc-llm: refused" in line for line in outcome.err.splitlines())
        assert validate("capacity", outcome.document) == []

    def test_the_others_answer_as_alone(self) -> None:
        both = results(*self.ASKED)
        for found in both:
            assert found == results(*self.ASKED[:5], "--engine", found["engine"])[0]

    def test_what_is_required_of_all_is_not_met(self) -> None:
        assert call("capacity", *self.ASKED, "--require-fit").code == 1
        assert call("capacity", *self.ASKED[:-2], "--require-fit").code == 0

    def test_all_that_refuse_are_an_error(self) -> None:
        refusing = ("llama-3.1-8b", "--gpu", "l40s", "--max", "8192", "--engine", "mlc-llm",
                    "--engine", "tgi")  # fmt: skip
        assert is_fault(call("capacity", *refusing))

    def test_one_engine_alone_is_an_error(self) -> None:
        assert is_fault(call("capacity", *self.ASKED[:5], "--engine", "mlc-llm"))


class TestRequests:
    @pytest.mark.parametrize(
        "given",
        [("--prompt-column", "x"), ("--output-column", "y"), ("--over", "keep")],
    )
    def test_what_is_said_of_none_is_refused(self, given: tuple[str, str]) -> None:
        outcome = call("capacity", *LLAMA, *given)
        assert is_fault(outcome).startswith(given[0])
        assert outcome.hints

    def test_what_a_file_says_of_requests_is_passed_over(self) -> None:
        Path("kvcalc.yaml").write_text("over: exclude\n", encoding="utf-8")
        assert call("capacity", *LLAMA).code == 0

    @pytest.mark.parametrize(
        ("over", "told"),
        [((), "cut to it"), (("--over", "exclude"), "left out"),
         (("--over", "keep"), "kept as they are")],
    )  # fmt: skip
    def test_longer_ones_are_counted(self, over: tuple[str, ...], told: str) -> None:
        outcome = call("capacity", *LLAMA, "--lengths", "100,9000,3x10000", *over)
        assert outcome.code == 0
        (note,) = [line for line in outcome.err.splitlines() if "longer than" in line]
        assert "4 of 5 requests are longer than the maximum of 8,192 tokens" in note
        assert told in note

    def test_none_longer_is_no_note(self) -> None:
        assert "longer than" not in call("capacity", *LLAMA, "--lengths", "100,8192").err

    def test_the_maximum_is_the_engine_s(self) -> None:
        """A maximum in an engine's own words cuts requests, too."""
        outcome = call("capacity", "llama-3.1-8b", "--engine", "llama.cpp", "--gpu", "rtx-4090",
                       "-c", "8192", "-np", "2", "--lengths", "5000")  # fmt: skip
        assert "1 of 1 request are longer" in outcome.err.replace("requests", "request")
        assert "4,096 tokens" in outcome.err

    def test_none_that_is_left(self) -> None:
        message = is_fault(call("capacity", *LLAMA, "--lengths", "9000", "--over", "exclude"))
        assert "no request of" in message

    def test_a_trace_of_stdin_serves_all_questions(self) -> None:
        outcome = call("capacity", *LLAMA, "--block", "16", "--block", "32", "--trace", "-",
                       "--format", "json", stdin=b"total_tokens\n100\n200\n")  # fmt: skip
        assert outcome.code == 0, outcome
        assert [len(found["at"]) for found in outcome.results] == [1, 1]


class TestSizes:
    @pytest.mark.parametrize("option", ["--weights", "--gpu-memory", "--kv-memory", "--gpu-free"])
    def test_a_forgotten_unit(self, option: str) -> None:
        outcome = call("capacity", *LLAMA, option, "16")
        assert is_fault(outcome) == f"{option}: 16 without a unit are 16 B"
        assert outcome.hints == ["hint: write 16GiB or 16GB, or 16B if that is meant"]

    @pytest.mark.parametrize("option", ["--weights", "--gpu-memory", "--kv-memory"])
    def test_nothing(self, option: str) -> None:
        outcome = call("capacity", *LLAMA, option, "0")
        assert "of 0 B hold" in is_fault(outcome)

    def test_bytes_that_are_meant(self) -> None:
        assert call("capacity", *LLAMA, "--weights", "9,663,676,416").code == 0
        assert call("capacity", *LLAMA, "--kv-memory", "1000B").code == 0
        assert call("capacity", *LLAMA, "--gpu-free", "0").code == 0


@pytest.mark.parametrize("given", ["-5", "foo", "1.5", "", "99999999999999999999999"])
def test_layers_that_are_no_number(given: str) -> None:
    outcome = call("capacity", "llama-3.1-8b", "--engine", "llama.cpp", "--gpu", "rtx-4090",
                   "-c", "8192", f"--n-gpu-layers={given}")  # fmt: skip
    assert "is no number of layers" in is_fault(outcome)
    assert all(word in outcome.hints[0] for word in ("from 0", "all", "auto"))


def test_a_file_without_tensors_says_which_option_names_its_format(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(
        metadata("llama", {**GGUF_KEYS, "vocab_size": 1000, "feed_forward_length": 1024})
    )
    asked = (str(path), "--gpu", "rtx-4090", "-c", "4096")
    outcome = call("capacity", *asked)
    assert "the format that the weights are stored in is not known" in is_fault(outcome)
    assert "--quantization" in outcome.hints[0]
    assert "--weights" in outcome.hints[0]
    assert call("capacity", *asked, "--weights", "1MiB").code == 0


@pytest.mark.parametrize("count", ["1001", "2147483647"])
def test_more_servers_than_a_card_has_thousandths(count: str) -> None:
    outcome = call("capacity", *LLAMA, "--instances", count)
    assert "servers on one card" in is_fault(outcome)
    assert "1000 at most" in outcome.hints[0]


@pytest.mark.parametrize("count", ["901", "1000"])
def test_servers_that_no_share_is_left_for(count: str) -> None:
    """No value inside kvcalc is told, and nothing is refused that has an answer."""
    found = results(*LLAMA, "--instances", count)[0]
    assert found["verdict"].startswith("No: ")
    assert "0.0 is not" not in found["verdict"]
