"""Why two plans differ: the parts add up to the difference, and each names what makes it."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvcalc.answers.differences import differences
from kvcalc.core.deployment import Deployment
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu

_GIB = 2**30
_ENGINES = ("none", "vllm", "sglang", "llama.cpp", "transformers", "tensorrt-llm")
_MODELS = ("gemma-3-27b", "llama-3.1-8b", "deepseek-v3")


def _plan(model: str, engine: str, tokens: int = 8192) -> CachePlan:
    return plan(
        load_model(model),
        Deployment(
            engine=engine,
            max_model_len=tokens,
            gpu=None if engine == "transformers" else load_gpu("h100-80gb"),
            engine_args={"parallel": 4} if engine == "llama.cpp" else {},
        ),
    )


@pytest.mark.parametrize("model", _MODELS)
def test_the_bytes_of_the_causes_add_up(model: str) -> None:
    plans = [_plan(model, engine) for engine in _ENGINES]
    for mine, base in permutations(plans, 2):
        found = differences(mine, base)
        more = sum(d.bytes for d in found if d.bytes is not None)
        longest = mine.max_model_len
        assert more == mine.bytes_needed(longest) - base.bytes_needed(longest)
        assert all(d.against == base.engine for d in found)
        assert all(mine.engine in d.reason and base.engine in d.reason for d in found)


def test_a_plan_does_not_differ_from_itself() -> None:
    one = _plan("gemma-3-27b", "vllm")
    assert differences(one, one, 20 * _GIB) == ()


def test_the_causes_are_named() -> None:
    """Gemma 3: vLLM fills up groups of 10 layers, SGLang keeps every token of every layer."""
    sglang, vllm = (_plan("gemma-3-27b", engine) for engine in ("sglang", "vllm"))
    found = {d.name: d for d in differences(sglang, vllm)}
    assert set(found) == {"retention", "group_padding"}
    assert found["group_padding"].bytes == -537_919_488
    assert found["group_padding"].reason == (
        "sglang none; vllm 513 MiB by 52 layers (window 1024: groups that share units"
        " 1,310,720 B wide)"
    )


def test_what_lets_no_further_sequence_in() -> None:
    """Qwen3.5-27B: SGLang's states run out, five a request, where vLLM has one pool of blocks."""
    sglang, vllm = (_plan("qwen3.5-27b", engine) for engine in ("sglang", "vllm"))
    *_, last = differences(sglang, vllm, 20 * _GIB)
    assert last.name == "sequences"
    assert last.bytes is None
    assert last.reason == (
        "sglang 13 sequences: one needs 5 of 65 units of 146.8 MiB (states, 48 % of the cache);"
        " vllm 20 sequences: one needs 19 of 393 units of 52 MiB (blocks)"
    )


def test_places_that_the_settings_fix() -> None:
    llama, vllm = (_plan("llama-3.1-8b", engine) for engine in ("llama.cpp", "vllm"))
    *_, last = differences(llama, vllm, 20 * _GIB)
    assert last.reason.startswith("llama.cpp 4 sequences: it has 4 places; vllm 19 sequences: ")


def test_lengths_that_differ_are_said_first() -> None:
    short, whole = _plan("llama-3.1-8b", "vllm", 4096), _plan("llama-3.1-8b", "vllm")
    first, second = differences(short, whole)
    assert (first.name, first.bytes) == ("longest sequence", None)
    assert first.reason == "4,096 tokens against 8,192"
    assert second.name == "used"
