"""kvcalc capacity and kvcalc help: what they say, what they refuse, and their exit codes."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.cli.help_topics import NEEDS
from tests.cli.harness import Outcome, call, is_fault, validate
from tests.models.gguf.writer import metadata
from tests.models.test_sources import GGUF_KEYS

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
    assert call("capacity", *QWEN, "--require-fit").code == 1  # 1,024 states, and 295 blocks
    bounded = (*QWEN, "--max-num-seqs", "128", "--require-fit")
    assert call("capacity", *bounded).code == 0
    assert call("capacity", *bounded, "--sequences", "16").code == 1


LLAMA = ("llama-3.1-8b", "--max", "8192", "--gpu")


@pytest.mark.parametrize(
    "base",
    [
        (*QWEN, "--gpu", "h100-80gb", "--max-num-seqs", "64"),
        (*QWEN, "--gpu", "h100-80gb", "--max-num-seqs", "64", "--speculative-method", "mtp",
         "--num-speculative-tokens", "2"),
        (*LLAMA, "l40s", "--gpu-free", "38GiB"),
        (*LLAMA, "l40s", "--weights", "9GiB"),
        (*LLAMA, "h100-80gb", "--instances", "2"),
        (*LLAMA, "h100-80gb", "--engine", "sglang", "--gpu-free", "50GiB"),
        (*LLAMA, "h100-80gb", "--engine", "tensorrt-llm", "--tp", "2"),
        (*LLAMA, "l40s", "--engine", "lmdeploy", "--quantization", "int4"),
        ("llama-3.1-8b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "-c", "100000",
         "-ngl", "99"),
        ("llama-3.1-8b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "-c", "65536", "-np", "2",
         "--gpu-free", "20GiB", "-ngl", "99"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_levers_name_flags_that_give_their_figures(base: tuple[str, ...]) -> None:
    """What a lever promises is what a plain run with its flags says."""
    levers = one(*base, "--levers")["levers"]
    assert levers
    gains = [v["concurrency_gain"] for v in levers if v["concurrency_gain"] is not None]
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 1 for gain in gains)
    for lever in levers:
        assert lever["flags"]
        plain = one(*_without(base, lever["flags"]), *lever["flags"])
        for key in ("kv_cache_tokens", "max_concurrency", "max_model_len_that_fits"):
            assert plain[key] == lever["figures"][key]


def _without(base: tuple[str, ...], flags: list[str]) -> tuple[str, ...]:
    """Return the arguments without those options that a lever gives anew."""
    kept = list(base)
    short = {"--ctx-size": "-c", "--parallel": "-np", "--n-gpu-layers": "-ngl"}
    for flag in flags:
        for spelled in (flag, short.get(flag, flag)):
            if flag.startswith("--") and spelled in kept:
                place = kept.index(spelled)
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


def test_no_speculation_has_a_flag() -> None:
    """The lever's own flag undoes what a settings file says; beside an option it is compared."""
    drafting = (*QWEN, "--gpu", "h100-80gb", "--speculative-method", "mtp",
                "--num-speculative-tokens", "2")  # fmt: skip
    (lever,) = (v for v in one(*drafting, "--levers")["levers"] if v["name"] == "no speculation")
    assert lever["flags"] == ["--speculative-method", "none"]
    plain = one(*QWEN, "--gpu", "h100-80gb")
    both = call("capacity", *drafting, *lever["flags"], "--format", "json").results
    assert [{**found, "flags": []} for found in both] == [one(*drafting), plain]


def test_bytes_of_the_weights_leave_no_lever_on_their_format() -> None:
    """Whoever gives bytes knows what they are kept in, and nobody else does."""
    levers = one(*LLAMA, "l40s", "--weights", "9GiB", "--levers")["levers"]
    assert not [lever["name"] for lever in levers if lever["name"].startswith("weights")]
    assert [v for v in one(*LLAMA, "l40s", "--levers")["levers"] if "weights in" in v["name"]]


def test_refused_levers_stand_apart_with_the_reason() -> None:
    found = one(
        "llama-3.1-8b", "--gpu", "v100-32gb", "--dtype", "fp16", "--max", "8192", "--levers"
    )
    (refused,) = (v for v in found["refused_levers"] if v["name"] == "cache in fp8")
    assert refused["flags"] == ["--kv-cache-dtype", "fp8"]
    assert is_fault(call("capacity", "llama-3.1-8b", "--gpu", "v100-32gb", "--dtype", "fp16",
                         *refused["flags"]), 2)  # fmt: skip
    assert refused["reason"]


@pytest.mark.parametrize("word", ["-1", "-2", "all", "auto", "ALL"])
def test_all_layers_on_the_card(word: str) -> None:
    """llama.cpp's words for all of the layers are those of the option too."""
    base = ("llama-3.1-8b", "--engine", "llama.cpp", "--gpu", "rtx-4090", "-c", "8192")
    found = one(*base, "-ngl", word)
    assert {**found, "notes": None} == {**one(*base), "notes": None}
    assert is_fault(call("capacity", *base, "-ngl", "-3"), 2)
    assert is_fault(call("capacity", *base, "-ngl", "most"), 2)


_SGLANG = "python -m sglang.launch_server"
_VLLM = "vllm serve meta-llama/Llama"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("llama-3.1-8b", "--solve", "max-num-seqs", "--max", "131072"),
         "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072 --max-num-seqs 3"),
        (("llama-3.1-8b", "--quantization", "fp8"),
         "vllm serve meta-llama/Llama-3.1-8B-Instruct --quantization fp8"),
        (("llama-3.1-70b", "--max", "8192", "--solve", "tp"),
         _VLLM + "-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192"),
        (("llama-3.1-8b", "--engine", "sglang", "--engine-arg", "mem_fraction_static=0.7"),
         _SGLANG + " --model-path meta-llama/Llama-3.1-8B-Instruct --mem-fraction-static 0.7"),
    ],
)  # fmt: skip
def test_the_engine_s_own_command(arguments: tuple[str, ...], command: str) -> None:
    """What was solved for is in it, and the model is what the engine loads."""
    found = one(*arguments, "--gpu", "h100-80gb", "--suggest")
    assert found["suggested"] == command
    assert all(one["command"] == command for one in found["solutions"])


def test_a_command_of_another_checkpoint_says_so() -> None:
    found = one(*LLAMA, "l40s", "--quantization", "int4", "--suggest")
    assert any(
        "weights in int4 are another checkpoint" in note for note in found["suggested_notes"]
    )


def test_the_command_of_a_file(tmp_path: Any) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(metadata("llama", GGUF_KEYS))
    found = one(str(path), "--gpu", "rtx-4090", "-c", "4096", "--weights", "1MiB", "--suggest")
    assert found["suggested"] == f"llama-server -m {path} --ctx-size 4096"


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
        if need.yours:  # test_log, test_frag_files and measure/metrics run these commands
            assert all(operand in need.command.split() for operand in need.yours)
            assert outcome.out.endswith(".\n")
            return
        plain = call(*shlex.split(need.command))
        assert outcome.out.endswith(plain.out)
        assert len(plain.out.splitlines()) > 5

    def test_the_needs_of_the_list(self) -> None:
        """All that people were found to ask, in the order of the list."""
        assert [need.number for need in NEEDS] == list(range(1, 35))

    @pytest.mark.parametrize("arguments", [(), ("nothing",), ("needs", "99"), ("needs", "x")])
    def test_what_there_is_not(self, arguments: tuple[str, ...]) -> None:
        assert is_fault(call("help", *arguments), 2)
