"""What SGLang's own pools and configurators answered (ask.py): DeepSeek-V4, MiniMax-M3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan, start_up_log
from kvcalc.engines.sglang.start_up import pool_sizes
from kvcalc.models import load_model
from kvcalc.models.presets import load_gpu
from tests.engines.compact import read_lines

HERE = Path(__file__).parent
ROWS = read_lines(HERE / "asked.jsonl")


def _named(pool: str) -> list[Any]:
    rows = [row for row in ROWS if row["pool"] == pool]
    return [pytest.param(row, id=str(i)) for i, row in enumerate(rows)]


def _first(model: ModelSpec, layers: int) -> ModelSpec:
    """The first layers of a model: what a pipeline stage of theirs keeps."""
    runs, left = [], layers
    for run in model.layers:
        if left:
            runs.append(msgspec.structs.replace(run, count=min(run.count, left)))
            left -= runs[-1].count
    return msgspec.structs.replace(model, layers=tuple(runs), num_hidden_layers=layers)


def _v4(asked: dict[str, Any]) -> CachePlan:
    model = load_model(asked["model"])
    if "stage" in asked:
        model = _first(model, asked["stage"][1])
    args: dict[str, Any] = {"max_running_requests": asked["requests"]}
    settings: dict[str, Any] = {}
    if asked["ratio"] != 0.1:
        args["swa_full_tokens_ratio"] = asked["ratio"]
    if "cap" in asked:
        args["max_total_tokens"] = asked["cap"]
    if "backend" in asked:
        args["dsv4_attn_backend"] = asked["backend"]
        settings["gpu"] = load_gpu("b200")
    if "fp4_indexer" in asked:
        args["enable_deepseek_v4_fp4_indexer"] = True
    if "drafts" in asked:
        settings["num_speculative_tokens"] = asked["drafts"] - 1
    return plan(model, Deployment(engine="sglang", engine_args=args, **settings))


@pytest.mark.parametrize("row", _named("DeepSeekV4TokenToKVPool"))
def test_compressed_attention(row: dict[str, Any]) -> None:
    """Tokens, window tokens, and every tensor of every pool, to the byte."""
    asked = row["built_with"]
    planned = _v4(asked)
    found = planned.capacity(asked["budget"])
    pools = {pool.name: pool for pool in found.pools}
    assert planned.rank.sizing is not None
    price = planned.rank.sizing.price

    assert price == row["bytes_per_full_token"]
    assert found.kv_cache_tokens == row["tokens"]
    assert pools["window tokens"].units * 256 == row["window_tokens"]
    assert pools["states"].units == min(asked["requests"], row["tokens"] // 2)
    assert f"c4_state={row['c4_state']}, " in start_up_log(planned, asked["budget"])[0]
    held = row["held"]
    states = held["c4_state"] + held["c4_index_state"]
    entries = {4: held["c4"] + held["c4_index"], 128: held["c128"]}
    for ratio, size in entries.items():
        assert pools[f"entries of {ratio} tokens"].total_bytes == size
    table = (asked["requests"] + 1) * (planned.max_model_len + _row_extra(asked)) * 4
    padding = planned.rank.outside_bytes - table
    assert pools["window tokens"].total_bytes + padding == held["swa"] + states
    assert pools["states"].total_bytes + planned.rank.fixed_bytes == held["c128_state"]


def _row_extra(asked: dict[str, Any]) -> int:
    drafts = asked.get("drafts", 0)
    return 2 * drafts + 255 if drafts else 4


@pytest.mark.parametrize("row", _named("DeepSeekV4TokenToKVPool"))
def test_compressed_attention_is_conserved(row: dict[str, Any]) -> None:
    planned = _v4(row["built_with"])

    for n in (0, 1, 3, 4, 127, 128, 129, 255, 256, 257, 385, 70_000):
        for wastes in (planned.wastes(n), planned.wastes_at_admission(n)):
            assert wastes.reserved_bytes == wastes.used_bytes + sum(wastes.by_name().values())
        assert planned.wastes(n).reserved_bytes == planned.bytes_held(n)


def test_a_draft_of_compressed_attention_has_windows_alone() -> None:
    """One layer of DeepSeek-V4's proposes: as many window tokens, and no entries."""
    planned = plan(
        load_model("deepseek-v4-flash"), Deployment(engine="sglang", num_speculative_tokens=3)
    )
    found = {pool.name: pool for pool in planned.capacity(60 * 2**30).pools}

    assert found["draft window tokens"].unit_bytes == 149_760
    assert found["draft window tokens"].units == found["window tokens"].units


@pytest.mark.parametrize(
    ("args", "settings", "message"),
    [
        ({}, {"kv_cache_dtype": "bfloat16"}, "no bfloat16 cache of compressed attention"),
        ({}, {"engine_version": "0.5.15"}, "were not read"),
        ({}, {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "context parallelism"),
        ({"dsv4_attn_backend": "trtllm"}, {}, "does not run on h100"),
        ({}, {"num_speculative_tokens": 10}, "11 tokens verified at once"),
        ({}, {"num_speculative_tokens": 3, "draft_model": load_model("llama-3.1-8b"),
              "speculative_method": "eagle", "max_model_len": 8192}, "of another kind"),
        ({"speculative_eagle_topk": 2, "speculative_num_draft_tokens": 4},
         {"num_speculative_tokens": 3}, "one branch alone"),
    ],
)  # fmt: skip
def test_compressed_attention_is_refused(
    args: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(KvcalcError, match=message):
        plan(
            load_model("deepseek-v4-flash"),
            Deployment(engine="sglang", engine_args=args, **settings),
        )


@pytest.mark.parametrize("row", _named("MiniMaxSparseKVPool"))
def test_minimax_sparse_attention(row: dict[str, Any]) -> None:
    """K and V of all layers and the keys of the indexers, in one byte where kernels read such."""
    asked = row["built_with"]
    fp8 = asked["dtype"].startswith("float8")
    narrow = asked["index"].startswith("float8")
    deployment = Deployment(
        engine="sglang",
        block_size=asked["page"],
        tensor_parallel_size=4 // asked["heads"],
        kv_cache_dtype="fp8_e4m3" if fp8 else "auto",
        gpu=load_gpu("h100-80gb" if narrow or not fp8 else "a100-80gb"),
        engine_args={"max_total_tokens": row["tokens"]},
    )
    planned = plan(load_model("minimax-m3-nvfp4"), deployment)
    (made,) = planned.capacity(2**40).pools
    (line, *_) = start_up_log(planned, 2**40)

    assert pool_sizes(planned.rank.pools[0], made.units) == row["held"]
    assert made.total_bytes == sum(row["held"].values())
    assert f"K size: {row['held']['k'] / 2**30:.2f} GB, V size" in line
