"""What SGLang's own configurators make of a budget, beside kvcalc's answers.

`budget_rows.jsonl` holds what the classes of the 0.5.23 wheel answered (pool_configurator.py, and
_handle_max_mamba_cache, _apply_token_constraints, resolve_max_num_reqs of
kv_cache_configurator.py), called with plain values in place of a server's: shapes and settings in,
slots, tokens and requests out. Bytes of a state are given as the model's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.attention import FullAttention, Mla, SlidingWindow
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Cache, LayerRun
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.core.recurrent import GatedDeltaNet
from kvcalc.engines import plan
from kvcalc.engines.sglang.requests import requests_at_once

_ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "budget_rows.jsonl").read_text("utf-8").splitlines()
]
_STATE = GatedDeltaNet(
    num_k_heads=16,
    num_v_heads=48,
    head_k_dim=128,
    head_v_dim=128,
    conv_kernel=4,
    state_dtype="float32",
)


def _model(case: dict[str, Any], *, draft: bool = False) -> ModelSpec:
    heads, width = case.get("heads", 8), case.get("dim", 128)
    full: Cache = FullAttention(num_kv_heads=heads, head_dim=width, v_head_dim=case.get("vdim"))
    if case.get("mla"):
        full = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
    window = SlidingWindow(
        num_kv_heads=case.get("wheads", heads),
        head_dim=case.get("wdim", width),
        v_head_dim=case.get("wvdim"),
        sliding_window=case.get("window") or 1,
    )
    counts: list[tuple[int, Cache]] = [(case.get("full", 0), full), (case.get("swa", 0), window)]
    if "state" in case:
        counts.append((case["state"]["layers"], _STATE))
    if draft:
        counts = [(1, full)]
    runs = tuple(LayerRun(count=count, caches=(cache,)) for count, cache in counts if count)
    architecture = "GptOssForCausalLM" if case.get("swa") else "LlamaForCausalLM"
    if "state" in case:
        architecture = "Qwen3NextForCausalLM"
    return ModelSpec(
        name="row",
        architecture=architecture,
        dtype="bfloat16",
        num_hidden_layers=sum(run.count for run in runs),
        layers=runs,
        max_position_embeddings=case.get("context", 131_072),
    )


def _plan(case: dict[str, Any]) -> CachePlan:
    args = {
        "page_size": case["page"],
        "tp_size": case.get("tp"),
        "swa_full_tokens_ratio": case.get("ratio"),
        "max_total_tokens": case.get("max_tokens"),
        "max_running_requests": case.get("requests"),
        "max_mamba_cache_size": case.get("slots"),
        "mamba_full_memory_ratio": case.get("mamba_ratio"),
        "chunked_prefill_size": 8192,
        "disable_radix_cache": not case.get("radix", True),
        "disable_overlap_schedule": not case.get("overlap", True),
        "kv_cache_dtype": "fp8_e4m3" if case.get("dtype") == "fp8" else None,
    }
    settings: dict[str, Any] = {}
    if case.get("spec"):
        args["speculative_algorithm"] = "EAGLE"
        settings["num_speculative_tokens"] = case["spec"]["steps"]
        settings["draft_model"] = _model(case, draft=True)
    deployment = Deployment(engine="sglang", engine_args=args, **settings)
    return plan(_model(case), deployment)


def _answers(case: dict[str, Any], planned: CachePlan, budget: int) -> dict[str, int]:
    found = planned.capacity(budget, at=1)
    units = {pool.name: pool.units for pool in found.pools}
    tokens = found.kv_cache_tokens
    ours = {"tokens": tokens}
    states = None
    if "states" in units:
        ours["slots"] = units["states"]
        states = units["states"] // next(
            pool.held(1) for pool in planned.rank.pools if pool.name == "states"
        )
    if case.get("swa"):
        ours["full"] = units.get("tokens", 0) * case["page"]
        ours["window"] = units["window tokens"] * case["page"]
    asked = case.get("requests")
    context = case.get("context", 131_072)
    ours["requests"] = requests_at_once(tokens, context, asked, states)
    return ours


def _splits(case: dict[str, Any]) -> bool:
    """Whether heads can be split over the ranks; the configurator alone does not ask."""
    heads, ranks = case.get("heads", 8), case.get("tp") or 1
    return bool(heads % ranks == 0 or ranks % heads == 0)


SERVED = [row for row in _ROWS if _splits(row["case"])]
UNSERVED = [row for row in _ROWS if not _splits(row["case"])]


@pytest.mark.parametrize("row", UNSERVED, ids=range(len(UNSERVED)))
def test_ranks_that_do_not_divide_the_heads_are_refused(row: dict[str, Any]) -> None:
    """layers/linear.py, QKVParallelLinear asserts it before any cache is sized."""
    with pytest.raises(UnsupportedError, match="cannot split 8 KV heads over 3 ranks"):
        _plan(row["case"])


@pytest.mark.parametrize("row", SERVED, ids=range(len(SERVED)))
def test_a_budget_comes_to_the_same(row: dict[str, Any]) -> None:
    """To the last token, slot and request; what SGLang refuses holds no request."""
    planned = _plan(row["case"])
    cut = [line for line in planned.unsupported if "beyond its last" in line]

    for budget, told in row["answers"]:
        if cut:  # the plan says what is missing: no request gets a part of a page
            rest = told["window"] % row["case"]["page"]
            assert f"has {rest} tokens beyond its last whole page" in cut[0]
            told["window"] -= rest
        if "error" in told:
            assert planned.capacity(budget, at=1).max_sequences == 0
        else:
            assert _answers(row["case"], planned, budget) == told


def test_as_many_are_compared_as_were_asked() -> None:
    answers = [told for row in _ROWS for _, told in row["answers"]]

    assert (len(_ROWS), len(answers)) == (102, 408)
    assert sum("error" in told for told in answers) == 3
    assert len(UNSERVED) == 3
    cut = [r for r in SERVED if any("beyond" in line for line in _plan(r["case"]).unsupported)]
    assert len(cut) == 2
