"""What is printed as a cure cures: every flag of a finding, a lever or a solution, run again."""

from __future__ import annotations

import os
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.harness import Outcome, call

_EXAMPLES = int(os.environ.get("KVCALC_LAW_EXAMPLES", "15"))
_LAWS = settings(
    max_examples=_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
_MODELS = {
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "qwen3.5-27b": "Qwen/Qwen3.5-27B",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "qwen2.5-3b": "Qwen/Qwen2.5-3B-Instruct",
}
_GPUS = ("h100-80gb", "l40s", "rtx-4090", "t4", "l4", "h200")
_LENGTHS = (1024, 8192, 32768, 131072, 200_000)


def _maybe(flag: str, *values: object) -> st.SearchStrategy[tuple[str, ...]]:
    given_ = st.sampled_from(values).map(lambda value: (flag, str(value)))
    return st.just(()) | st.just(()) | given_


served = st.tuples(
    st.sampled_from(sorted(_MODELS.values())).map(lambda name: ("vllm", "serve", name)),
    st.sampled_from(_LENGTHS).map(lambda n: ("--max-model-len", str(n))),
    _maybe("--gpu-memory-utilization", 0.3, 0.6, 0.95, 1.0),
    _maybe("--tensor-parallel-size", 2, 4, 8),
    _maybe("--max-num-batched-tokens", 8192, 32768),
    _maybe("--max-num-seqs", 4, 2048),
).map(lambda parts: [word for part in parts for word in part])


def _checked(gpu: str, words: list[str], *more: str) -> Outcome:
    return call("check", "--gpu", gpu, "-f", "json", *more, "--", *words)


def _with(words: list[str], flags: list[str]) -> list[str]:
    """Return a command with flags in place of what it says of the same settings."""
    found = list(words)
    for i in range(0, len(flags), 2):
        if flags[i] in found:
            at = found.index(flags[i])
            del found[at : at + 2]
        found += flags[i : i + 2]
    return found


def _flags(text: str) -> list[str]:
    return re.findall(r"--[a-z-]+|(?<= )[0-9a-z._]+", text)


def _statuses(outcome: Outcome, name: str) -> set[str]:
    return {one["status"] for one in outcome.results if one["assertion"] == name}


@_LAWS
@given(st.sampled_from(_GPUS), served, st.sampled_from(("1", "1", "4")))
def test_what_passes_passes(gpu: str, words: list[str], sequences: str) -> None:
    """For the whole goal: as many sequences as are asked for."""
    goal = ("--sequences", sequences)
    for one in _checked(gpu, words, *goal).results:
        told = one["hint"] if one["hint"].startswith("--") else ""  # else: no setting was found
        for cure in told.split("; ") if told.endswith(" passes") else ():
            flags = _flags(cure.removesuffix(" passes"))
            again = _checked(gpu, _with(words, flags), *goal)
            assert _statuses(again, one["assertion"]) == {"pass"}, (words, cure)


@_LAWS
@given(st.sampled_from(_GPUS), served)
def test_layouts_that_keep_the_cache_once_hold_it(gpu: str, words: list[str]) -> None:
    for one in _checked(gpu, words).results:
        if one["assertion"] != "cache-duplicated" or not one["hint"].endswith("keeps it once"):
            continue
        told = one["hint"].removesuffix("keeps it once").rstrip(" ,")
        for cure in told.split(", or "):
            flags = _flags(re.sub(r"with (\d+) replicas", r"--data-parallel-size \1", cure))
            again = _checked(gpu, _with(words, flags))
            assert _statuses(again, "fits") == {"pass"}, (words, cure)
            assert _statuses(again, "cache-duplicated") == set(), (words, cure)


@_LAWS
@given(st.sampled_from(_GPUS), served)
def test_the_longest_is_served(gpu: str, words: list[str]) -> None:
    for one in _checked(gpu, words).results:
        longest = re.match(r"(--max-model-len \d+) is the longest", one["hint"])
        if one["assertion"] == "length-over-model" and longest is not None:
            again = _checked(gpu, _with(words, longest[1].split()))
            assert _statuses(again, "length-over-model") == set()
            if _statuses(again, "fits") != {"pass"}:  # no length fits at all
                shortest = _with(words, ["--max-model-len", "1"])
                assert _statuses(_checked(gpu, shortest), "fits") != {"pass"}


@_LAWS
@given(st.sampled_from(_GPUS), served, st.sampled_from(("1", "2", "4", "16")))
def test_layouts_for_the_gpus_that_are_there(gpu: str, words: list[str], count: str) -> None:
    """Fewer GPUs than the ranks need, or more than they use."""
    image = ["docker", "run", "--gpus", count, "vllm/vllm-openai:v0.20.0", "--model", *words[2:]]
    for one in _checked(gpu, image).results:
        if one["assertion"] not in ("too-few-gpus", "idle-gpus"):
            continue
        for cure in re.split(r", or |, ", one["hint"]):
            if "--" not in cure:
                continue  # ask for other GPUs
            again = _checked(gpu, _with(image, _flags(cure)))
            assert _statuses(again, one["assertion"]) == set(), (image, cure)
            assert _statuses(again, "fits") == {"pass"}, (image, cure)


asked = st.tuples(
    st.sampled_from(sorted(_MODELS)).map(lambda name: (name,)),
    st.sampled_from(("vllm", "vllm", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp")).map(
        lambda engine: ("--engine", engine)
    ),
    st.sampled_from(_GPUS).map(lambda gpu: ("--gpu", gpu)),
    st.sampled_from(_LENGTHS).map(lambda n: ("--max", str(n))),
    _maybe("--sequences", 2, 8, 50),
    _maybe("--quantization", "fp8"),
).map(lambda parts: [word for part in parts for word in part])


def _plain(words: list[str], flags: list[str]) -> Any:
    outcome = call("capacity", *_with(words, flags), "-f", "json")
    assert outcome.code == 0, (words, flags, outcome.err)
    (found,) = outcome.results
    return found


@_LAWS
@given(asked)
def test_levers_buy_what_they_promise(words: list[str]) -> None:
    outcome = call("capacity", *words, "--levers", "-f", "json")
    if outcome.code:
        return
    (found,) = outcome.results
    for lever in found["levers"]:
        if not lever["flags"]:
            continue
        plain = _plain(words, lever["flags"])
        assert plain["fits"] == lever["fits"], (words, lever["name"])
        assert plain["kv_cache_tokens"] == lever["figures"]["kv_cache_tokens"]
    if not found["fits"]:
        fits = [lever["fits"] for lever in found["levers"]]
        assert fits == sorted(fits, reverse=True)


@_LAWS
@given(asked, st.sampled_from(("max-model-len", "gpus", "tp", "gpu-memory-utilization", "ngl")))
def test_solutions_hold_the_goal(words: list[str], setting: str) -> None:
    outcome = call("capacity", *words, "--solve", setting, "-f", "json")
    if outcome.code:
        return
    (found,) = outcome.results
    (solution,) = found["solutions"]
    if solution["value"] is not None:
        assert _plain(words, solution["flags"])["fits"] is True
        assert not found["verdict"].startswith(("No", "Yes"))
    lengths = {key: found[key]["max_model_len_that_fits"] for key in ("low", "high")}
    for key, length in lengths.items():
        if length and not found["deployment"]["instances"] > 1:
            plain = _plain(words, ["--max", str(length)])
            assert plain["fits" if key == "low" else "may_fit"] is True, (words, key, length)
