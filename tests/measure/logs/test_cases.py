"""Every shared case parses to its recorded facts, and what is verifiable is predicted."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from kvcalc.answers.logs import Fact, LogAnswer
from kvcalc.core.model import ModelSpec
from kvcalc.measure.logs import Given, answered, read_start, starts_of
from kvcalc.measure.oom import read_oom
from kvcalc.models import load_model
from tests.conftest import ABSENT, SHARED
from tests.engines.llamacpp.log_cases import CASES as LLAMACPP
from tests.engines.llamacpp.log_cases import LISTED as LLAMACPP_LISTED
from tests.engines.sglang.log_cases import CASES as SGLANG
from tests.engines.tensorrt_llm.log_cases import CASES as TENSORRT_LLM
from tests.engines.vllm.log_cases import CASES as VLLM
from tests.engines.vllm.log_cases import LISTED as VLLM_LISTED

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

_GIB, _MIB = 2**30, 2**20

IN_WORDS = {
    "vllm-v1-017": "a table by hand",
    "vllm-v1-020": "the refusal in brackets of its own; its length is read",
    "vllm-v1-034a": "pool and tokens of a table; the block's lines are read",
    "vllm-v1-034b": "pool and tokens of a table; the block's lines are read",
    "vllm-v1-034c": "pool and tokens of a table; the block's lines are read",
    "vllm-v1-036": "two releases' answers after an arrow; the block's lines are read",
    "vllm-v1-047": "prose", "vllm-v1-048-262144-auto": "a row of a table",
    "vllm-v1-048-262144-fp8": "a row of a table", "vllm-v1-050": "prose", "vllm-v1-051": "prose",
    "vllm-v1-052": "prose", "vllm-v1-106": "the pool in brackets; the lines are read",
    "vllm-v1-119": "prose", "vllm-v1-122": "prose",
    "vllm-v1-204": "prose around the suggestion, which is read", "vllm-v1-220": "prose",
    "vllm-v1-221": "an excerpt of variables", "sglang-055": "a sum", "sglang-126": "prose",
    "llamacpp-070": "the devices' sizes after slashes; the sum is read",
    "llamacpp-136": "prose", "ollama-139": "what nvidia-smi showed",
    "exl2-210": "the sum of the poster", "exl3-212": "an account by hand", "hf-214": "prose",
    "vllm-v1-041": "two releases in one excerpt", "vllm-v1-042": "two models in one excerpt",
    "vllm-v1-224": "two layouts in one excerpt; the last line is read",
    "oom-015": "told by a program of its own",
}  # fmt: skip
"""Cases whose excerpt is not, or not only, what an engine prints -> what it is."""

FACTS = {
    "available_kv_gib": ("available_kv_cache", "pool_memory"),
    "tokens": ("kv_cache_tokens", "full_tokens", "max_model_len_that_fits"),
    "blocks": ("num_gpu_blocks",),
    "max_concurrency": ("max_concurrency",),
    "max_model_len": ("max_model_len",),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
    "block_size": ("attention_block_size", "block_size"),
    "cells": ("cells", "state_cells"),
    "k_mib": ("k_size",),
    "v_mib": ("v_size",),
}
"""Key of a case -> the figures that it may be."""

OTHER = {
    "weights_gb": "weights_memory", "model_loading_gib": "weights_memory",
    "total_gpu_gib": "total_memory", "peak_torch_gib": "peak_torch_memory",
    "non_torch_gib": "non_torch_memory", "needed_gib": "needed_memory",
    "cpu_blocks": "num_cpu_blocks", "cuda_graph_gib": "estimated_graph_memory",
    "cuda_graph_est_gib": "estimated_graph_memory", "cuda_graph_actual_gib": "graph_memory",
    "k_gb": "k_size", "v_gb": "v_size", "kv_gb": "kv_size", "draft_k_gb": "k_size_2",
    "max_mamba_cache_size": "state_slots", "conv_gb": "conv_state_size",
    "ssm_gb": "ssm_state_size", "padding_layers": "padding_layers", "padding_pct": "padding_waste",
    "mem_fraction_static": "mem_fraction_static", "free_gib": "free_memory",
    "free_on_startup_gib": "free_memory", "desired_gib": "requested_memory",
    "consumed_gib": "consumed_memory", "peak_activation_gib": "activation_memory",
    "suggest_fit_gib": "suggested_to_fit_gib", "suggest_full_gib": "suggested_to_fill_gib",
    "kv_mib": "estimated_kv",
}  # fmt: skip
"""Key of a case's other facts -> the figure."""

ALSO = {"cuda_graph_gib": ("graph_memory",)}
"""Key that is an estimate in some cases, and what the graphs took in others."""

NOT_LOGGED = {
    "vllm-v1-014": ("model_loading_gib",),
    "vllm-v0-022": (), "vllm-v1-032": ("model_loading_gib",),
    "vllm-v0-001": ("tokens",), "vllm-v1-012": ("tokens", "gpu_memory_utilization"),
    "vllm-v0-024": ("tokens",), "vllm-v1-010": (), "vllm-v1-008": (),
    "trtllm-060": ("block_size",), "trtllm-059": ("block_size", "tokens"),
    "lmdeploy-064": ("block_size", "tokens"), "sglang-054": ("block_size",),
    "lmdeploy-140": ("block_size",), "sglang-005": ("mem_fraction_static",),
    "ikllama-075": ("cells", "v_mib"), "ollama-076": ("cells",),
    "vllm-v1-103": ("block_size", "blocks"), "vllm-v1-104": ("block_size", "blocks"),
    "vllm-v1-105": ("block_size", "blocks"), "vllm-v1-109": ("block_size",),
    "llamacpp-131": ("k_mib", "v_mib"),
}  # fmt: skip
"""Facts of a case that its excerpt leaves out, as it is a part of the log or they were derived."""


def _cases() -> list[dict[str, Any]]:
    if not SHARED.is_dir():
        return []
    path = SHARED / "logs" / "cases.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


CASES = {case["id"]: case for case in _cases()}


def _facts(case: dict[str, Any]) -> dict[str, Fact]:
    starts = starts_of(enumerate(case["log_excerpt"].split("\n"), 1))
    return starts[0].facts() if starts else {}


def _recorded(case: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], Fraction]]:
    """Yield each recorded number with the figures that it may be."""
    left_out = NOT_LOGGED.get(case["id"], ())
    for key, names in FACTS.items():
        if case.get(key) is not None and key not in left_out:
            scale = _GIB if key == "available_kv_gib" else _MIB if key.endswith("_mib") else 1
            yield key, names, Fraction(str(case[key])) * scale
    for key, name in OTHER.items():
        value = case["other"].get(key)
        if value is not None and key not in left_out:
            scale = _MIB if key.endswith("_mib") else _GIB if key.endswith(("gib", "gb")) else 1
            yield key, (name, *ALSO.get(key, ())), Fraction(str(value)) * scale


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["engine"] != "pytorch-oom"])
def test_a_case_has_its_recorded_facts(name: str) -> None:
    """Each recorded number lies in the range of the figure that was read."""
    case = CASES[name]
    facts = _facts(case)
    words = name in IN_WORDS
    assert facts or words, "nothing is read"
    for key, names, value in _recorded(case):
        found = [facts[n] for n in names if n in facts]
        if not found and (words or not _printed(case, key)):
            continue
        assert found, key
        if not words:
            assert any(_holds(fact, value) for fact in found), (key, value, found)


def _printed(case: dict[str, Any], key: str) -> bool:
    """Whether the number of a recorded fact stands in the excerpt at all."""
    value = case.get(key) if key in FACTS else case["other"].get(key)
    texts = {str(value), f"{value:,}" if isinstance(value, int) else f"{value:.2f}"}
    return any(text in case["log_excerpt"] for text in texts)


def _holds(fact: Fact, value: Fraction) -> bool:
    assert fact.low is not None and fact.high is not None
    return Fraction(fact.low) <= value <= Fraction(fact.high)


def test_what_is_in_words_is_listed_and_needed() -> None:
    """No case stands among those in words without need: condensed, or of several starts."""
    assert set(IN_WORDS) <= set(CASES)
    kinds = {CASES[name]["excerpt_kind"].split()[0] for name in IN_WORDS}
    assert kinds <= {"condensed", "verbatim", "rebuilt"}
    assert len(IN_WORDS) < len(CASES) / 3


# --------------------------------------------------------------- predicted or explained


def _answer(case: dict[str, Any], model: ModelSpec, **settings: Any) -> LogAnswer:
    args = settings.pop("engine_args", {})
    given = Given(model=model, settings=settings, args=args)
    read = read_start("-", given, stdin=io.BytesIO(case["log_excerpt"].encode()))
    return answered(read, given)


CIRCULAR = ("vllm-v1-222", "vllm-v1-012", "vllm-v1-041", "vllm-v1-119")
"""Cases of which some print tokens or blocks alone, that any model would give, or a figure that the
nearest other models have too."""

EXPLAINED = {
    "vllm-v1-004": "minimum over ranks",
}
"""Case whose figures are another's -> the cause that is named."""


@pytest.mark.parametrize("number", range(len(VLLM)))
def test_vllm_is_predicted(number: int) -> None:
    """A start of vLLM agrees with its plan, or the cause is named."""
    told = VLLM[number]
    if told.case in IN_WORDS:
        case = {**CASES[told.case], "log_excerpt": _as_printed(told, CASES[told.case])}
    else:
        case = CASES[told.case]
    settings = dict(told.settings)
    found = _answer(case, told.model(), engine_version=told.release, **settings)

    causes = {d.explained_by for d in found.differences}
    assert causes == ({EXPLAINED[told.case]} if told.case in EXPLAINED else set())
    if told.case not in (*EXPLAINED, *CIRCULAR) and told.case != "vllm-v1-120":
        assert found.agrees
    if told.refused and "failed" in str(found.failure):
        assert found.failure


def _as_printed(told: Any, case: dict[str, Any]) -> str:
    """Write the figures of a case that is told in words as the engine prints them."""
    lines = []
    if told.memory is not None and not told.loose:
        lines.append(f"Available KV cache memory: {told.memory} GiB")
    if told.tokens is not None and not told.loose:
        lines.append(f"GPU KV cache size: {told.tokens:,} tokens")
    if told.loose:
        lines.append(f"GPU KV cache size: {_loose(told):,} tokens")
    if told.concurrency is not None:
        length = case["max_model_len"]
        times = f"{told.concurrency:.2f}"
        lines.append(f"Maximum concurrency for {length:,} tokens per request: {times}x")
    if told.needed is not None:
        length = case["max_model_len"]
        lines.append(f"max seq len ({length}), ({told.needed} GiB KV cache is needed")
    if told.length is not None:
        lines.append(f"the estimated maximum model length is {told.length}.")
    if told.padding is not None:
        lines.append(f"Add {told.padding} padding layers, may waste at most 1.00% KV cache memory")
    if told.block is not None:
        lines.append(f"Setting attention block size to {told.block} tokens to ensure that")
    return "\n".join(lines)


def _loose(told: Any) -> int:
    """Return a number of tokens near the one that is told in thousands, which blocks give."""
    from kvcalc.core.deployment import Deployment
    from kvcalc.engines import plan

    made = plan(
        told.model(), Deployment(engine="vllm", engine_version=told.release, **told.settings)
    )
    return made.capacity(int(told.memory * _GIB)).kv_cache_tokens


def test_vllm_cases_are_all_there() -> None:
    verifiable = {n for n, c in CASES.items() if c["engine"].startswith("vllm") and c["verifiable"]}
    assert verifiable == {told.case for told in VLLM} | set(VLLM_LISTED)


@pytest.mark.parametrize("name", ["vllm-acct-202", "vllm-acct-203"])
def test_accounts_add_up(name: str) -> None:
    """A line that tells where memory went is added up without a model."""
    case = CASES[name]
    found = answered(read_start("-", stdin=io.BytesIO(case["log_excerpt"].encode())))

    sums = {"requested_memory", "available_kv_cache", "suggested_to_fit_gib"}
    assert sums | {"suggested_to_fill_gib"} <= set(found.agrees)
    assert found.differences == ()
    assert any("--kv-cache-memory-bytes" in cure for cure in found.cures)


@pytest.mark.parametrize("number", range(len(SGLANG)))
def test_sglang_is_predicted(number: int) -> None:
    told = SGLANG[number]
    if told.case in IN_WORDS:
        return  # a sum: its bytes a token are tested with the engine
    args = dict(told.args)
    if told.tokens is not None and told.case != "sglang-057":
        args["max_total_tokens"] = told.tokens
    elif told.case == "sglang-057":
        args["max_total_tokens"] = 4096
    found = _answer(CASES[told.case], told.model(), engine_args=args, **told.settings)

    assert found.differences == ()
    assert found.agrees


def test_sglang_accounts() -> None:
    """054: what is left of the card, and its tokens; 216: the share that would do."""
    left = answered(_read("sglang-054"))
    refused = answered(_read("sglang-216"))

    assert set(left.agrees) == {"available_kv_cache", "full_tokens"}
    assert left.differences == ()
    assert refused.failure is not None
    # Weights and what is free add up to 137.9 GiB of the card's 138.17, which is not logged.
    assert "0.911" in refused.failure


def _read(name: str) -> Any:
    return read_start("-", stdin=io.BytesIO(CASES[name]["log_excerpt"].encode()))


@pytest.mark.parametrize("number", range(len(TENSORRT_LLM)))
def test_tensorrt_llm_is_predicted(number: int) -> None:
    told = TENSORRT_LLM[number]
    model = load_model(told.model)
    found = _answer(CASES[told.case], model, engine_version=told.release, **told.settings)

    assert found.differences == ()
    assert found.agrees


@pytest.mark.parametrize("number", range(len(LLAMACPP)))
def test_llamacpp_is_predicted(number: int) -> None:
    told = LLAMACPP[number]
    if told.case in IN_WORDS:
        return  # cells in prose; tested with the engine
    found = _answer(CASES[told.case], told.model(), engine_args=told.args, **told.settings)

    differing = {d.name for d in found.differences if d.explained_by is None}
    causes = {d.explained_by for d in found.differences} - {None}
    assert causes == ({"draft layers"} if told.case in ("llamacpp-129", "llamacpp-130") else set())
    known = {"cache_size_2", "v_size_2", "state_size"} if told.case == "llamacpp-131" else set()
    # 131: of a build whose indexer had a V beside it, and of a model that is not named: its states
    # are made up from the other figures, and 0.3 % off.
    assert differing == known
    assert found.agrees


def test_lmdeploy_is_predicted() -> None:
    from kvcalc.api import shape_model

    args = {"cache_block_seq_len": 128}
    model = shape_model(32, 32, 128)
    found = _answer(CASES["lmdeploy-064"], model, engine_version="0.1.x", engine_args=args)

    assert "block_memory" in found.agrees
    assert found.predicted["kv_cache_tokens"].low == CASES["lmdeploy-064"]["tokens"]


@pytest.mark.parametrize(("name", "short"), [("mlc-208", "9.24 GiB"), ("mlc-209", "406")])
def test_mlc_is_explained(name: str, short: str) -> None:
    found = answered(_read(name))

    assert found.failure is not None
    assert "the temporary buffer" in found.failure or "weights" in found.failure
    assert short in found.failure


ELSEWHERE = {
    "trtllm-219": "a request refused: its figures are read; cross-attention is not modelled",
    "exl2-210": "tests/engines/exllama", "exl3-212": "tests/engines/exllama",
    "hf-214": "tests/engines/transformers", "sglang-054": "its account, above",
    "sglang-216": "its account, above", "lmdeploy-064": "above", "mlc-208": "above",
    "mlc-209": "above", **VLLM_LISTED, **LLAMACPP_LISTED,
}  # fmt: skip
"""Verifiable cases that no table of engine starts has -> where they are, or why not."""


def test_every_verifiable_case_is_predicted_or_listed() -> None:
    known = {told.case for told in (*VLLM, *SGLANG, *TENSORRT_LLM, *LLAMACPP)}
    verifiable = {n for n, c in CASES.items() if c["verifiable"] and not n.startswith("oom-")}

    assert verifiable <= known | set(ELSEWHERE)


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("oom-")])
def test_out_of_memory_texts_are_handed_on(name: str) -> None:
    """A text inside a log gets the verdict that it gets alone."""
    case = CASES[name]
    alone = read_oom(case["log_excerpt"])
    assert alone is not None
    if name in IN_WORDS:
        return
    log = f"GPU KV cache size: 1,024 tokens\n(Worker_TP0 pid=7) ERROR {case['log_excerpt']}\n"
    found = answered(read_start("-", stdin=io.BytesIO(log.encode())))

    assert found.oom is not None
    assert found.oom.classification == alone.classification == case["other"]["classification"]
    assert msgspec.structs.replace(found.oom.text, device=None, what=None) == (
        msgspec.structs.replace(alone.text, device=None, what=None)
    )
