"""kvcalc capacity and kvcalc help: what they say, what they refuse, and their exit codes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kvcalc.cli.needs import NEEDS
from kvcalc.core.answers import CapacityAnswer
from tests.cli.harness import Outcome, call, is_fault, validate

QWEN = ("qwen3.5-27b", "--kv-memory", "15GiB", "--max", "8192")


def one(*arguments: str) -> Any:
    outcome = call("capacity", *arguments, "--format", "json")
    assert outcome.code == 0, outcome
    (found,) = outcome.results
    return found


@pytest.mark.parametrize(
    ("gpu", "block", "blocks", "tokens", "concurrency"),
    [("h100-80gb", 832, 295, 127_191, "15.53"), ("a100-80gb", 784, 313, 150_829, "18.41")],
)
def test_the_article(gpu: str, block: int, blocks: int, tokens: int, concurrency: str) -> None:
    """Qwen3.5-27B in 15 GiB on two cards: vLLM 0.33's own figures, and why."""
    found = one(*QWEN, "--gpu", gpu)
    assert (found["block_size"], found["num_blocks"]) == (block, blocks)
    assert found["kv_cache_tokens"] == tokens
    assert f"{found['max_concurrency']:.2f}" == concurrency
    assert f"raised from 16 to {block} tokens" in found["notes"][0]
    assert tuple(found) == CapacityAnswer.__struct_fields__


def test_the_engine_that_is_taken_is_said() -> None:
    outcome = call("capacity", *QWEN)
    assert "note: no engine was named: vllm" in outcome.err.splitlines()
    assert "note: no engine was named" not in call("capacity", *QWEN, "--engine", "vllm").err


def test_the_document_has_a_schema() -> None:
    outcome = call("capacity", *QWEN, "--gpu", "h100-80gb", "--levers", "--layouts",
                   "--solve", "tp", "--at", "4096", "--suggest", "--format", "json")  # fmt: skip
    assert validate("capacity", outcome.document) == []


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_other_formats(form: str) -> None:
    outcome = call("capacity", *QWEN, "--levers", "--format", form)
    assert outcome.code == 0
    assert "127,191" in outcome.out or "127191" in outcome.out


def test_a_fit_that_is_required() -> None:
    short = ("llama-3.1-8b", "--kv-memory", "10GiB", "--max", "131072")
    assert call("capacity", *short).code == 0
    assert call("capacity", *short, "--require-fit").code == 1
    assert call("capacity", *QWEN, "--require-fit").code == 0
    assert call("capacity", *QWEN, "--require-fit", "--sequences", "16").code == 1


def test_levers_name_flags_that_give_their_figures() -> None:
    """What a lever promises is what a plain run with its flags says."""
    base = (*QWEN, "--gpu", "h100-80gb")
    levers = one(*base, "--levers")["levers"]
    assert len(levers) >= 5
    for lever in levers:
        if lever["figures"] is None:
            continue
        plain = one(*_without(base, lever["flags"]), *lever["flags"])
        assert plain["kv_cache_tokens"] == lever["figures"]["kv_cache_tokens"]
        assert plain["max_concurrency"] == lever["figures"]["max_concurrency"]


def _without(base: tuple[str, ...], flags: list[str]) -> tuple[str, ...]:
    """Return the arguments without those options that a lever gives anew."""
    kept = list(base)
    for flag in flags:
        if flag.startswith("--") and flag in kept:
            place = kept.index(flag)
            del kept[place : place + 2]
    return tuple(kept)


def test_solutions_name_flags_that_hold() -> None:
    found = one("llama-3.1-8b", "--gpu", "l40s", "--kv-memory", "10GiB", "--max", "131072",
                "--solve", "max-model-len", "--solve", "kv-memory")  # fmt: skip
    longest, memory = found["solutions"]
    assert longest["value"] == 81_904
    fitting = one("llama-3.1-8b", "--gpu", "l40s", "--kv-memory", "10GiB", *longest["flags"])
    assert fitting["fits"]
    enough = one("llama-3.1-8b", "--gpu", "l40s", "--max", "131072", *memory["flags"])
    assert enough["fits"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "capacity of what memory?"),
        (("--kv-memory", "0"), "a cache of 0 B holds nothing"),
        (("--gpu-memory", "0"), "a card of 0 B holds nothing"),
        (("--gpu", "h100-80gb", "--gpu-memory-utilization", "1.5"), "no share above 0"),
        (("--gpu", "h100-80gb", "--gpu-memory-utilization", "most"), "no share above 0"),
        (("--kv-memory", "1GiB", "--solve", "everything"), "unknown value 'everything'"),
        (("--kv-memory", "1GiB", "--solve", "ngl"), "llama.cpp's"),
        (("--kv-memory", "1GiB", "--sequences", "0"), "not a whole number from 1"),
        (("--kv-memory", "1GiB", "--at", "many"), "many"),
        (("--kv-memory", "1GiB", "--at", "0"), "0"),
        (("--kv-memory", "1GiB", "--instances", "-1"), "-1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[str, ...], message: str) -> None:
    outcome = call("capacity", "llama-3.1-8b", *arguments)
    assert is_fault(outcome, 2)
    assert message in outcome.errors[0]


def _table(outcome: Outcome) -> list[str]:
    return outcome.out.splitlines()


def test_several_engines_are_put_side_by_side() -> None:
    outcome = call("capacity", *QWEN, "--engine", "vllm", "--engine", "sglang", "--gpu",
                   "h100-80gb")  # fmt: skip
    assert _table(outcome)[0] == "side by side"


class TestHelp:
    def test_needs_are_listed(self) -> None:
        outcome = call("help", "needs")
        assert outcome.code == 0
        assert all(f"kvcalc {need.command}" in outcome.out for need in NEEDS)

    @pytest.mark.parametrize("need", NEEDS, ids=[str(need.number) for need in NEEDS])
    def test_each_command_runs(self, need: Any) -> None:
        outcome = call("help", "needs", str(need.number))
        assert outcome.code == 0, outcome
        plain = call(*shlex.split(need.command))
        assert outcome.out.endswith(plain.out)
        assert len(plain.out.splitlines()) > 5

    def test_the_needs_of_the_list(self) -> None:
        wanted = {*range(1, 6), *range(9, 18), *range(19, 24), 26, *range(31, 35)}
        assert {need.number for need in NEEDS} == wanted

    @pytest.mark.parametrize("arguments", [(), ("nothing",), ("needs", "99"), ("needs", "x")])
    def test_what_there_is_not(self, arguments: tuple[str, ...]) -> None:
        assert is_fault(call("help", *arguments), 2)
