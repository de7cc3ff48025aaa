"""What LMDeploy does with little memory, a dtype that it does not run, and its limits at once."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.answers.plan_summary import summarise
from kvcalc.api import load_model
from kvcalc.core.deployment import Deployment
from kvcalc.core.errors import InvalidValueError, UnsupportedError
from kvcalc.core.explain import explain_plan
from kvcalc.core.plan import CachePlan
from kvcalc.engines import plan
from kvcalc.models.presets import load_gpu

GIB = 2**30
BLOCK = 8 * 2**20  # Llama-3.1-8B, 64 tokens


def _plan(name: str = "llama-3.1-8b", *, length: int = 131_072, **settings: Any) -> CachePlan:
    args = {"backend": "pytorch", **settings.pop("args", {})}
    settings.setdefault("max_model_len", length)
    return plan(load_model(name), Deployment(engine="lmdeploy", engine_args=args, **settings))


@pytest.mark.parametrize(("blocks", "served"), [(256, 254 * 64), (3, 64), (4096, 131_072)])
def test_the_pytorch_engine_shortens(blocks: int, served: int) -> None:
    """0.16 to 0.18 engine.py, _get_max_session_len: blocks less the reserved one, less a block."""
    found = _plan().capacity(blocks * BLOCK)

    assert (found.starts, found.max_model_len_served) == (True, served)
    assert found.fits == (blocks > 2048)


def test_two_blocks_are_too_few() -> None:
    """executor/base.py, _get_num_gpu_blocks: two blocks or less are "No enough gpu memory"."""
    found = _plan().capacity(2 * BLOCK)

    assert (found.starts, found.max_model_len_served) == (False, 0)


@pytest.mark.parametrize(
    ("version", "start"),
    [
        ("0.9.2", "shortens"),
        ("0.14.0", "shortens"),
        ("0.15.0", "never_checks"),
        ("0.18.0", "never_checks"),
    ],
)
def test_turbomind_shortens_no_more(version: str, start: str) -> None:
    """To 0.14 engine.cc truncates session_len to all blocks; 0.15 lost that with #4717."""
    found = _plan(engine_version=version, args={"backend": "turbomind"})
    told = summarise(found, kv_cache_bytes=256 * BLOCK)

    assert found.start == start
    assert told.start_up is not None
    assert (told.start_up.fits, told.start_up.max_model_len_served) == (True, 256 * 64)
    (note,) = [note for note in told.notes if "16,384" in note]
    assert ("shortens" in note) == (start == "shortens")


def test_states_lie_beside_the_blocks() -> None:
    """executor/base.py, _reserve_state_cache_mem: (1,024 + 2) slots are taken from free memory."""
    found = _plan("qwen3.5-27b", length=8192, gpu=load_gpu("h100-80gb"))
    slots = 1026 * 48 * 2 * (4 * 10_240 + 48 * 128 * 128)
    told = summarise(found, kv_cache_bytes=20 * GIB)
    assert told.start_up is not None

    assert found.rank.beside_bytes == told.start_up.beside_bytes == slots == 81_494_802_432
    assert told.start_up.overhead_bytes == found.block_bytes  # the reserved block alone
    assert told.start_up.fits
    assert not any("would fail" in note for note in told.notes)
    assert any(f"take {slots:,} B" in note for note in told.notes)


def test_a_card_holds_blocks_and_states() -> None:
    """20 GiB of blocks and 75.9 GiB of states are more than an H100's 85,520,809,984 B."""
    found = _plan("qwen3.5-27b", length=8192, gpu=load_gpu("h100-80gb"))
    card = load_gpu("h100-80gb").memory_bytes
    told = summarise(found, kv_cache_bytes=20 * GIB, card_bytes=card)
    less = summarise(found, kv_cache_bytes=2 * GIB, card_bytes=card)

    assert told.start_up is not None
    assert less.start_up is not None
    assert (told.start_up.fits, less.start_up.fits) == (False, True)
    assert "102,969,638,912 B, 81,494,802,432 B of them beside" in told.notes[0]


def test_few_blocks_are_not_made_up_for_by_states() -> None:
    """Blocks that are set are compared with blocks: 10 of them hold 8 x 64 tokens."""
    found = _plan("qwen3.5-27b", length=8192, args={"num_gpu_blocks": 10}).capacity()

    assert (found.fits, found.max_model_len_served) == (False, 8 * 64)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, "float16"),
        ({"args": {"backend": "turbomind"}}, "bfloat16"),
        ({"args": {"backend": "turbomind"}, "gpu": load_gpu("t4")}, "float16"),
        ({"args": {"backend": "turbomind"}, "engine_version": "0.10.0"}, "float16"),
        ({"args": {"backend": "turbomind"}, "engine_version": "0.10.1"}, "bfloat16"),
        ({"dtype": "bf16"}, "bfloat16"),
    ],
)
def test_a_float32_model_is_run_in_16_bits(settings: dict[str, Any], dtype: str) -> None:
    """pytorch/config.py, _update_torch_dtype; turbomind/converter.py, _resolve_dtype."""
    found = _plan("smollm-1.7b", length=2048, **settings)

    assert found.kv_cache_dtype == dtype
    assert found.growth() == (196_608, 1)
    assert any("runs no model in float32" in n for n in found.notes) == ("dtype" not in settings)


def test_float32_is_no_choice() -> None:
    """messages.py: dtype is auto, float16 or bfloat16."""
    with pytest.raises(UnsupportedError, match="runs no model in float32"):
        _plan(dtype="float32")


def test_sequences_at_once() -> None:
    """max_batch_size bounds them whatever the blocks hold; the logged tokens do not follow."""
    found = _plan(length=8192, args={"max_batch_size": 2}).capacity(20 * GIB)

    assert (found.max_sequences, found.kv_cache_tokens) == (2, 2560 * 64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 8192, "args": {"session_len": 4096}}, "session_len 4,096 .* 8,192"),
        (
            {"kv_cache_dtype": "int4", "args": {"quant_policy": 8}},
            "quant_policy 8 packs K and V as int8, and the KV cache dtype is int4",
        ),
        (
            {"enable_prefix_caching": False, "args": {"enable_prefix_caching": True}},
            "enable_prefix_caching is given as false and as true",
        ),
    ],
)
def test_settings_that_contradict_one_another(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        _plan(**settings)


def test_settings_that_agree() -> None:
    assert _plan(length=4096, args={"session_len": 4096}).max_model_len == 4096
    assert _plan(max_model_len=None, args={"session_len": 4096}).max_model_len == 4096
    assert _plan(args={"enable_prefix_caching": True}).reuse_tokens == 64


def test_a_share_of_memory_that_is_not_told() -> None:
    """cache_max_entry_count is a share of what is free: without that it moves no figure."""
    share = {"cache_max_entry_count": 0.5}
    told = {**share, "free_memory": 60 * GIB, "vocab_size": 128256}

    assert any("plays no part" in note for note in _plan(args=share).notes)
    assert not any("plays no part" in note for note in _plan(args=told).notes)
    assert _plan(args=share).capacity(BLOCK * 9).num_blocks == 9


@pytest.mark.parametrize("policy", ["none", "int8", "int4", "fp8", "turbo_quant"])
def test_the_formula_is_the_plans_own(policy: str) -> None:
    """Its lines come to what the engine keeps, whatever the rows are packed in."""
    found = _plan("gemma-3-27b", args={"quant_policy": policy})
    lines = explain_plan(found, [])
    (total,) = [line for line in lines if line.startswith("sum: ")]
    rows = lines[: lines.index(total)]

    grown = [int(line.split(" = ")[1].split()[0].replace(",", "")) for line in rows]
    assert sum(grown) == found.growth()[0] == int(total.split()[1].replace(",", ""))
