"""How engines and their settings may be asked for, and what is said where one refuses."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.engines import ALIASES, ENGINES
from tests.cli.harness import call, is_fault

L8 = "llama-3.1-8b"


def one(*arguments: str) -> Any:
    outcome = call(*arguments, "--format", "json")

    assert outcome.code == 0, outcome
    (found,) = outcome.results
    return found


@pytest.mark.parametrize(
    "command",
    [
        ("compare", L8, "--engine", "llama.cpp", "-c", "4096"),
        ("compare", L8, "--engine", "llama.cpp", "--engine-arg", "ctx-size=4096"),
        ("frag", "--free", "15GiB", "--largest", "1.9GiB", "--engine", "llama.cpp", "-c", "4096",
         L8),
        ("compare", L8, "--engine", "sglang", "--engine-arg", "context_length=4096"),
        ("compare", L8, "--engine", "lmdeploy", "--engine-arg", "session_len=4096"),
    ],
)  # fmt: skip
def test_a_default_is_not_imposed(command: tuple[str, ...]) -> None:
    """An engine's own length decides where no maximum was given, and no note says otherwise."""
    outcome = call(*command, "--format", "json")

    assert outcome.code == 0, outcome
    assert outcome.results[0]["max_model_len"] == 4096
    assert not any("8,192 tokens" in note for note in outcome.document["notes"])
    assert any("it is the engine's own, by" in note for note in outcome.document["notes"])


def test_slots_are_not_given_the_default() -> None:
    """llama-server -np 4 gives each slot the model's own context (common/fit.cpp), not 8,192."""
    outcome = call("compare", L8, "--engine", "llama.cpp", "-np", "4", "--format", "json")

    assert outcome.results[0]["max_model_len"] == 131_072


def test_places_decide_on_the_requests_at_once() -> None:
    """Four slots serve four requests, however many the cells would hold."""
    load = ("--lengths", "50x100", "--kv-memory", "20GiB")
    command = ("compare", L8, "--engine", "llama.cpp", "-c", "8192", *load)
    found = one(*command)["concurrency"]

    assert (found["paged"], found["paged_mean"], found["max_sequences"]) == (4, 4.0, 4)
    assert "llama.cpp has 4 places for sequences" in call(*command).out


@pytest.mark.parametrize(
    "key", ["max_batch_size", "max-batch-size", "--max-batch-size", "lmdeploy:max-batch-size"]
)
def test_a_setting_as_the_flag_is_spelled(key: str) -> None:
    memory = ("--kv-memory", "20GiB", "--max", "8192")
    command = ("plan", L8, "--engine", "lmdeploy", "--engine-arg", f"{key}=2", *memory)

    assert one(*command)["start_up"]["max_sequences"] == 2


def test_a_setting_given_twice() -> None:
    twice = ("--engine-arg", "session_len=4096", "--engine-arg", "--session-len=2048")
    fault = is_fault(call("plan", L8, "--engine", "lmdeploy", *twice))

    assert "session_len is given as 4096 and as 2048" in fault


def test_a_size_with_a_unit() -> None:
    """Settings of bytes take 60GiB; 60G has two readings, and a count takes no unit."""
    card = ("--engine", "lmdeploy", "--gpu", "h100-80gb", "--engine-arg", "vocab_size=128256")

    def blocks(free: str) -> int:
        found = one("plan", L8, *card, "--engine-arg", f"free_memory={free}")["start_up"]
        return int(found["num_blocks"])

    assert blocks("60GiB") == blocks(str(60 * 2**30))
    two = is_fault(call("plan", L8, *card, "--engine-arg", "free_memory=60G"))
    assert "'60G' has more than one reading" in two
    no_bytes = is_fault(call("plan", L8, *card, "--engine-arg", "max_batch_size=2GiB"))
    assert "max_batch_size is '2GiB', not a whole number" in no_bytes


@pytest.mark.parametrize("command", ["plan", "per-token", "compare"])
@pytest.mark.parametrize("engine", ["none", "sglang", "lmdeploy", "transformers", "llama.cpp"])
def test_replicas_are_told(command: str, engine: str) -> None:
    """Figures of one of them, with every engine and command."""
    outcome = call(command, L8, "--engine", engine, "--dp", "2", "--max", "8192", "-f", "json")
    document = outcome.document
    notes = [*document["notes"], *document["results"][0].get("notes", ())]

    assert sum("2 replicas hold requests of their own" in note for note in notes) == 1


class TestSideBySide:
    """One engine that refuses does not hide the others."""

    ASKED = ("--engine", "transformers", "--engine", "lmdeploy", "--max", "8192")
    REFUSED = ("--tp", "2", "--max-num-seqs", "4")

    def test_the_others_are_shown(self) -> None:
        outcome = call("plan", L8, *self.ASKED, *self.REFUSED, "--format", "json")
        document = outcome.document

        assert outcome.code == 0
        assert [r["engine"] for r in document["results"]] == ["lmdeploy"]
        refused, how = document["warnings"]
        assert refused.startswith("transformers: refused: llama-3.1-8b: transformers has no")
        assert how.endswith("--engine-arg NAME:KEY=VALUE")
        assert f"warning: {refused}" in outcome.err
        assert document["inputs"]["resolved"]["engine"] == "lmdeploy"

    def test_a_setting_for_one_alone_is_told_where_one_is_refused(self) -> None:
        """What is not modelled of an engine is no setting's fault."""
        engines = ("--engine", "vllm", "--engine", "tgi")
        outcome = call("capacity", L8, "--gpu", "l40s", *engines, "--format", "json")
        (refused,) = outcome.document["warnings"]
        assert refused.startswith("tgi: refused:")
        assert "is not modelled" in refused

    def test_none_is_left(self) -> None:
        fault = is_fault(call("plan", L8, *self.ASKED, "--num-speculative-tokens", "4"))

        assert "not modelled for transformers (num_speculative_tokens)" in fault

    def test_one_alone_is_an_error(self) -> None:
        assert is_fault(call("plan", L8, "--engine", "transformers", "--max-num-seqs", "4"))

    def test_no_one_engine_is_resolved(self) -> None:
        resolved = call("plan", L8, *self.ASKED, "-f", "json").document["inputs"]["resolved"]

        assert resolved["engine"] is None
        assert resolved["engines"] == ["transformers", "lmdeploy"]


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("llamacpp", "llama.cpp"),
        ("llama-server", "llama.cpp"),
        ("trt", "tensorrt-llm"),
        ("TRTLLM", "tensorrt-llm"),
        ("hf", "transformers"),
        ("vLLM", "vllm"),
    ],
)
def test_other_spellings(name: str, engine: str) -> None:
    assert one("plan", L8, "--engine", name, "--max", "8192")["engine"] == engine


def test_other_spellings_of_known_names() -> None:
    assert set(ALIASES.values()) <= set(ENGINES)
    assert not set(ALIASES) & set(ENGINES)
    assert all(name == name.lower() for name in (*ALIASES, *ENGINES))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ollama", "--engine llama.cpp with ollama's settings"),
        ("turbomind", "--engine lmdeploy --engine-arg backend=turbomind"),
    ],
)
def test_an_engine_with_settings(name: str, hint: str) -> None:
    """It is told how to ask for it, as the plain engine is another."""
    outcome = call("plan", L8, "--engine", name)

    assert is_fault(outcome).startswith(f"--engine: {name} is")
    assert hint in outcome.hints[0]


def test_an_own_setting_of_another_spelling() -> None:
    found = one(
        "plan", L8, "--engine", "hf", "--engine-arg", "hf:prompt_tokens=100", "--max", "200"
    )

    assert found["engine"] == "transformers"
